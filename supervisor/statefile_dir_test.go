package supervisor

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// TestStateIsNoFile: what stands in the place of a file of the runtime directory and is none holds up no start, and is no
// state. All but a directory at the temporary file's name, which is not empty, gives way.
func TestStateIsNoFile(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"a pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "in it"), 0o700) },
		"too long": func(path string) error {
			f, err := os.Create(path)
			if err != nil {
				return err
			}
			return errors.Join(f.Truncate(maxState+1), f.Close()) // a hole
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, _ := written(t)
			for range 2 { // what was set aside before gives way as well
				if err := errors.Join(os.RemoveAll(d.file("state.json")), put(d.file("state.json"))); err != nil {
					t.Fatal(err)
				}
				s, err := d.readState("boot", 7)
				if s != nil || err == nil || !strings.Contains(err.Error(), "set aside as") || strings.Contains(err.Error(), "could not") {
					t.Fatalf("read: %v, %v", s, err)
				}
			}
			if err := d.replace("state.json", []byte("{}")); err != nil {
				t.Error(err)
			}
			if name == "too long" {
				return
			}
			if err := put(d.file(livesFile)); err != nil {
				t.Fatal(err)
			}
			if ends, err := d.judge(false, false); err == nil || ends != (Terminations{}) {
				t.Errorf("how lives ended: %+v, %v", ends, err)
			}
		})
	}
	for name, put := range map[string]func(path string) error{
		"a pipe": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a link": func(path string) error { return os.Symlink("elsewhere", path) },
	} {
		t.Run(name+" at the temporary file", func(t *testing.T) {
			d, _ := written(t)
			if err := put(d.file(".state.json.tmp")); err != nil {
				t.Fatal(err)
			}
			if err := d.replace("state.json", []byte("{}")); err != nil {
				t.Error(err)
			}
			if _, err := os.Lstat(d.file("elsewhere")); err == nil {
				t.Error("the link was followed")
			}
			if info, err := os.Lstat(d.file("state.json")); err != nil || !info.Mode().IsRegular() {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}

// TestWriterLives: a state whose handoverd lives is nobody else's, also where the lock was removed and made anew.
func TestWriterLives(t *testing.T) {
	other := exec.Command("/bin/sleep", "1000")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	started, err := proc.StartTime(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	w := heldProcess{PID: other.Process.Pid, StartTime: started}
	if err := writerLives(w, 0); !errors.Is(err, ErrLocked) {
		t.Errorf("it lives: %v", err)
	}
	if err := writerLives(heldProcess{PID: w.PID, StartTime: started + 1}, 0); err != nil {
		t.Errorf("another process has its number: %v", err)
	}
	self, err := proc.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := writerLives(heldProcess{PID: os.Getpid(), StartTime: self}, 0); err != nil {
		t.Errorf("this process, after an upgrade: %v", err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := writerLives(w, dying); err != nil { // it is a zombie, or soon
		t.Errorf("it has been killed: %v", err)
	}
	_ = other.Wait()
}

// TestDirectoryReplaced: nothing is written into, or removed from, a directory that has come in the place of the one that
// handoverd was started in.
func TestDirectoryReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run")
	d, err := openRuntimeDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.replace("state.json", []byte("mine")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := d.replace("state.json", []byte("lost")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without it: %v", err)
	}
	other, err := openRuntimeDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.replace("state.json", []byte("another one's")); err != nil {
		t.Fatal(err)
	}
	if err := d.replace("state.json", []byte("mine")); err == nil {
		t.Error("written into another one's directory")
	}
	if err := d.close(true); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(other.file("state.json")); err != nil || string(text) != "another one's" {
		t.Errorf("%q, %v", text, err)
	}
	if err := other.close(true); err != nil {
		t.Error(err)
	}
}

// TestLoadTop: what stands before the first table is read of a file whose rest cannot be.
func TestLoadTop(t *testing.T) {
	path := filepath.Join(t.TempDir(), "handoverd.toml")
	for text, ok := range map[string]bool{
		"runtime_dir = \"/run/x\"\nhealth = \"127.0.0.1:1\"\nkeeper = \"none\"\n[service.web]\ncommand = [\n": true,
		"runtime_dir = \"/run/x\"\nhealth = \"127.0.0.1:1\"\nkeeper = \"none\"\nnonsense = 1\n[service.web]":  true,
		"runtime_dir = \"/run/x\nhealth = \"127.0.0.1:1\"\n":                                                  false,
		"runtime_dir = \"/run/x\"\nhealth = \"nowhere\"\n":                                                    false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := LoadTop(path)
		switch {
		case (err == nil) != ok:
			t.Errorf("%q: %v", text, err)
		case ok && (c.RuntimeDir != "/run/x" || c.Health != "127.0.0.1:1" || c.Keeper != "none" || len(c.Services) > 0):
			t.Errorf("%q: %+v", text, c)
		}
	}
}
