package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/handoverd/handover/internal/proc"
	"github.com/handoverd/handover/internal/shim"
)

// besideSpec is what a program of the service becomes that is not its main one: a
// check, a probe, a gate. It runs as the service's user, in its directory, with
// its environment, and is given n descriptors of h; it has no control socket and
// no notify socket, which are the main program's.
func besideSpec(spec *Spec, argv []string, h *handout, n int) (*shim.Spec, error) {
	path, err := executable(argv[0], spec.Dir, spec.Env)
	if err != nil {
		return nil, err
	}
	c := *spec
	c.Path, c.Config.Command = path, argv
	h.controlFD = -1
	sh, err := shimSpec(&c, h, n)
	if err != nil {
		return nil, err
	}
	sh.Env = slices.DeleteFunc(sh.Env, func(e string) bool {
		return strings.HasPrefix(e, "NOTIFY_SOCKET=") || strings.HasPrefix(e, "HANDOVER_FD=")
	})
	return sh, nil
}

// besidePrefix begins the names of the files for their output, below those of generations.
const besidePrefix = ".beside-"

// besideVariable is in the environment of such a program and of all that it starts. The state does not know them, and
// when handoverd is killed they run on: the next one ends what has it, since it begins itself what is still wanted.
const besideVariable = "HANDOVER_BESIDE"

// besides are the processes that were started so by a handoverd that had the runtime directory.
func besides(dir *runtimeDir) []int {
	pids, err := proc.WithVariable(besideVariable + "=" + dir.file("log", besidePrefix))
	if err != nil {
		return nil
	}
	return pids
}

// runBeside runs such a program to its end, and ends it and all that it started at
// the limit or when ctx ends. It returns the end of what it has written; the error is
// nil only for exit status 0. It is called beside the loop, from a goroutine that Run waits
// for; fds are borrowed.
func (l *loop) runBeside(ctx context.Context, sh *shim.Spec, fds []int, token string, limit time.Duration) (text []byte, err error) {
	out, err := os.CreateTemp(filepath.Join(l.dir.path, "log"), besidePrefix+"*")
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = os.Remove(out.Name()), out.Close() }()
	sh.Env = setenv(sh.Env, besideVariable, out.Name())
	fd, closeFD, err := rawAppend(out.Name(), -1, -1)
	if err != nil {
		return nil, err
	}
	defer closeFD()
	filesAsAtStart(sh)
	done := make(chan proc.Exit, 1)
	var child *shim.Process
	pid, err := l.reaper.Start(func() (int, error) {
		var startErr error
		l.thread.Do(func() { child, startErr = shim.Start(sh, fds, fd, fd) })
		if startErr != nil {
			return 0, startErr
		}
		return child.PID, nil
	}, func(e proc.Exit) { done <- e })
	if err != nil {
		return nil, err
	}
	defer func() { _ = child.Close() }()
	execErr := child.Go()
	if execErr == nil {
		execErr = child.Result()
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	written := besideOutput{f: out}
	trim := time.NewTicker(trimEvery)
	defer trim.Stop()
	var exit proc.Exit
	for running := true; running; {
		select {
		case exit = <-done:
			running = false
		case <-trim.C:
			written.trim()
		case <-ctx.Done():
			_, _ = proc.KillMembers(pid, token, sigKillNumber)
			exit = <-done
			execErr = fmt.Errorf("killed after %v: %w", limit, ctx.Err())
			running = false
		}
	}
	endBeside(pid, token)
	_ = l.reaper.Release(pid)
	text = written.tail()
	switch {
	case errors.Is(execErr, shim.ErrDied):
		return text, shimDied(describeStatus(uint32(exit.Status)), strings.Split(string(text), "\n"))
	case execErr != nil:
		return text, execErr
	case exit.Status.Exited() && exit.Status.ExitStatus() == 0:
		return text, nil
	}
	return text, errors.New(describeStatus(uint32(exit.Status)))
}

const (
	// besideKept is how much of the end of what such a program writes is kept, in bytes.
	besideKept = 64 << 10
	// trimEvery is how often the rest is given back.
	trimEvery = 200 * time.Millisecond
)

// besideOutput is the file that such a program writes to. It lies in the runtime
// directory, which is memory on most machines, and one that hangs may write without
// end: it must not take the room that the state needs.
type besideOutput struct {
	f       *os.File
	punched int64
}

// trim gives the blocks back that will not be read.
func (o *besideOutput) trim() {
	info, err := o.f.Stat()
	if err != nil {
		return
	}
	if end := (info.Size() - besideKept) &^ 4095; end-o.punched >= punchStep {
		if err := punch(o.f, o.punched, end-o.punched); err == nil {
			o.punched = end
		}
	}
}

// tail is the end of what was written; what cannot be read is missed in a message only.
func (o *besideOutput) tail() []byte {
	info, err := o.f.Stat()
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(io.NewSectionReader(o.f, max(0, info.Size()-besideKept), besideKept))
	return text
}

// endBeside ends what such a program has left behind, until two passes find
// nothing: a process may fork while it is looked for. What the kernel has not ended
// after stuckAfter holds up nobody.
func endBeside(pid int, token string) {
	pause := time.NewTicker(sweepShortest)
	defer pause.Stop()
	begin := proc.Now()
	for empty := 0; empty < 2 && proc.Now() < begin.Add(stuckAfter); {
		if left, err := proc.KillMembers(pid, token, sigKillNumber); left == 0 && err == nil {
			empty++
			continue
		}
		empty = 0
		<-pause.C
	}
}
