//go:build linux

package handover_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The gate: a real handoverd of which each system call that opens something, writes something or tells somebody something
// stops at the kernel until the test has said what becomes of it: it is carried out, it fails, or handoverd is killed in
// front of it. It is a seccomp filter with user notification (seccomp(2), seccomp_unotify(2), Linux 5.5): the calls of
// all threads come in one order, so that "the nth" means something, and a call that is let through is the real one.

// gateArgument has this test binary put the filter before itself and execute what follows, in its own place.
const gateArgument = "--behind-the-gate"

func init() {
	if len(os.Args) > 3 && os.Args[1] == gateArgument {
		runtime.LockOSThread()
		fmt.Fprintln(os.Stderr, "gate:", behindTheGate(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
}

// gated are the calls that stop, with their names.
var gated = map[uint32]string{
	unix.SYS_SOCKET: "socket", unix.SYS_SOCKETPAIR: "socketpair", unix.SYS_ACCEPT4: "accept4", unix.SYS_OPENAT: "openat",
	unix.SYS_DUP3: "dup3", unix.SYS_FCNTL: "fcntl F_DUPFD", unix.SYS_PIPE2: "pipe2", unix.SYS_MEMFD_CREATE: "memfd_create",
	unix.SYS_PIDFD_OPEN: "pidfd_open", unix.SYS_PIDFD_GETFD: "pidfd_getfd", unix.SYS_EPOLL_CREATE1: "epoll_create1",
	unix.SYS_EVENTFD2: "eventfd2", unix.SYS_INOTIFY_INIT1: "inotify_init1", unix.SYS_CLONE: "clone", unix.SYS_CLONE3: "clone3",
	unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_FSYNC: "fsync", unix.SYS_FTRUNCATE: "ftruncate",
	unix.SYS_FALLOCATE: "fallocate", unix.SYS_RENAMEAT: "renameat", unix.SYS_LINKAT: "linkat", unix.SYS_MKDIRAT: "mkdirat",
	unix.SYS_UNLINKAT: "unlinkat", unix.SYS_BIND: "bind", unix.SYS_LISTEN: "listen", unix.SYS_CONNECT: "connect",
	unix.SYS_SENDMSG: "sendmsg", unix.SYS_SHUTDOWN: "shutdown", unix.SYS_CLOSE: "close", unix.SYS_FCHOWN: "fchown",
	unix.SYS_INOTIFY_ADD_WATCH: "inotify_add_watch", unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal", unix.SYS_EXECVE: "execve",
	unix.SYS_WAITID: "waitid", unix.SYS_KILL: "kill",
}

// gateFilter lets pass what is not in gated, and of fcntl all but what duplicates.
func gateFilter() []unix.SockFilter {
	const offsetNR, offsetArg1 = 0, 16 + 8 // struct seccomp_data: nr, arch, instruction_pointer, args
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	equal := func(k uint32, skip uint8) unix.SockFilter { // else the next skip instructions are passed over
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: k, Jf: skip}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	p := []unix.SockFilter{load(offsetNR)}
	for nr := range gated {
		if nr == unix.SYS_FCNTL {
			continue
		}
		p = append(p, equal(nr, 1), ret(unix.SECCOMP_RET_USER_NOTIF))
	}
	return append(p,
		equal(unix.SYS_FCNTL, 5), load(offsetArg1),
		equal(unix.F_DUPFD_CLOEXEC, 1), ret(unix.SECCOMP_RET_USER_NOTIF),
		equal(unix.F_DUPFD, 1), ret(unix.SECCOMP_RET_USER_NOTIF),
		ret(unix.SECCOMP_RET_ALLOW))
}

// behindTheGate installs the filter, gives the test its other end by the socket at path, and executes argv. It returns
// only with an error. The caller is locked to the process's first thread, which alone has the filter, until execve(2)
// ends the others: so the descriptor can be sent by another.
func behindTheGate(path string, argv []string) error {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	listeners, sent := make(chan int), make(chan error)
	go func() { // waited for through sent
		_, _, err := conn.(*net.UnixConn).WriteMsgUnix([]byte{0}, unix.UnixRights(<-listeners), nil)
		sent <- err
	}()
	filter := gateFilter()
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// Without WAIT_KILLABLE_RECV (Linux 5.19) a signal, as the runtime sends them to its own threads, would take a call back
	// that the test has seen, and begin it again.
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	listeners <- int(fd)
	if err := <-sent; err != nil {
		return err
	}
	return os.NewSyscallError("execve", syscall.Exec(argv[0], argv, os.Environ()))
}

// gate is the test's side.
type gate struct {
	fd   int // of the filter
	wake int // the end of the test
	pid  atomic.Int64
	over chan struct{}

	mu     sync.Mutex
	decide func(*call) verdict // nil: everything is carried out
}

// call is one system call that waits.
type call struct {
	g    *gate
	tid  int
	nr   uint32
	args [6]uint64
	own  bool // of handoverd itself; else of what it has started, the shim first
}

// verdict is what becomes of it. The zero value: it is carried out.
type verdict struct {
	errno unix.Errno
	kill  bool // handoverd is killed before it
	own   bool // of the call; set by the gate
}

// startGated starts a daemon behind a gate. Nothing is stopped until watch.
func startGated(t *testing.T, d *Daemon, wrapper ...string) *gate {
	t.Helper()
	return startGatedWith(t, d, nil, wrapper...)
}

// startGatedWith is startGated with what watch would be called with from the first call on.
func startGatedWith(t *testing.T, d *Daemon, decide func(*call) verdict, wrapper ...string) *gate {
	t.Helper()
	path := filepath.Join(d.Dir, "gate.sock")
	_ = os.Remove(path)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d.startUnder(t, nil, append(wrapper, self, gateArgument, path)...)
	conn, err := ln.AcceptUnix()
	if err == nil {
		err = ln.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	space := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), space)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	messages, err := unix.ParseSocketControlMessage(space[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("the gate sends %d control messages: %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{fd: fds[0], wake: wake, over: make(chan struct{}), decide: decide}
	g.pid.Store(int64(d.PID))
	go g.serve() // waited for by the cleanup
	t.Cleanup(func() {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		if _, err := unix.Write(wake, one[:]); err != nil {
			t.Error(err)
		}
		<-g.over
		_, _ = unix.Close(g.fd), unix.Close(wake)
	})
	return g
}

// watch has decide called for each call that stops, one at a time; nil: all are carried out.
func (g *gate) watch(decide func(*call) verdict) {
	g.mu.Lock()
	g.decide = decide
	g.mu.Unlock()
}

// The structs of seccomp_unotify(2).
type (
	gateNotice struct {
		id         uint64
		pid, flags uint32
		nr         int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	gateAnswer struct {
		id    uint64
		val   int64
		errno int32
		flags uint32
	}
)

// serve answers until the test ends or everybody behind the gate has ended.
func (g *gate) serve() {
	defer close(g.over)
	for {
		fds := []unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}, {Fd: int32(g.wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			panic(os.NewSyscallError("poll", err))
		}
		if fds[1].Revents != 0 || fds[0].Revents&unix.POLLIN == 0 && fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0 {
			return
		}
		if fds[0].Revents&unix.POLLIN == 0 {
			continue
		}
		var n gateNotice
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(g.fd), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue // ENOENT: it was killed meanwhile; EINTR
		}
		v := g.judge(&n)
		a := gateAnswer{id: n.id, errno: -int32(v.errno)}
		switch {
		case v.kill:
			_ = unix.Kill(int(g.pid.Load()), unix.SIGKILL)
			if v.own {
				continue // an answer that is there before the signal would have it carried out
			}
			a.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		case v.errno == 0:
			a.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		}
		// ENOENT: it was killed meanwhile.
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(g.fd), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&a)))
	}
}

func (g *gate) judge(n *gateNotice) verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.decide == nil {
		return verdict{}
	}
	c := &call{g: g, tid: int(n.pid), nr: uint32(n.nr), args: n.args}
	c.own = unix.Access(fmt.Sprintf("/proc/%d/task/%d", g.pid.Load(), c.tid), unix.F_OK) == nil
	v := g.decide(c)
	v.own = c.own
	return v
}

// shim reports whether the call is one of a child of handoverd that has not become its program yet.
func (c *call) shim() bool {
	if c.own {
		return false
	}
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.tid))
	return err == nil && (bytes.HasPrefix(args, []byte("handoverd-shim")) || bytes.Contains(args, []byte("/handoverd\x00run\x00")))
}

