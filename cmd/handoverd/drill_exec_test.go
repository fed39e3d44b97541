//go:build linux

package main

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fifo is a pipe with a name. A read ends after a minute.
func fifo(t *testing.T, flag int) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, flag|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestDrillExecDaemon: what the command leaves behind, such as the server itself, is not waited for, and goes on writing.
func TestDrillExecDaemon(t *testing.T) {
	begin, answer := fifo(t, os.O_RDWR), fifo(t, os.O_RDWR)
	trigger := &execTrigger{command: "(read go <" + begin.Name() + "; echo serving; echo logging >&2; echo alive >" + answer.Name() + ") &"}
	if _, err := trigger.fire(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := begin.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("alive\n"))
	if _, err := io.ReadFull(answer, got); err != nil || string(got) != "alive\n" {
		t.Errorf("the daemon said %q, %v: it is dead", got, err)
	}
}

// TestDrillExecHangs: a command that does not end is killed with what it waits for, and said to be.
func TestDrillExecHangs(t *testing.T) {
	held := fifo(t, os.O_RDONLY)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	trigger := &execTrigger{command: "exec 3>" + held.Name() + "; echo why >&3; echo stuck; sleep 1000; true"}
	_, err := trigger.fire(ctx)
	if err == nil || !strings.Contains(err.Error(), "did not end") || !strings.HasSuffix(err.Error(), "stuck") {
		t.Errorf("fire: %v", err)
	}
	if text, err := io.ReadAll(held); err != nil || string(text) != "why\n" {
		t.Errorf("%q, %v: something of the command lives", text, err)
	}
}

// TestDrillExecOutput: the end of much output is kept.
func TestDrillExecOutput(t *testing.T) {
	trigger := &execTrigger{command: "head -c 5000000 /dev/zero | tr '\\0' x; echo; echo the end; exit 3"}
	_, err := trigger.fire(t.Context())
	if err == nil || !strings.HasSuffix(err.Error(), "x\nthe end") || len(err.Error()) > 2*outputKept {
		t.Errorf("fire: %.100v", err)
	}
}
