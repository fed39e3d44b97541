//go:build linux

package main

import (
	"context"
	"errors"
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
	goOn(t, begin, answer)
}

// TestDrillExecHangs: the shell of a command that does not end is killed, and said to be; the server that it has started is not.
func TestDrillExecHangs(t *testing.T) {
	begin, answer := fifo(t, os.O_RDWR), fifo(t, os.O_RDWR)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	trigger := &execTrigger{command: "echo stuck; (read go <" + begin.Name() + "; echo alive >" + answer.Name() + ") & wait; echo over >" + answer.Name()}
	_, err := trigger.fire(ctx)
	if err == nil || !strings.Contains(err.Error(), "did not end") || !strings.HasSuffix(err.Error(), "stuck") {
		t.Errorf("fire: %v", err)
	}
	goOn(t, begin, answer)
}

// TestDrillExecInterrupted: an interruption is not waited out, and leaves no service stopped in the middle of its restart.
func TestDrillExecInterrupted(t *testing.T) {
	begin, answer := fifo(t, os.O_RDWR), fifo(t, os.O_RDWR)
	ctx, cancel := context.WithCancel(t.Context())
	trigger := &execTrigger{command: "echo stopped >" + answer.Name() + "; read go <" + begin.Name() + "; echo alive >" + answer.Name()}
	fired := make(chan error, 1)
	go func() {
		_, err := trigger.fire(ctx)
		fired <- err
	}()
	got := make([]byte, len("stopped\n"))
	if _, err := io.ReadFull(answer, got); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-fired; !errors.Is(err, context.Canceled) {
		t.Errorf("fire: %v", err)
	}
	goOn(t, begin, answer)
}

// goOn lets what waits for begin answer.
func goOn(t *testing.T, begin, answer *os.File) {
	t.Helper()
	if _, err := begin.WriteString("go\n"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len("alive\n"))
	if _, err := io.ReadFull(answer, got); err != nil || string(got) != "alive\n" {
		t.Errorf("it said %q, %v: it is dead", got, err)
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