// numbers in what a call is about, which differ from run to run.
var numbers = regexp.MustCompile(`[0-9]+`)

// String says what the call is and what it is about, without the numbers that differ between two of the same kind.
func (c *call) String() string {
	name, about := gated[c.nr], ""
	switch c.nr {
	case unix.SYS_OPENAT, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT:
		about = c.text(c.args[1])
		if c.nr == unix.SYS_OPENAT && c.args[2]&unix.O_CREAT != 0 {
			name += " O_CREAT"
		}
	case unix.SYS_RENAMEAT, unix.SYS_LINKAT:
		about = c.text(c.args[3])
	case unix.SYS_SOCKET, unix.SYS_SOCKETPAIR:
		about = fmt.Sprintf("family %d type %d", c.args[0], c.args[1]&0xf)
	case unix.SYS_CLONE, unix.SYS_CLONE3:
		if c.thread() {
			about = "thread"
		}
	case unix.SYS_SENDMSG:
		if c.rights() {
			about = "with descriptors"
		}
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FSYNC, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FCHOWN, unix.SYS_CLOSE:
		about = c.file()
	}
	about = numbers.ReplaceAllString(strings.ReplaceAll(about, c.dir(), "DIR"), "N")
	if !c.own {
		name = "shim: " + name
	}
	return strings.TrimSpace(name + " " + about)
}

// dir is the runtime directory, as far as String has to know.
func (c *call) dir() string {
	link, _ := os.Readlink("/dev/shm")
	if link == "" {
		link = "/dev/shm"
	}
	return link
}

// file is what the call's first argument, a descriptor, is of.
func (c *call) file() string {
	link, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.tid, int32(c.args[0])))
	return link
}

// read copies from the memory of who calls.
func (c *call) read(at uint64, b []byte) bool {
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	n, err := unix.ProcessVMReadv(c.tid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(b)}}, 0)
	return err == nil && n > 0
}

// text is a string in the memory of who calls.
func (c *call) text(at uint64) string {
	const page = 4096
	b := make([]byte, min(256, page-at%page)) // what follows may not be mapped
	if !c.read(at, b) {
		return "?"
	}
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// rights reports whether a sendmsg has a control message.
func (c *call) rights() bool {
	var h unix.Msghdr
	b := unsafe.Slice((*byte)(unsafe.Pointer(&h)), unsafe.Sizeof(h))
	return c.read(c.args[1], b) && h.Controllen > 0
}

// thread reports whether a clone makes a thread.
func (c *call) thread() bool {
	flags := c.args[0]
	if c.nr == unix.SYS_CLONE3 {
		var b [8]byte
		if !c.read(flags, b[:]) {
			return true
		}
		flags = binary.NativeEndian.Uint64(b[:])
	}
	return flags&unix.CLONE_THREAD != 0
}
