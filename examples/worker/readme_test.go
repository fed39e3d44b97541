//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// step is a command that the README tells to type, and what it says then comes.
type step struct{ command, output string }

// readmeSteps reads the console blocks.
func readmeSteps(t *testing.T) (steps []step) {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for line := range strings.Lines(block[1]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				steps = append(steps, step{command: strings.TrimSpace(command)})
			} else {
				steps[len(steps)-1].output += line
			}
		}
	}
	return steps
}

// A shell is one that somebody types into.
type shell struct {
	in  io.Writer
	out *bufio.Reader
}

// newShell starts a shell in dir. What is written to standard error, and so every log, is in log.
func newShell(t *testing.T, dir string, log *os.File) *shell {
	t.Helper()
	cmd := exec.Command("bash")
	cmd.Dir, cmd.Stderr = dir, log
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &shell{in, bufio.NewReader(out)}
}

// do types a command and returns what it prints, with its exit status if that is not 0.
func (s *shell) do(t *testing.T, command string) string {
	t.Helper()
	const end = "-- exit "
	if _, err := fmt.Fprintf(s.in, "%s\necho '%s'$?\n", command, end); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		if code, ok := strings.CutPrefix(line, end); ok {
			if code != "0\n" {
				text.WriteString(line)
			}
			return text.String()
		}
		text.WriteString(line)
	}
}

// TestReadme types what the README says, word by word, but for the two folders and what builds programs, and gets what
// the README says.
func TestReadme(t *testing.T) {
	tree, err := os.MkdirTemp("/tmp", "worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(tree) })
	for _, err := range []error{
		os.Chmod(tree, 0o711), // for the user postgres
		os.Mkdir(filepath.Join(tree, "bin"), 0o755),
		os.CopyFS(filepath.Join(tree, "examples/worker"), os.DirFS(".")),
		os.Symlink(binary(t, "handoverd"), filepath.Join(tree, "bin/handoverd")),
		os.Symlink(binary(t, "worker"), filepath.Join(tree, "bin/worker")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	database := filepath.Join(tree, "pg")
	t.Cleanup(func() {
		if _, err := os.Stat(database); err == nil {
			_ = exec.Command("./cluster", "stop", database).Run() // the test has failed on its way
		}
	})
	number := regexp.MustCompile(`handoverd \d+:`)
	sh := newShell(t, tree, newLog(t))
	t.Cleanup(func() {
		cmd := exec.Command("bin/handoverd", "stop", "--wait", "-c", "examples/worker/handoverd.toml")
		cmd.Dir = tree
		_ = cmd.Run() // it runs only if the test has failed on its way
	})
	for _, step := range readmeSteps(t) {
		if strings.Contains(step.command, "make build") || strings.Contains(step.command, "go build") {
			continue
		}
		got := sh.do(t, strings.ReplaceAll(step.command, "/tmp/worker-pg", database))
		if strings.HasSuffix(step.command, "&") {
			waitReady(t, "bin/handoverd", "examples/worker/handoverd.toml", tree)
		}
		if got = number.ReplaceAllString(got, "handoverd 12345:"); got != step.output {
			t.Errorf("$ %s\n%s, the README says:\n%s", step.command, got, step.output)
		}
	}
}
