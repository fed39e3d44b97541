//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets the test binary be handoverd too: the scripts run it by that name, and it is what the shim, the
// helpers, the keeper and every generation begin as (/proc/self/exe).
func TestMain(m *testing.M) {
	if isLookHelper() || isFetchHelper() || isKeeper() { // else it would run all tests instead
		main()
		return
	}
	testscript.Main(m, map[string]func(){"handoverd": main})
}

// TestScript runs testdata/script/*.txtar: one behaviour of the command each, the first word the category. In the
// short form only those that start no daemon.
func TestScript(t *testing.T) {
	files, err := filepath.Glob("testdata/script/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	var chosen []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if !testing.Short() || !bytes.Contains(text, []byte("\ndaemon ")) {
			chosen = append(chosen, f)
		}
	}
	programs := t.TempDir()
	if !testing.Short() {
		buildChild(t, programs)
	}
	testscript.Run(t, testscript.Params{
		Files:               chosen,
		Setup:               func(env *testscript.Env) error { return setUp(env, programs) },
		Cmds:                scriptCommands,
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
	})
}

// buildChild builds the server that misbehaves on request.
func buildChild(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", dir, "../../internal/testchild", "../../examples/goserver")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the test's server: %v\n%s", err, out)
	}
}

// setUp gives a script its runtime directory, $RUN, whose path is short enough for a socket's name wherever the
// temporary files are, and writes it into its configurations.
func setUp(env *testscript.Env, programs string) error {
	run, err := os.MkdirTemp("", "hd")
	if err != nil {
		return err
	}
	env.Defer(func() { _ = os.RemoveAll(run) })
	env.Setenv("RUN", run)
	env.Setenv("PATH", programs+string(filepath.ListSeparator)+env.Getenv("PATH"))
	configs, err := filepath.Glob(filepath.Join(env.WorkDir, "*.toml"))
	if err != nil {
		return err
	}
	for _, f := range configs {
		text, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		if err := os.WriteFile(f, bytes.ReplaceAll(text, []byte("$RUN"), []byte(run)), 0o600); err != nil {
			return err
		}
	}
	d := &daemon{dir: run}
	env.Values[daemonKey{}] = d
	env.Values[flakyKey{}] = new(atomic.Int64)
	env.Defer(d.kill)
	return nil
}
