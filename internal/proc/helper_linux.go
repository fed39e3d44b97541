package proc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// LookHelper is the whole life of a helper process: it reads one request from descriptor 0, looks, and writes the
// answer to descriptor 1. The caller exits afterwards, with failure if there is an error.
func LookHelper() error {
	var req lookRequest
	if err := json.NewDecoder(os.Stdin).Decode(&req); err != nil {
		return fmt.Errorf("look helper: request: %w", err)
	}
	looker := Looker{Deep: req.Deep}
	var answer lookAnswer
	sight, err := looker.Look(req.PIDs, req.Inodes)
	if err != nil {
		answer.Error = err.Error()
	}
	answer.Sight = sight
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		return fmt.Errorf("look helper: answer: %w", err)
	}
	return nil
}

// Look does what Looker.Look does, as the Helper's user. It waits for the answer, at most Timeout, and ends the helper.
func (h *Helper) Look(pids []int, inodes []uint64) (Sight, error) {
	var answer lookAnswer
	if err := h.ask(lookRequest{PIDs: pids, Inodes: inodes, Deep: h.Deep}, &answer); err != nil {
		return Sight{}, fmt.Errorf("look as user %d: %w", h.UID, err)
	}
	if answer.Error != "" {
		return Sight{}, fmt.Errorf("look as user %d: %s", h.UID, answer.Error)
	}
	return answer.Sight, nil
}

func (h *Helper) ask(req lookRequest, answer *lookAnswer) error {
	theirIn, in, err := pipe(true)
	if err != nil {
		return err
	}
	defer in.Close()
	theirOut, out, err := pipe(false)
	if err != nil {
		return errors.Join(err, unix.Close(theirIn))
	}
	defer out.Close()
	timeout := h.Timeout
	if timeout == 0 {
		timeout = helperTimeout
	}
	deadline := time.Now().Add(timeout)
	err = errors.Join(in.SetDeadline(deadline), out.SetDeadline(deadline))
	if err != nil {
		return errors.Join(err, unix.Close(theirIn), unix.Close(theirOut))
	}
	wait, kill, err := h.start(theirIn, theirOut)
	// The helper has its own copies; with ours open, its end would not be seen here.
	unix.Close(theirIn)
	unix.Close(theirOut)
	if err != nil {
		return err
	}
	err = converse(in, out, req, answer)
	// An answer is complete or it is none, so nothing is left to wait for but the end. That of a helper that has
	// ended by itself is not changed by the signal.
	kill()
	if exit := wait(); err != nil {
		return fmt.Errorf("%w (wait status %#x)", err, uint32(exit.Status))
	}
	return nil
}

// pipe returns a pipe's end for the child, a raw blocking descriptor, and our end, which takes deadlines. Ours is
// the one to write to if write. Both are close-on-exec and owned by the caller.
func pipe(write bool) (theirs int, ours *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, os.NewSyscallError("pipe2", err)
	}
	theirs, mine := p[1], p[0]
	if write {
		theirs, mine = p[0], p[1]
	}
	if err := unix.SetNonblock(mine, true); err != nil {
		return -1, nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(theirs), unix.Close(mine))
	}
	return theirs, os.NewFile(uintptr(mine), "helper pipe"), nil
}

func converse(in, out *os.File, req lookRequest, answer *lookAnswer) error {
	if err := json.NewEncoder(in).Encode(req); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if err := in.Close(); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if err := json.NewDecoder(out).Decode(answer); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

// start runs the helper program. wait waits for its end and has to be called once; kill ends it at once. It borrows
// the two descriptors.
func (h *Helper) start(in, out int) (wait func() Exit, kill func(), err error) {
	path := h.Path
	if path == "" {
		path = "/proc/self/exe"
	}
	env := h.Env
	if env == nil {
		env = []string{}
	}
	attr := &syscall.SysProcAttr{Setsid: true}
	if int(h.UID) != os.Geteuid() || int(h.GID) != os.Getegid() {
		attr.Credential = &syscall.Credential{Uid: h.UID, Gid: h.GID, Groups: h.Groups}
	}
	fork := func() (int, error) {
		files := []uintptr{uintptr(in), uintptr(out), 2}
		return syscall.ForkExec(path, h.Args, &syscall.ProcAttr{Dir: "/", Env: env, Files: files, Sys: attr})
	}
	if h.Reaper != nil {
		// Not released before its end was reported, so kill cannot hit a stranger.
		ended := make(chan Exit, 1)
		pid, err := h.Reaper.Start(fork, func(e Exit) { ended <- e })
		if err != nil {
			return nil, nil, os.NewSyscallError("fork/exec", err)
		}
		wait = func() Exit {
			exit := <-ended
			// Held until here, so it is known to the Reaper.
			_ = h.Reaper.Release(pid)
			return exit
		}
		return wait, func() { _ = unix.Kill(pid, unix.SIGKILL) }, nil
	}
	pid, err := fork()
	if err != nil {
		return nil, nil, os.NewSyscallError("fork/exec", err)
	}
	wait = func() Exit {
		exit := Exit{PID: pid}
		for {
			_, exit.Err = unix.Wait4(pid, &exit.Status, 0, nil)
			if exit.Err != unix.EINTR {
				return exit
			}
		}
	}
	return wait, func() { _ = unix.Kill(pid, unix.SIGKILL) }, nil
}
