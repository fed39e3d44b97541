//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// built is a directory with the two programs.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "worker-test")
	if err != nil {
		return "", err
	}
	for _, args := range [][]string{
		{"build", "-o", filepath.Join(dir, "worker"), "."},
		{"build", "-C", "../..", "-o", filepath.Join(dir, "handoverd"), "./cmd/handoverd"},
	} {
		cmd := exec.Command("go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, errors.Join(err, errors.New(string(out)))
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, _ := built(); dir != "" {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// binary is the path of one of the two programs.
func binary(t *testing.T, name string) string {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// A process is one that the test has started.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	wait func() error
}

// newLog is a file for what processes write, shown if the test fails. No pipe: os/exec would wait for its end, and a
// worker hands it on to the next one.
func newLog(t *testing.T) *os.File {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the last of what was written:\n%s", text[max(0, len(text)-20_000):])
		}
	})
	return log
}

// start starts a program that ends with the test.
func start(t *testing.T, log *os.File, name string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: cmd, wait: sync.OnceValue(cmd.Wait)}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = p.wait()
	})
	return p
}

// exit waits for the end, and returns the exit code.
func (p *process) exit() int {
	p.t.Helper()
	var failed *exec.ExitError
	if err := p.wait(); err != nil && !errors.As(err, &failed) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

// A daemon is a handoverd that runs the workers a and b.
type daemon struct {
	*process
	program, config string
}

// startDaemon starts it, and waits until all services serve.
func startDaemon(t *testing.T, log *os.File, services string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &daemon{program: binary(t, "handoverd"), config: filepath.Join(dir, "handoverd.toml")}
	if err := os.WriteFile(d.config, []byte("runtime_dir = \""+dir+"\"\n"+services), 0o600); err != nil {
		t.Fatal(err)
	}
	d.process = start(t, log, d.program, "run", "-c", d.config)
	waitReady(t, d.program, d.config, "")
	return d
}

// waitReady waits until the handoverd of a configuration says that it is ready.
func waitReady(t *testing.T, program, config, dir string) {
	t.Helper()
	eventually(t, "handoverd is ready", func() bool {
		cmd := exec.Command(program, "status", "--json", "-c", config)
		cmd.Dir = dir
		out, err := cmd.Output()
		var status struct{ Ready bool }
		return err == nil && json.Unmarshal(out, &status) == nil && status.Ready
	})
}

// do runs a command of handoverd, which must succeed.
func (d *daemon) do(verb string) {
	d.t.Helper()
	if out, err := exec.Command(d.program, verb, "-c", d.config).CombinedOutput(); err != nil {
		d.t.Errorf("handoverd %s: %v\n%s", verb, err, out)
	}
}

// A watched process is one that somebody else has started.
type watched struct {
	name string // application_name of its sessions: NAME.PID
	pid  int
	fd   int
}

func watch(t *testing.T, name string, pid int) watched {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("pidfd_open %s: %v", name, err)
	}
	return watched{name: name, pid: pid, fd: fd}
}

// gone waits until the process has ended.
func (w watched) gone(t *testing.T) {
	t.Helper()
	defer func() { _ = unix.Close(w.fd) }()
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, int(patience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			t.Fatalf("%s has not ended: %v", w.name, err)
		}
		return
	}
}
