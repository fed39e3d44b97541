package proc

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// childVariable makes the test binary one of the programs in childPrograms.
const childVariable = "PROC_TEST_CHILD"

var childPrograms = map[string]func() error{
	"epoll":        childEpoll,
	"poll":         blockIn(func() error { _, err := unix.Poll(pollSet(), -1); return err }),
	"ppoll":        blockIn(func() error { _, err := unix.Ppoll(pollSet(), nil, nil); return err }),
	"poll-out":     blockIn(func() error { _, err := unix.Poll([]unix.PollFd{{Fd: 3}}, -1); return err }),
	"select":       blockIn(func() error { _, err := unix.Select(4, fdSet(), nil, nil, nil); return err }),
	"pselect":      blockIn(func() error { _, err := unix.Pselect(4, fdSet(), nil, nil, nil, nil); return err }),
	"accept":       blockIn(func() error { _, _, err := unix.Accept(3); return err }),
	"accept4":      blockIn(func() error { _, _, err := unix.Accept4(3, unix.SOCK_CLOEXEC); return err }),
	"park":         childPark,
	"hangup-only":  childHangupOnly,
	"spin":         childSpin,
	"uring":        childUring,
	"listen":       childListen,
	"headless":     childHeadless,
	"look-helper":  LookHelper,
	"unprivileged": childUnprivileged,
}

func TestMain(m *testing.M) {
	name := os.Getenv(childVariable)
	if name == "" {
		os.Exit(m.Run())
	}
	program, ok := childPrograms[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such child program:", name)
		os.Exit(2)
	}
	if err := program(); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// blockIn is a program that says ready and then sits in one system call, on a thread of its own.
func blockIn(call func() error) func() error {
	return func() error {
		runtime.LockOSThread()
		fmt.Println("ready")
		for {
			if err := call(); err != nil && err != unix.EINTR {
				return err
			}
		}
	}
}

func pollSet() []unix.PollFd {
	return []unix.PollFd{{Fd: -1}, {Fd: 0, Events: unix.POLLPRI}, {Fd: 3, Events: unix.POLLIN}}
}

func fdSet() *unix.FdSet {
	var set unix.FdSet
	set.Set(3)
	return &set
}

// childEpoll accepts on a duplicate of descriptor 3, as net.FileListener makes it, and closes the original.
func childEpoll() error {
	f := os.NewFile(3, "listener")
	ln, err := net.FileListener(f)
	if err != nil {
		return err
	}
	f.Close()
	fmt.Println("ready")
	_, err = ln.Accept()
	return err
}

// childPark holds what it has been given until its standard input ends.
func childPark() error {
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// childHangupOnly has the listener in an epoll set, to see it shut down and nothing else.
func childHangupOnly() error {
	ep, err := unix.EpollCreate1(0)
	if err != nil {
		return err
	}
	ev := unix.EpollEvent{Events: unix.EPOLLET&0xffffffff | unix.EPOLLRDHUP, Fd: 3}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, 3, &ev); err != nil {
		return err
	}
	return childPark()
}

func childSpin() error {
	fmt.Println("ready")
	for {
		runtime.Gosched()
	}
}

func init() {
	// Only now is the main goroutine surely on the main thread.
	if os.Getenv(childVariable) == "headless" {
		runtime.LockOSThread()
	}
}

// childHeadless accepts on another thread and ends its main one.
func childHeadless() error {
	go blockIn(func() error { _, _, err := unix.Accept(3); return err })()
	unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	return nil
}

func childUring() error {
	var params [120]byte // struct io_uring_params
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		fmt.Println("unavailable")
	} else {
		defer unix.Close(int(fd))
		fmt.Println("ready")
	}
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// childListen listens on a port of its own and says which.
func childListen() error {
	ln, err := net.Listen(os.Getenv("NETWORK"), os.Getenv("ADDRESS"))
	if err != nil {
		return err
	}
	defer ln.Close()
	fmt.Println(ln.Addr().(*net.TCPAddr).AddrPort())
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// kid is a process that a test has started.
type kid struct {
	pid   int
	pidfd int
	in    *os.File
	out   *bufio.Reader
}

type kidOptions struct {
	path  string   // default: the test binary
	args  []string // with argv[0]
	env   []string
	files []int // from descriptor 3 on
	sys   syscall.SysProcAttr
}

// start runs a program in a session of its own; the cleanup kills and reaps it.
func start(t testing.TB, o kidOptions) *kid {
	t.Helper()
	if o.path == "" {
		o.path = "/proc/self/exe"
	}
	if o.args == nil {
		o.args = []string{"child"}
	}
	theirIn, in, err := pipe(true)
	if err != nil {
		t.Fatal(err)
	}
	theirOut, out, err := pipe(false)
	if err != nil {
		t.Fatal(err)
	}
	files := []uintptr{uintptr(theirIn), uintptr(theirOut), 2}
	for _, fd := range o.files {
		files = append(files, uintptr(fd))
	}
	o.sys.Setsid = true
	pid, err := syscall.ForkExec(o.path, o.args, &syscall.ProcAttr{Env: o.env, Files: files, Sys: &o.sys})
	unix.Close(theirIn)
	unix.Close(theirOut)
	if err != nil {
		t.Fatal(err)
	}
	k := &kid{pid: pid, in: in, out: bufio.NewReader(out)}
	if k.pidfd, err = OpenPidfd(pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := SignalPidfd(k.pidfd, unix.SIGKILL); err != nil && !gone(err) {
			t.Error(err)
		}
		if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
			t.Errorf("wait for child %d: %v", pid, err)
		}
		unix.Close(k.pidfd)
		in.Close()
		out.Close()
	})
	return k
}

// startChild runs one of childPrograms and waits until it says ready; it returns the first line.
func startChild(t testing.TB, program string, o kidOptions) (k *kid, first string) {
	t.Helper()
	o.env = append(o.env, childVariable+"="+program)
	k = start(t, o)
	return k, k.line(t)
}

func (k *kid) line(t testing.TB) string {
	t.Helper()
	line, err := k.out.ReadString('\n')
	if err != nil {
		t.Fatalf("child %d said %q: %v", k.pid, line, err)
	}
	return strings.TrimSpace(line)
}

// until asks again and again, until ok says yes. It fails when the process that is waited for has ended.
func (k *kid) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		if ended(t, k.pidfd, 5) && !ok() {
			t.Fatalf("process %d has ended before: %s", k.pid, what)
		}
	}
}

// ended waits for the end of a process, at most that many milliseconds.
func ended(t testing.TB, pidfd, ms int) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, ms)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n > 0
	}
}

// listen returns a listening TCP socket on a free port of the loopback, closed by the cleanup. It blocks, unless
// flags say otherwise.
func listen(t testing.TB, flags int) (fd int, inode uint64, port int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 16); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	return fd, st.Ino, name.(*unix.SockaddrInet4).Port
}
