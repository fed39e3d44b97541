package supervisor

import (
	"context"
	"errors"
	"fmt"
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

// runBeside runs such a program to its end, and ends it and all that it started at
// the limit or when ctx ends. It returns what it has written; the error is nil only
// for exit status 0. It is called beside the loop, from a goroutine that Run waits
// for; fds are borrowed.
func (l *loop) runBeside(ctx context.Context, sh *shim.Spec, fds []int, token string, limit time.Duration) (text []byte, err error) {
	out, err := os.CreateTemp(filepath.Join(l.dir.path, "log"), ".beside-*")
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = os.Remove(out.Name()), out.Close() }()
	fd, closeFD, err := rawAppend(out.Name(), -1, -1)
	if err != nil {
		return nil, err
	}
	defer closeFD()
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
	var exit proc.Exit
	select {
	case exit = <-done:
	case <-ctx.Done():
		_, _ = proc.KillMembers(pid, token, sigKillNumber)
		exit = <-done
		execErr = fmt.Errorf("killed after %v: %w", limit, ctx.Err())
	}
	endBeside(pid, token)
	_ = l.reaper.Release(pid)
	text, _ = os.ReadFile(out.Name())
	switch {
	case execErr != nil:
		return text, execErr
	case exit.Status.Exited() && exit.Status.ExitStatus() == 0:
		return text, nil
	}
	return text, errors.New(describeStatus(uint32(exit.Status)))
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
