package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is one that the block started itself.
type process struct {
	pid  int
	over chan struct{} // closed when it has been waited for
}

// launch starts a program of the run. Nothing is handed to it but its arguments and the environment with env on top.
func (b *bench) launch(env []string, program string, args ...string) (*process, error) {
	cmd := exec.Command(b.programs[program], args...)
	cmd.Dir, cmd.Env = b.dir, append(environment(), env...)
	cmd.Stdout, cmd.Stderr = b.log, b.log
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{pid: cmd.Process.Pid, over: make(chan struct{})}
	go p.wait(cmd) // stop waits for it, where the end matters
	return p, nil
}

func (p *process) wait(cmd *exec.Cmd) {
	_ = cmd.Wait()
	close(p.over)
}

// signal sends one to the process alone.
func (p *process) signal(sig syscall.Signal) error { return unix.Kill(p.pid, sig) }

// stop sends SIGTERM and waits for the end.
func (p *process) stop(ctx context.Context) error {
	if err := p.signal(unix.SIGTERM); err != nil {
		return err
	}
	return p.ended(ctx)
}

// ended waits for the end of the process.
func (p *process) ended(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-p.over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("process %d does not end: %w", p.pid, ctx.Err())
	}
}

// command runs a program of the run to its end.
func (b *bench) command(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, b.programs[program], args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// named lists the living processes of this pid namespace that have that name, proc_pid_stat(5).
func named(name string) (pids []int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if comm, state := stat(pid); comm == name && living(state) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// alive says whether the process runs; one that is only waited for by nobody does not.
func alive(pid int) bool {
	_, state := stat(pid)
	return living(state)
}

func living(state byte) bool { return state != 0 && state != 'Z' && state != 'X' }

// stat is the name and the state of a process; 0: there is none.
func stat(pid int) (comm string, state byte) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	begin, end := bytes.IndexByte(text, '('), bytes.LastIndex(text, []byte(") "))
	if err != nil || begin < 0 || end < begin || end+2 >= len(text) {
		return "", 0
	}
	return string(text[begin+1 : end]), text[end+2]
}

// listening is the number of sockets that listen on the port, proc_net_tcp(5): state 0A.
func listening() int {
	text, _ := os.ReadFile("/proc/net/tcp")
	return bytes.Count(text, fmt.Appendf(nil, ":%04X 00000000:0000 0A ", port))
}
