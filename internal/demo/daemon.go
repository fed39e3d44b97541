package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// handoverd is what "make build" makes.
const handoverd = "bin/handoverd"

// daemon is the handoverd of the demo, which it started and ends.
type daemon struct {
	cmd        *exec.Cmd
	runtime    string
	address    string
	server     string
	current    string // the symlink that the command goes through
	generation int
	log        *bytes.Buffer
	exited     chan error
	once       sync.Once
}

func build(ctx context.Context, out, pkg string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, pkg)
	cmd.Env = buildEnv()
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

func start(ctx context.Context, dir, server string) (*daemon, error) {
	address, err := freePort()
	if err != nil {
		return nil, err
	}
	d := &daemon{
		runtime: filepath.Join(dir, "run"), address: address, server: server,
		current: filepath.Join(dir, "current"), log: &bytes.Buffer{}, exited: make(chan error, 1),
	}
	if err := d.deploy(server); err != nil {
		return nil, err
	}
	// The path is pinned through the directory's symlinks only, so the release
	// is a directory, as in a real deploy.
	d.cmd = exec.Command(handoverd, "run", "--runtime-dir", d.runtime, "-l", "http="+address, "--", d.current+"/server")
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	go d.wait() // stop and end wait for it
	if err := d.ready(ctx); err != nil {
		d.end()
		return nil, fmt.Errorf("%w\n%s", err, d.log)
	}
	d.generation = 1
	return d, nil
}

// wait ends when handoverd does; end and stop read its result.
func (d *daemon) wait() { d.exited <- d.cmd.Wait() }

// freePort finds a port that nobody has at the moment.
func freePort() (string, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// deploy makes current a release directory with the program in it.
func (d *daemon) deploy(program string) error {
	release, err := os.MkdirTemp(filepath.Dir(d.current), "release-")
	if err != nil {
		return err
	}
	if err := os.Symlink(program, filepath.Join(release, "server")); err != nil {
		return err
	}
	next := d.current + ".next"
	if err := os.Symlink(release, next); err != nil {
		return err
	}
	return os.Rename(next, d.current)
}

// ready waits until the first generation serves.
func (d *daemon) ready(ctx context.Context) error {
	return d.until(ctx, func(st *status) bool { return st.Ready })
}

// until waits until the status is as wanted.
func (d *daemon) until(ctx context.Context, wanted func(*status) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if st, err := d.status(ctx); err == nil && wanted(st) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("handoverd is not ready in time")
		case err := <-d.exited:
			d.exited <- err
			return fmt.Errorf("handoverd ended: %w", err)
		case <-tick.C:
		}
	}
}

// status is the part of handoverd status --json that the demo looks at.
type status struct {
	Ready    bool
	Services []struct {
		Generations []struct {
			PID   int
			Phase string
		}
	}
}

func (d *daemon) status(ctx context.Context) (*status, error) {
	out, err := d.command(ctx, "status", "--json").Output()
	if err != nil {
		return nil, err
	}
	var st status
	return &st, json.Unmarshal(out, &st)
}

// command is a handoverd that talks to the running one.
func (d *daemon) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, handoverd, append(args, "--runtime-dir", d.runtime)...)
}

// serving waits until a generation has been committed and returns its pid.
func (d *daemon) serving(ctx context.Context) (pid int, err error) {
	err = d.until(ctx, func(st *status) bool {
		for _, g := range st.Services[0].Generations {
			if g.Phase == "serving" {
				pid = g.PID
			}
		}
		return pid != 0
	})
	return pid, err
}

func (d *daemon) hangUp() error { return d.cmd.Process.Signal(unix.SIGHUP) }

// reloadFails reloads by the command, which waits for the outcome: 1 is failed.
func (d *daemon) reloadFails(ctx context.Context) error {
	out, err := d.command(ctx, "reload").CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return nil
	}
	return fmt.Errorf("reload of a broken release: %w\n%s", err, out)
}

func (d *daemon) stop() error {
	if err := d.cmd.Process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	err := <-d.exited
	d.exited <- err
	return err
}

// end ends handoverd whatever happened; it ends what it started.
func (d *daemon) end() {
	d.once.Do(func() {
		_ = d.cmd.Process.Signal(unix.SIGTERM)
		select {
		case <-d.exited:
		case <-time.After(40 * time.Second):
			_ = d.cmd.Process.Kill()
		}
	})
}
