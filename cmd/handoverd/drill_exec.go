package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// outputKept is what is shown of the output of an --exec that failed, in bytes.
const outputKept = 2000

// execTrigger runs a command.
type execTrigger struct {
	command string
	window  time.Duration
}

func (t *execTrigger) name() string { return t.command }
func (t *execTrigger) kind() string { return triggerReload }

func (t *execTrigger) fire(ctx context.Context) (firing, error) {
	output, err := nameless()
	if err != nil {
		return firing{}, fmt.Errorf("%s: %w", t.command, err)
	}
	defer output.Close()
	cmd := exec.Command("/bin/sh", "-c", t.command)
	// A file and no pipe: the command may leave a daemon behind, the very server under load, which keeps its output open.
	// Nobody has to wait for that, and the end of a reader would kill it (SIGPIPE).
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return firing{}, fmt.Errorf("%s: %w", t.command, err)
	}
	ended := make(chan error, 1)
	go reap(cmd, ended) // waited for below, but after an interruption: then it ends with the command, or with this process
	var failed error
	select {
	case failed = <-ended:
	case <-ctx.Done():
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return firing{}, ctx.Err() // it goes on: what it has stopped it may be about to start again
		}
		// The shell alone: what it has started may be the server.
		_ = cmd.Process.Kill() // it may have ended by itself
		<-ended
		failed = fmt.Errorf("it did not end, and its shell was killed: %w", ctx.Err())
	}
	f := firing{done: time.Now()}
	if err := drill.Pause(ctx, t.window); failed == nil {
		return f, err
	}
	return firing{}, fmt.Errorf("%s: %w: %s", t.command, failed, strings.TrimSpace(tail(output)))
}

// nameless is a file that is gone when nobody has it open any more.
func nameless() (*os.File, error) {
	f, err := os.CreateTemp("", "handoverd-drill-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close() // it holds nothing
		return nil, err
	}
	return f, nil
}

// tail is the end of a file; what cannot be read is missed in a message only.
func tail(f *os.File) string {
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	text, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-outputKept), outputKept))
	return string(text)
}
