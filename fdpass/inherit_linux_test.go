package fdpass_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/fdleak"
)

// helperEnv makes the test binary run as a program that inherits: its value is
// the names.
const helperEnv = "FDPASS_TEST_INHERIT"

func TestMain(m *testing.M) {
	if names := os.Getenv(helperEnv); names != "" {
		inheritHelper(strings.Split(names, ","))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// inheritHelper prints what it finds at 3 and on.
func inheritHelper(names []string) {
	set, err := fdpass.Inherited(names)
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	if _, err := fdpass.Inherited(names); err == nil {
		fmt.Println("error: a second call succeeds")
	}
	for _, name := range set.Names() {
		f, _ := set.Take(name)
		raw, err := f.SyscallConn()
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		_ = raw.Control(func(fd uintptr) {
			flags, _ := unix.FcntlInt(fd, unix.F_GETFD, 0)
			status, _ := unix.FcntlInt(fd, unix.F_GETFL, 0)
			fmt.Printf("%s cloexec=%v nonblock=%v", f.Name(), flags&unix.FD_CLOEXEC != 0, status&unix.O_NONBLOCK != 0)
		})
		if ln, err := net.FileListener(f); err == nil {
			fmt.Print(" ", ln.Addr())
			_ = ln.Close()
		}
		fmt.Println()
		_ = f.Close()
	}
}

// inherit starts the helper with fds from 3 on and returns its output.
func inherit(t *testing.T, names string, fds ...int) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	out := os.NewFile(uintptr(p[0]), "output")
	defer out.Close()
	child := []uintptr{0, uintptr(p[1]), 2}
	for _, fd := range fds {
		child = append(child, uintptr(fd))
	}
	pid, err := syscall.ForkExec(exe, []string{exe}, &syscall.ProcAttr{Env: append(os.Environ(), helperEnv+"="+names), Files: child})
	_ = unix.Close(p[1])
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := out.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			break
		}
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil || ws.ExitStatus() != 0 {
		t.Fatalf("helper: %v, status %d: %s", err, ws, b.String())
	}
	return b.String()
}

func TestInherited(t *testing.T) {
	fdleak.Snapshot(t)
	s := bind(t, "tcp://127.0.0.1:0")
	blocking := bind(t, "tcp://127.0.0.1:0?nonblocking=false")
	pipe := pipes(t, 1)
	got := inherit(t, "http,api,pipe", s.FD(), blocking.FD(), pipe[0])
	want := fmt.Sprintf("http cloexec=true nonblock=true 127.0.0.1:%d\napi cloexec=true nonblock=false 127.0.0.1:%d\npipe cloexec=true nonblock=false\n",
		s.Addr().Port, blocking.Addr().Port)
	// FileListener sets O_NONBLOCK on the blocking one, for all: that is package
	// net's doing, after what is printed.
	if got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}

// An environment that promises more than there is takes nothing that is not its own.
func TestInheritedTooFew(t *testing.T) {
	fdleak.Snapshot(t)
	s := bind(t, "tcp://127.0.0.1:0")
	got := inherit(t, "http,api,more,evenmore,andmore,last,x,y,z", s.FD())
	if !strings.HasPrefix(got, "error: fdpass: ") || !strings.Contains(got, "(api)") {
		t.Errorf("got %q", got)
	}
}
