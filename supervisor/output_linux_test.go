package supervisor

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stuckWriter is a log that nobody reads until it is let go.
type stuckWriter struct {
	begun, free chan struct{}
	once        sync.Once
	bytes.Buffer
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.begun) })
	<-w.free
	return w.Buffer.Write(p)
}

// followedFile is an output with one generation's file, and a descriptor as its
// program has it. What is passed on is in w once done was called.
func followedFile(t *testing.T) (o *output, w *stuckWriter, fd int, done func()) {
	t.Helper()
	w = &stuckWriter{begun: make(chan struct{}), free: make(chan struct{})}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "log"), 0o700); err != nil {
		t.Fatal(err)
	}
	o, err := newOutput(&runtimeDir{path: dir}, w, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stdout, _, closeFD, err := o.open(at{"web", 1}, testSpec("web"), -1, -1)
	if err != nil {
		t.Fatal(err)
	}
	followed := make(chan struct{})
	go func() { defer close(followed); o.follow() }()
	return o, w, stdout, func() { closeFD(); o.close(0); <-followed }
}

func writeAll(t *testing.T, fd int, text string) {
	t.Helper()
	for b := []byte(text); len(b) > 0; {
		n, err := unix.Write(fd, b)
		if err != nil {
			t.Fatal(err)
		}
		b = b[n:]
	}
}

// The loop waits neither for whoever reads what is passed on nor for a program that
// writes without end: it can open and end files, and read the last lines of one.
func TestOutputHoldsNobodyUp(t *testing.T) {
	o, w, fd, done := followedFile(t)
	writeAll(t, fd, "first\n")
	<-w.begun
	writeAll(t, fd, strings.Repeat("more\n", 100)+"last, without an end")
	held := make(chan struct{})
	var tail []string
	go func() {
		defer close(held)
		tail = o.tail(at{"web", 1})
		_, _, closeFD, err := o.open(at{"web", 2}, testSpec("web"), -1, -1)
		if err != nil {
			t.Error(err)
			return
		}
		closeFD()
		o.end(at{"web", 2})
		o.end(at{"web", 1})
	}()
	select {
	case <-held:
	case <-time.After(30 * time.Second):
		t.Fatal("held up by a log that nobody reads")
	}
	if n := len(tail); n != tailLines || tail[n-1] != "last, without an end" || tail[0] != "more" {
		t.Errorf("the last lines are %q", tail)
	}
	close(w.free)
	done()
	if got, want := w.String(), "web.1 | first\n"+strings.Repeat("web.1 | more\n", 100)+"web.1 | last, without an end\n"; got != want {
		t.Errorf("passed on: %q, want %q", got, want)
	}
	if left, _ := os.ReadDir(filepath.Join(o.dir.path, "log")); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// What is far behind is given up, its blocks are given back, and both are said.
func TestOutputFarBehind(t *testing.T) {
	o, w, fd, done := followedFile(t)
	writeAll(t, fd, "first\n")
	<-w.begun
	const size = maxBacklog + 8<<20
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		t.Fatal(err)
	}
	writeAll(t, fd, "\nlast\n")
	close(w.free)
	path := filepath.Join(o.dir.path, "log", "web.1")
	for begin := time.Now(); ; {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Blocks*512 < 1<<20 {
			break
		}
		if time.Since(begin) > 30*time.Second {
			t.Fatalf("%s uses %d bytes", path, st.Blocks*512)
		}
		writeAll(t, fd, ".") // a look at the file
	}
	writeAll(t, fd, "\n")
	done()
	got := w.String()
	if !strings.Contains(got, "bytes skipped") || !strings.Contains(got, "\nweb.1 | last\n") || !strings.HasPrefix(got, "web.1 | first\n") {
		t.Errorf("passed on: %d bytes, %q ... %q", len(got), got[:min(100, len(got))], got[max(0, len(got)-100):])
	}
}

// A line that is longer than what is read at once, and a file that is emptied.
func TestOutputLines(t *testing.T) {
	o, w, fd, done := followedFile(t)
	close(w.free)
	long := strings.Repeat("x", 3*maxLine+7)
	writeAll(t, fd, "a\n\n"+long+"\nz")
	o.end(at{"web", 1})
	done()
	var want strings.Builder
	for _, l := range []string{"a", "", long[:maxLine], long[:maxLine], long[:maxLine], long[:7], "z"} {
		fmt.Fprintf(&want, "web.1 | %s\n", l)
	}
	if got := w.String(); got != want.String() {
		t.Errorf("passed on: %d bytes, want %d", len(got), want.Len())
	}
}
