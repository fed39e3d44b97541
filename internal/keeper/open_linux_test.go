package keeper

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOpen: a number that a keeper says is its own is believed if the process is that keeper here.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		dir  string
		ok   bool
	}{
		"it":                  {[]string{ProgramName, dir}, dir, true},
		"by another path":     {[]string{ProgramName, filepath.Join(dir, "link")}, dir, true},
		"of another one":      {[]string{ProgramName, os.TempDir()}, dir, false},
		"another program":     {[]string{"sleep", dir}, dir, false},
		"without directory":   {[]string{ProgramName}, dir, false},
		"of one that is gone": {[]string{ProgramName, dir + "x"}, dir, false},
	} {
		t.Run(name, func(t *testing.T) {
			// What it cannot follow it passes over.
			cmd := &exec.Cmd{Path: "/usr/bin/tail", Args: append(c.args, "-f", "/dev/null")}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// The pipe by which Start sees the execve is closed before the arguments are in place.
			for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
				if text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid)); len(text) > 0 {
					break
				}
			}
			fd := Open(cmd.Process.Pid, c.dir)
			if (fd >= 0) != c.ok {
				t.Errorf("descriptor %d", fd)
			}
			if fd >= 0 {
				_ = unix.Close(fd)
			}
			_, _ = cmd.Process.Kill(), cmd.Wait()
		})
	}
	if fd := Open(0, dir); fd >= 0 {
		t.Error("process 0")
	}
}
