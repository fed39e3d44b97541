package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCheckImage: what would pass its pre-flight and could not be executed in place is refused before.
func TestCheckImage(t *testing.T) {
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	other := append([]byte{}, text[:64]...)
	other[elfMachine]++
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"itself":  {text, ""},
		"script":  {[]byte("#!/bin/sh\nexec handoverd \"$@\"\n"), "it is a script"},
		"machine": {other, "another machine"},
		"text":    {[]byte("runtime_dir = \"/run/handoverd\"\n"), "no program"},
		"short":   {text[:8], "no program"},
		"empty":   {nil, "no program"},
	} {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, c.text, 0o755); err != nil {
			t.Fatal(err)
		}
		fd, err := openImage(path)
		if err != nil {
			t.Fatal(err)
		}
		err = checkImage(fd)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		_ = unix.Close(fd)
	}
}

// TestChangedImage: a file that is overwritten after it was opened is not what was tried. One that is replaced by another
// is.
func TestChangedImage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "handoverd")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(path, "one")
	fd, err := openImage(path)
	if err != nil {
		t.Fatal(err)
	}
	b := &chosenBinary{path: path, fd: fd}
	defer b.close()
	if b.text, err = writtenTo(fd); err != nil {
		t.Fatal(err)
	}
	write(path+".new", "another")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if err := b.changed(); err != nil {
		t.Errorf("replaced: %v", err)
	}
	if err := os.WriteFile(fdPath(fd), []byte("more"), 0); err != nil {
		t.Fatal(err)
	}
	if err := b.changed(); err == nil || !strings.Contains(err.Error(), "written to") {
		t.Errorf("overwritten: %v", err)
	}
}
