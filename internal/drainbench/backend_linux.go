package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/handoverd/handover/drain"
)

// ports is a port for a server or balancer.
func ports() int { return 20_000 + rand.IntN(12_000) }

// backend is one of the two servers: it binds its own address, which is closed while it is away.
type backend struct {
	addr, name string
	exe        string
	args       []string

	cmd  *exec.Cmd
	out  *bytes.Buffer
	over chan error
}

func newBackend(exe, name string, args ...string) (*backend, error) {
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	args = append([]string{serverVerb, "-way", string(wayDrain), "-report", "-addr", addr, "-name", name}, args...)
	return &backend{addr: addr, name: name, exe: exe, args: args}, nil
}

// start returns when it accepts.
func (b *backend) start(ctx context.Context) error {
	b.cmd, b.out, b.over = exec.Command(b.exe, b.args...), &bytes.Buffer{}, make(chan error, 1)
	b.cmd.Stdout, b.cmd.Stderr = b.out, os.Stderr
	if err := b.cmd.Start(); err != nil {
		return err
	}
	// Waited for by stop, through over.
	go wait(b.cmd, b.over)
	return accepts(ctx, b.addr)
}

func wait(cmd *exec.Cmd, over chan<- error) { over <- cmd.Wait() }

// stop ends it in order and returns its own account.
func (b *backend) stop(ctx context.Context) (how string, account drain.Report, err error) {
	if err := b.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return "", account, err
	}
	select {
	case err = <-b.over:
	case <-ctx.Done():
		b.kill()
		return "", account, ctx.Err()
	}
	b.cmd = nil
	how = "exit 0"
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		how = exit.String()
	}
	if err := json.Unmarshal(b.out.Bytes(), &account); err != nil {
		return how, account, fmt.Errorf("%s ended by %s and left no account: %w", b.name, how, err)
	}
	return how, account, nil
}

// kill ends it at once, where it runs.
func (b *backend) kill() {
	if b.cmd != nil {
		_ = b.cmd.Process.Signal(syscall.SIGKILL)
		<-b.over
		b.cmd = nil
	}
}

// stopped is what one stop took.
type stopped struct {
	WaitMS   int64  `json:"wait_ms"` // in the lame duck phase
	By       string `json:"by"`
	LastMS   int64  `json:"last_ms"` // from its begin to the last new connection
	DrainMS  int64  `json:"drain_ms"`
	TookMS   int64  `json:"took_ms"`
	LostThen int    `json:"lost"` // requests that failed until the server was back
}

func milliseconds(d time.Duration) int64 { return d.Milliseconds() }

// stopOf is one line of the account.
func stopOf(r drain.Report) stopped {
	return stopped{
		WaitMS: milliseconds(r.LameDuck.After), By: r.LameDuck.By, LastMS: milliseconds(r.LameDuck.LastArrival),
		DrainMS: milliseconds(r.DrainTook), TookMS: milliseconds(r.Took),
	}
}
