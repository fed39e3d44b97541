package shim

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A shim started by these tests is this test binary; the package's own init has
// dispatched it long before. The call shows that a second one is harmless.
func init() { Init() }

const helperEnv = "SHIM_TEST_HELPER"

func TestMain(m *testing.M) {
	if do, ok := helpers[os.Getenv(helperEnv)]; ok {
		if err := do(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// helpers are programs that a test starts through the shim: this binary again.
var helpers = map[string]func() error{
	"regain":  tryRegain,
	"nonroot": startAsOther,
	"echo":    echoSizes,
	"orphan":  leaveOrphan,
}

func tryRegain() error {
	for what, err := range map[string]error{
		"setuid":    syscall.Setuid(0),
		"setgid":    syscall.Setgid(0),
		"setgroups": syscall.Setgroups([]int{0}),
	} {
		if !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("%s: %w, want EPERM", what, err)
		}
	}
	fmt.Printf("uid %d gid %d\n", os.Getuid(), os.Getgid())
	return nil
}

// startAsOther runs as a plain user and wants to become another, then itself.
func startAsOther() error {
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	other := uid - 1
	for _, s := range []*Spec{
		{Path: "/bin/true", Argv: []string{"true"}, UID: &other, GID: &gid},
		{Path: "/bin/true", Argv: []string{"true"}, UID: &uid, GID: &gid},
	} {
		p, err := Start(s, nil, -1, 2)
		if err != nil {
			return err
		}
		fmt.Println(p.Result0(p.Go()))
		if _, err := wait(p.PID); err != nil {
			return err
		}
		if err := p.Close(); err != nil {
			return err
		}
	}
	return nil
}

// leaveOrphan dies between Start and Go, as a killed handoverd would.
func leaveOrphan() error {
	_, err := Start(&Spec{Path: "/bin/echo", Argv: []string{"echo", "the program ran"}}, nil, 1, 2)
	fmt.Println("started", err)
	return err
}

// Result0 is Result, or what Go already knew.
func (p *Process) Result0(err error) error {
	if err != nil {
		return err
	}
	return p.Result()
}

func echoSizes() error {
	n := 0
	for _, s := range append(os.Environ(), os.Args...) {
		n += len(s)
	}
	fmt.Println(len(os.Args), len(os.Environ()), n, strconv.QuoteToASCII(os.Getenv("BYTES")))
	return nil
}

// program is one started through the shim, with its output on a pipe.
type program struct {
	*Process
	t   *testing.T
	out *bufio.Reader
}

// start runs the spec with its standard output and error on a pipe. What is
// left of it is killed, by its pid, and reaped at the end of the test.
func startProgram(t *testing.T, s *Spec, fds []int) *program {
	t.Helper()
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	r := os.NewFile(uintptr(pipe[0]), "output")
	p, err := Start(s, fds, pipe[1], pipe[1])
	_ = unix.Close(pipe[1])
	if err != nil {
		_ = r.Close()
		t.Fatal(err)
	}
	prog := &program{Process: p, t: t, out: bufio.NewReader(r)}
	t.Cleanup(func() {
		_ = r.Close()
		_ = unix.Kill(p.PID, unix.SIGKILL)
		_, _ = wait(p.PID)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return prog
}

// run starts a spec to the end of its exec.
func run(t *testing.T, s *Spec, fds []int) *program {
	t.Helper()
	p := startProgram(t, s, fds)
	if err := p.Result0(p.Go()); err != nil {
		t.Fatal(err)
	}
	return p
}

// held is a shell that says ready and stops: everything about it can be looked
// at, and it opens nothing meanwhile.
func held() *Spec {
	return &Spec{
		Path: "/bin/sh",
		Argv: []string{"sh", "-c", "echo ready; kill -STOP $$"},
		Env:  []string{"PATH=/usr/bin:/bin"},
	}
}

func runHeld(t *testing.T, s *Spec, fds []int) *program {
	t.Helper()
	p := run(t, s, fds)
	if line := p.line(); line != "ready" {
		t.Fatalf("output %q", line)
	}
	return p
}

func helper(name string) *Spec {
	return &Spec{Path: "/proc/self/exe", Argv: []string{"helper"}, Env: []string{helperEnv + "=" + name}, Dir: "/"}
}

func (p *program) line() string {
	p.t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("%q, %v", s, err)
	}
	return strings.TrimSuffix(s, "\n")
}

func (p *program) proc(name string) string {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.PID, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

// status is a field of /proc/PID/status, blanks made single.
func (p *program) status(field string) string {
	p.t.Helper()
	for line := range strings.Lines(p.proc("status")) {
		if name, value, ok := strings.Cut(line, ":"); ok && name == field {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	p.t.Fatalf("no %s in status", field)
	return ""
}

func (p *program) limit(name string) string {
	p.t.Helper()
	for line := range strings.Lines(p.proc("limits")) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.Join(strings.Fields(rest), " ")
		}
	}
	p.t.Fatalf("no limit %q", name)
	return ""
}

func (p *program) exit() unix.WaitStatus {
	p.t.Helper()
	ws, err := wait(p.PID)
	if err != nil {
		p.t.Fatal(err)
	}
	return ws
}

// files lists the program's descriptors and what they are.
func (p *program) files() map[int]string {
	p.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", p.PID)
	entries, err := os.ReadDir(dir)
	if err != nil {
		p.t.Fatal(err)
	}
	m := make(map[int]string)
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			p.t.Fatal(err)
		}
		if m[n], err = os.Readlink(dir + e.Name()); err != nil {
			p.t.Fatal(err)
		}
	}
	return m
}

// sockets are n descriptors of this process, and what /proc calls each.
func sockets(t *testing.T, n int) (fds []int, links []string) {
	t.Helper()
	for range n {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil {
			t.Fatal(err)
		}
		fds, links = append(fds, fd), append(links, link)
	}
	return fds, links
}
