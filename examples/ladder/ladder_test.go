//go:build linux

// Package ladder_test runs the rungs of the ladder, each in its short form, and wants what each claims to hold.
package ladder_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// rungLimit is far more than a rung takes in its short form on a busy machine: half of it is a hang.
const rungLimit = 3 * time.Minute

// programs builds what the rungs run.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", dir+"/",
		"../../cmd/handoverd", "../goserver", "./server", "./streamserver", "./streamclient")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return dir
}

// rungs are the scripts, in order.
func rungs(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("rung*.sh")
	if err != nil || len(all) < 6 {
		t.Fatalf("rungs %v: %v", all, err)
	}
	return all
}

// alone are the rungs whose claim is about a time. The others wait for these, and then run side by side.
var alone = map[string]bool{"rung3-checks.sh": true}

var claims = regexp.MustCompile(`(?m)^- holds: `)

// TestLadder: each rung ends with exit code 0, and prints a table and claims that hold.
func TestLadder(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs")
	}
	bin := programs(t)
	for _, rung := range rungs(t) {
		t.Run(strings.TrimSuffix(rung, ".sh"), func(t *testing.T) {
			if !alone[rung] {
				t.Parallel()
			}
			ctx, cancel := context.WithTimeout(t.Context(), rungLimit)
			defer cancel()
			cmd := exec.CommandContext(ctx, "bash", "./"+rung)
			cmd.Env = append(os.Environ(), "LADDER_SHORT=1", "LADDER_BIN="+bin)
			// A group of its own, so that a signal reaches the client that the script waits for as well.
			cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
			cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
			cmd.WaitDelay = 20 * time.Second
			out, err := cmd.CombinedOutput()
			t.Logf("%s", out)
			if err != nil {
				t.Fatalf("%s: %v", rung, err)
			}
			if !strings.Contains(string(out), "\n|---|") || !claims.Match(out) {
				t.Errorf("%s printed no table, or claimed nothing", rung)
			}
		})
	}
}

// underHandoverd is the row that each table has to be compared with.
var underHandoverd = regexp.MustCompile(`(?m)^\|.*\bunder handoverd\b.*\|$`)

// TestReadmeHasTheTables: the README shows what each rung prints, with the row under handoverd, and each of its claims held
// when it was written.
func TestReadmeHasTheTables(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, rung := range rungs(t) {
		_, after, found := strings.Cut(string(text), "<!-- "+rung+" -->\n")
		table, _, ended := strings.Cut(after, "<!-- end -->")
		if !found || !ended {
			t.Errorf("README.md has no table of %s", rung)
			continue
		}
		if !strings.Contains(table, "\n|---|") || !claims.MatchString(table) || strings.Contains(table, "does not hold") {
			t.Errorf("README.md: the table of %s is not that of a run whose claims held", rung)
		}
		if !underHandoverd.MatchString(table) {
			t.Errorf("README.md: the table of %s has no row under handoverd", rung)
		}
	}
}
