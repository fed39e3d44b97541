package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/internal/proc"
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
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", t.command)
	// A file and no pipe: the command may leave a daemon behind, the very server under load, which keeps its output open.
	// Nobody has to wait for that, and the end of a reader would kill it (SIGPIPE).
	cmd.Stdout, cmd.Stderr = output, output
	cmd.Cancel = func() error { return killTree(cmd.Process) }
	failed := cmd.Run()
	f := firing{done: time.Now()}
	if failed != nil && ctx.Err() != nil {
		failed = fmt.Errorf("it did not end, and was killed: %w", ctx.Err())
	}
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

// killTree kills a shell and what it has started and not left behind: a hung command hangs in one of those.
func killTree(p *os.Process) error {
	started, _ := proc.Descendants(p.Pid) // where that is not known the shell goes alone
	err := p.Kill()
	for _, d := range started {
		if d.PID != p.Pid {
			_ = unix.Kill(d.PID, unix.SIGKILL) // it may have ended by itself
		}
	}
	return err
}
