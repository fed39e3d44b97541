package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/fdleak"
)

// serving runs a keeper in this process and returns its directory and an open file that has the lock. The keeper ends
// by itself, when its client is gone and it holds nothing; the test fails if it does not.
func serving(t *testing.T) (dir string, lock *os.File, over <-chan error) {
	t.Helper()
	fdleak.Snapshot(t)
	dir = t.TempDir()
	lock, err := Claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Close() })
	fd, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Serve(fd, dir) }() // waited for by ended
	return dir, lock, done
}

func ended(t *testing.T, over <-chan error) {
	t.Helper()
	select {
	case err := <-over:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the keeper holds nothing for nobody and has not ended")
	}
}

func number(t *testing.T, f *os.File) (n int) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { n = int(fd) })
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func dial(t *testing.T, dir string, lock *os.File) *Client {
	t.Helper()
	c, err := Dial(dir, number(t, lock))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pipes returns the write end of a pipe, and its read end as a number that the caller closes.
func pipes(t *testing.T) (w *os.File, r int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	w = os.NewFile(uintptr(p[1]), "pipe")
	t.Cleanup(func() { _ = w.Close() })
	return w, p[0]
}

func readAll(t *testing.T, fd int) string {
	t.Helper()
	var b bytes.Buffer
	f := os.NewFile(uintptr(fd), "pipe")
	if _, err := io.Copy(&b, f); err != nil {
		t.Error(err)
	}
	_ = f.Close()
	return b.String()
}

// TestKeptOverADeath: what was sent is kept though its sender closes everything at once, and what is written into it
// meanwhile is there for the next one.
func TestKeptOverADeath(t *testing.T) {
	dir, lock, over := serving(t)
	c := dial(t, dir, lock)
	w, r := pipes(t)
	_, dropped := pipes(t)
	if err := c.Keep([]Item{{"one", r}, {"two", dropped}}); err != nil {
		t.Fatal(err)
	}
	if err := c.Drop([]string{"two", "never there"}); err != nil {
		t.Fatal(err)
	}
	_, _, _ = unix.Close(r), unix.Close(dropped), c.Close()
	if _, err := w.WriteString("said to nobody"); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()

	next := dial(t, dir, lock)
	held, err := next.TakeAll(20 * time.Second)
	if err != nil || len(held) != 1 {
		t.Fatalf("taken: %v, %v", held, err)
	}
	if next.PID() != os.Getpid() {
		t.Errorf("the keeper is process %d, want %d", next.PID(), os.Getpid())
	}
	if got := readAll(t, held["one"]); got != "said to nobody" {
		t.Errorf("read %q", got)
	}
	if err := next.Drop([]string{"one"}); err != nil {
		t.Fatal(err)
	}
	_ = next.Close()
	ended(t, over)
}

// TestManyAreKept: more than fit one packet, by number and by the length of their names.
func TestManyAreKept(t *testing.T) {
	dir, lock, over := serving(t)
	c := dial(t, dir, lock)
	_, r := pipes(t)
	defer func() { _ = unix.Close(r) }()
	const many = 600
	items, names := make([]Item, many), make([]string, many)
	for i := range items {
		names[i] = fmt.Sprintf("%03d/%s", i, strings.Repeat("\u00e9\"", i%200))
		items[i] = Item{names[i], r}
	}
	if err := c.Keep(items); err != nil {
		t.Fatal(err)
	}
	held, err := c.TakeAll(20 * time.Second)
	if err != nil || len(held) != many {
		t.Fatalf("taken: %d, %v", len(held), err)
	}
	for _, name := range names {
		if fd, ok := held[name]; !ok || unix.Close(fd) != nil {
			t.Errorf("not taken: %q", name)
		}
	}
	if err := c.Drop(names); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	ended(t, over)
}

// TestOnlyWithTheLock: another open file of the lock, or another file, gets nothing and learns nothing.
func TestOnlyWithTheLock(t *testing.T) {
	dir, lock, over := serving(t)
	c := dial(t, dir, lock)
	_, r := pipes(t)
	if err := c.Keep([]Item{{"one", r}}); err != nil {
		t.Fatal(err)
	}
	_, _ = unix.Close(r), c.Close()
	again, err := os.Open(filepath.Join(dir, LockName))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	other, err := os.Create(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	for _, f := range []*os.File{again, other} {
		c := dial(t, dir, f)
		held, err := c.TakeAll(20 * time.Second)
		// The connection may be ended before take is sent.
		if err == nil || len(held) > 0 || !strings.Contains(err.Error(), "does not have the lock") && !errors.Is(err, unix.EPIPE) {
			t.Errorf("with %s: taken %v, %v", f.Name(), held, err)
		}
		_ = c.Close()
	}
	c = dial(t, dir, lock)
	held, err := c.TakeAll(20 * time.Second)
	if err != nil || len(held) != 1 {
		t.Errorf("with the lock: taken %v, %v", held, err)
	}
	for _, fd := range held {
		_ = unix.Close(fd)
	}
	if err := c.Drop([]string{"one"}); err != nil {
		t.Error(err)
	}
	_ = c.Close()
	ended(t, over)
}

// TestClaimedAnew: who claims the directory after another is believed, and the other no more, though it still has its lock.
func TestClaimedAnew(t *testing.T) {
	dir, old, over := serving(t)
	lock, err := Claim(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	c := dial(t, dir, old)
	if held, err := c.TakeAll(20 * time.Second); err == nil {
		t.Errorf("with the claim of before: %v", held)
	}
	_ = c.Close()
	ended(t, over) // it has held nothing
}

// TestLockIsNotHeldOn: the copy of the lock that a client sent does not keep it when the client is gone.
func TestLockIsNotHeldOn(t *testing.T) {
	dir, lock, over := serving(t)
	c := dial(t, dir, lock)
	held, err := c.TakeAll(20 * time.Second)
	if err != nil || len(held) > 0 {
		t.Fatalf("taken: %v, %v", held, err)
	}
	_ = lock.Close()
	next, err := os.Open(filepath.Join(dir, LockName))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = next.Close() }()
	if err := unix.Flock(number(t, next), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("the lock after its owner is gone: %v", err)
	}
	_ = c.Close()
	ended(t, over)
}

// TestNonsense: a client that does not speak the protocol is told so and ended; what is held stays held.
func TestNonsense(t *testing.T) {
	dir, lock, over := serving(t)
	c := dial(t, dir, lock)
	_, r := pipes(t)
	if err := c.Keep([]Item{{"one", r}}); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(r)
	if err := c.send(message{Verb: "dance"}, nil); err != nil {
		t.Fatal(err)
	}
	complaint, err := c.Wait()
	if err != nil || !strings.Contains(complaint, `verb "dance"`) {
		t.Errorf("complaint %q, %v", complaint, err)
	}
	if _, err := c.Wait(); !errors.Is(err, io.EOF) {
		t.Errorf("after it: %v, want EOF", err)
	}
	_ = c.Close()
	c = dial(t, dir, lock)
	held, err := c.TakeAll(20 * time.Second)
	if err != nil || len(held) != 1 {
		t.Fatalf("taken: %v, %v", held, err)
	}
	_ = unix.Close(held["one"])
	if err := c.Drop([]string{"one"}); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	ended(t, over)
}

// TestNobodyThere: a keeper that is gone is an error at once, also where its socket's file is left.
func TestNobodyThere(t *testing.T) {
	fdleak.Snapshot(t)
	dir := t.TempDir()
	if _, err := Dial(dir, 0); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no socket: %v", err)
	}
	fd, err := Listen(dir)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	if _, err := Dial(dir, 0); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("left socket: %v", err)
	}
	if err := errors.Join(Remove(dir), Remove(dir)); err != nil {
		t.Error(err)
	}
}
