package fdpass_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/fdleak"
)

// bind binds what s says and closes it, with its path, at the end of the test.
func bind(t testing.TB, s string) *fdpass.Socket {
	t.Helper()
	a, o, err := fdpass.ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	sock, err := fdpass.Bind(a, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(sock.Unlink(), sock.Close(), sock.Close()); err != nil {
			t.Error(err)
		}
	})
	return sock
}

func sockopt(t testing.TB, fd, level, opt int) int {
	t.Helper()
	n, err := unix.GetsockoptInt(fd, level, opt)
	if err != nil {
		t.Fatal(os.NewSyscallError("getsockopt", err))
	}
	return n
}

// traits are what getsockopt(2) and fcntl(2) say of a socket; -1 where the
// option does not exist.
type traits struct {
	Domain, Type, Listens, ReuseAddr, ReusePort, V6Only int
	Nonblock, CloseOnExec                               bool
}

func traitsOf(t testing.TB, fd int) traits {
	t.Helper()
	status, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil {
		t.Fatal(err)
	}
	tr := traits{
		Domain:    sockopt(t, fd, unix.SOL_SOCKET, unix.SO_DOMAIN),
		Type:      sockopt(t, fd, unix.SOL_SOCKET, unix.SO_TYPE),
		Listens:   sockopt(t, fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN),
		ReuseAddr: sockopt(t, fd, unix.SOL_SOCKET, unix.SO_REUSEADDR),
		ReusePort: -1, V6Only: -1,
		Nonblock:    status&unix.O_NONBLOCK != 0,
		CloseOnExec: flags&unix.FD_CLOEXEC != 0,
	}
	if tr.Domain != unix.AF_UNIX {
		tr.ReusePort = sockopt(t, fd, unix.SOL_SOCKET, unix.SO_REUSEPORT)
	}
	if tr.Domain == unix.AF_INET6 {
		tr.V6Only = sockopt(t, fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	}
	return tr
}

func TestBindKinds(t *testing.T) {
	fdleak.Snapshot(t)
	dir := t.TempDir()
	abstract := fmt.Sprintf("@handover-test-%d", os.Getpid())
	const (
		in4, in6, local     = unix.AF_INET, unix.AF_INET6, unix.AF_UNIX
		stream, dgram, pack = unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET
	)
	tests := []struct {
		addr string
		want traits
	}{
		{"tcp://:0", traits{in6, stream, 1, 1, 0, 0, true, true}},
		{"tcp://127.0.0.1:0", traits{in4, stream, 1, 1, 0, -1, true, true}},
		{"tcp://[::1]:0", traits{in6, stream, 1, 1, 0, 1, true, true}},
		{"tcp://:0?v6only=true", traits{in6, stream, 1, 1, 0, 1, true, true}},
		{"tcp4://:0", traits{in4, stream, 1, 1, 0, -1, true, true}},
		{"tcp6://:0", traits{in6, stream, 1, 1, 0, 1, true, true}},
		{"tcp4://:0?reuse_port=true", traits{in4, stream, 1, 1, 1, -1, true, true}},
		{"tcp4://:0?nonblocking=false", traits{in4, stream, 1, 1, 0, -1, false, true}},
		{"udp://:0", traits{in6, dgram, 0, 0, 0, 0, true, true}},
		{"udp://127.0.0.1:0", traits{in4, dgram, 0, 0, 0, -1, true, true}},
		{"udp4://:0?reuse_port=true", traits{in4, dgram, 0, 0, 1, -1, true, true}},
		{"udp6://:0", traits{in6, dgram, 0, 0, 0, 1, true, true}},
		{"unix:" + dir + "/s", traits{local, stream, 1, 0, -1, -1, true, true}},
		{"unixgram:" + dir + "/d", traits{local, dgram, 0, 0, -1, -1, true, true}},
		{"unixpacket:" + dir + "/p", traits{local, pack, 1, 0, -1, -1, true, true}},
		{"unix:" + abstract, traits{local, stream, 1, 0, -1, -1, true, true}},
		{"unixgram:" + abstract, traits{local, dgram, 0, 0, -1, -1, true, true}},
		{"unixpacket:" + abstract + "?nonblocking=0", traits{local, pack, 1, 0, -1, -1, false, true}},
	}
	for _, tt := range tests {
		s := bind(t, tt.addr)
		if d := cmp.Diff(tt.want, traitsOf(t, s.FD())); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.addr, d)
		}
		var st unix.Stat_t
		if err := unix.Fstat(s.FD(), &st); err != nil || st.Ino != s.Inode() {
			t.Errorf("%s: Inode %d, fstat %d, %v", tt.addr, s.Inode(), st.Ino, err)
		}
		if strings.HasSuffix(tt.addr, ":0") && s.Addr().Port == 0 {
			t.Errorf("%s: port 0 was not replaced", tt.addr)
		}
		if ok, err := s.Listening(); !ok || err != nil {
			t.Errorf("%s: Listening() = %v, %v", tt.addr, ok, err)
		}
		if on, err := s.Nonblocking(); on != tt.want.Nonblock || err != nil {
			t.Errorf("%s: Nonblocking() = %v, %v", tt.addr, on, err)
		}
		if err := s.Relisten(); err != nil {
			t.Errorf("%s: Relisten: %v", tt.addr, err)
		}
	}
}

func TestBacklogAndApply(t *testing.T) {
	fdleak.Snapshot(t)
	s := bind(t, "tcp://127.0.0.1:0?backlog=7")
	if got := tcpBacklog(t, s.FD()); got != 7 {
		t.Errorf("backlog %d, want 7", got)
	}
	if err := s.Apply(fdpass.Options{Backlog: 9}); err != nil {
		t.Fatal(err)
	}
	if got := tcpBacklog(t, s.FD()); got != 9 {
		t.Errorf("backlog after Apply %d, want 9", got)
	}
	// Another holder's listen(2) sets the shared backlog; Relisten sets it back.
	if err := unix.Listen(s.FD(), 3); err != nil {
		t.Fatal(err)
	}
	if err := s.Relisten(); err != nil {
		t.Fatal(err)
	}
	if got := tcpBacklog(t, s.FD()); got != 9 {
		t.Errorf("backlog after Relisten %d, want 9", got)
	}
	for name, o := range map[string]fdpass.Options{
		"reuse_port":  {Backlog: 1, ReusePort: true},
		"nonblocking": {Backlog: 1, Nonblocking: new(false)},
	} {
		if err := s.Apply(o); err == nil || !strings.Contains(err.Error(), name+" cannot change") {
			t.Errorf("Apply of %s: %v", name, err)
		}
	}
	dual := bind(t, "tcp://:0")
	if err := dual.Apply(fdpass.Options{V6Only: new(true)}); err == nil || !strings.Contains(err.Error(), "v6only cannot change") {
		t.Errorf("Apply of v6only: %v", err)
	}
	if got := tcpBacklog(t, s.FD()); got != 9 || s.Options().Backlog != 9 {
		t.Errorf("a refused Apply changed the backlog to %d", got)
	}
}

// tcpBacklog is sk_max_ack_backlog: tcpi_sacked of a listener (tcp_get_info).
func tcpBacklog(t testing.TB, fd int) int {
	t.Helper()
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sacked)
}

func TestBindInUse(t *testing.T) {
	fdleak.Snapshot(t)
	path := filepath.Join(t.TempDir(), "s")
	abstract := fmt.Sprintf("unix:@handover-in-use-%d", os.Getpid())
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	owner := fmt.Sprintf("held by pid %d (%s)", os.Getpid(), filepath.Base(exe))
	for _, addr := range []string{
		"tcp://127.0.0.1:0", "tcp://:0", "tcp6://[::1]:0", "udp://127.0.0.1:0", "udp6://:0",
		"unix:" + path, "unixgram:" + path + "2", "unixpacket:" + path + "3", abstract,
	} {
		first := bind(t, addr)
		_, err := fdpass.Bind(first.Addr(), fdpass.Options{})
		var be *fdpass.BindError
		if !errors.Is(err, unix.EADDRINUSE) || !errors.As(err, &be) || be.Op != "bind" || be.Addr != first.Addr() {
			t.Errorf("second bind of %s: %v", addr, err)
			continue
		}
		if !strings.Contains(err.Error(), "bind: address already in use") || !strings.HasSuffix(err.Error(), owner) {
			t.Errorf("second bind of %s: %v, want it %s", addr, err, owner)
		}
	}
	// A wildcard in the way is named as well.
	wild := bind(t, "tcp4://:0")
	_, err = fdpass.Bind(fdpass.Addr{Kind: fdpass.TCP, Port: wild.Addr().Port}, fdpass.Options{})
	if !errors.Is(err, unix.EADDRINUSE) || !strings.HasSuffix(err.Error(), owner) {
		t.Errorf("dual-stack beside IPv4: %v", err)
	}
}

// What Conflicts says is what the kernel does.
func TestConflictsIsTheKernels(t *testing.T) {
	fdleak.Snapshot(t)
	ownNetwork(t)
	forms := []fdpass.Addr{}
	for _, s := range []string{":1", "tcp4://:1", "tcp6://:1", "127.0.0.1:1", "[::1]:1", "127.0.0.2:1", "udp://:1", "udp4://:1", "udp6://:1", "udp://127.0.0.1:1"} {
		a, _, err := fdpass.ParseAddr(s)
		if err != nil {
			t.Fatal(err)
		}
		forms = append(forms, a)
	}
	for _, a := range forms {
		a.Port = 0
		first, err := fdpass.Bind(a, fdpass.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range forms {
			b.Port = first.Addr().Port
			if b.Key() == first.Addr().Key() {
				continue
			}
			second, err := fdpass.Bind(b, fdpass.Options{})
			if err == nil {
				err = second.Close()
			} else if !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("%v beside %v: %v", b, a, err)
			}
			if got := err != nil; got != first.Addr().Conflicts(b) {
				t.Errorf("%v beside %v: Conflicts says %v, the kernel %v", b, first.Addr(), !got, err)
			}
		}
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	}
}

// ownNetwork gives the test a network of its own, where no other process takes
// ports. The thread is not unlocked: the runtime ends it with the test.
func ownNetwork(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(os.NewSyscallError("unshare", err))
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(os.NewSyscallError("socket", err))
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		t.Fatal(os.NewSyscallError("ioctl", err))
	}
}

// A socket that another holder has shut down or disconnected, and what Listening
// and Relisten make of it. Port 0 is the hard case: the number has to stay.
func TestRelisten(t *testing.T) {
	fdleak.Snapshot(t)
	dir := t.TempDir()
	shutdown := func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RD) }
	udpShutdown := func(fd int) error {
		// It takes effect though it says ENOTCONN (inet_shutdown).
		if err := unix.Shutdown(fd, unix.SHUT_RD); !errors.Is(err, unix.ENOTCONN) {
			return fmt.Errorf("shutdown: %w", err)
		}
		return nil
	}
	connect := func(fd int) error {
		return unix.Connect(fd, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{127, 0, 0, 1}})
	}
	tests := []struct {
		addr string
		harm func(int) error
		dead bool
	}{
		{"tcp://127.0.0.1:0", shutdown, false},
		{"tcp://:0", shutdown, false},
		{"tcp6://[::1]:0", shutdown, false},
		{"udp://127.0.0.1:0", connect, false},
		{"udp4://:0", connect, false},
		{"udp://127.0.0.1:0", udpShutdown, true},
		{"unix:" + dir + "/s", shutdown, true},
		{"unixpacket:" + dir + "/p", shutdown, true},
		{"unixgram:" + dir + "/d", shutdown, true},
	}
	for _, tt := range tests {
		s := bind(t, tt.addr)
		if err := tt.harm(s.FD()); err != nil {
			t.Fatalf("%s: harm: %v", tt.addr, err)
		}
		if ok, err := s.Listening(); ok || err != nil {
			t.Errorf("%s: Listening after harm: %v, %v", tt.addr, ok, err)
		}
		err := s.Relisten()
		if errors.Is(err, fdpass.ErrShutDown) != tt.dead || (err != nil) != tt.dead {
			t.Errorf("%s: Relisten: %v, want dead %v", tt.addr, err, tt.dead)
		}
		if tt.dead {
			continue
		}
		if ok, err := s.Listening(); !ok || err != nil {
			t.Errorf("%s: Listening after Relisten: %v, %v", tt.addr, ok, err)
		}
		if s.Addr().Kind.Datagram() {
			continue
		}
		c, err := net.Dial("tcp", fmt.Sprintf("localhost:%d", s.Addr().Port))
		if tt.addr == "tcp6://[::1]:0" {
			c, err = net.Dial("tcp", fmt.Sprintf("[::1]:%d", s.Addr().Port))
		}
		if err != nil {
			t.Errorf("%s: after Relisten: %v", tt.addr, err)
			continue
		}
		_ = c.Close()
	}
}

func TestSetNonblocking(t *testing.T) {
	fdleak.Snapshot(t)
	s := bind(t, "tcp://127.0.0.1:0")
	if err := unix.SetNonblock(s.FD(), false); err != nil {
		t.Fatal(err)
	}
	if err := s.SetNonblocking(); err != nil {
		t.Fatal(err)
	}
	if on, err := s.Nonblocking(); !on || err != nil {
		t.Errorf("Nonblocking() = %v, %v", on, err)
	}
	b := bind(t, "tcp://127.0.0.1:0?nonblocking=false")
	if err := b.SetNonblocking(); err != nil {
		t.Fatal(err)
	}
	if on, err := b.Nonblocking(); on || err != nil {
		t.Errorf("with nonblocking=false: Nonblocking() = %v, %v", on, err)
	}
}

func TestClosed(t *testing.T) {
	fdleak.Snapshot(t)
	s := bind(t, "tcp://127.0.0.1:0")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, listening := s.Listening()
	_, nonblocking := s.Nonblocking()
	for i, err := range []error{listening, nonblocking, s.Relisten(), s.SetNonblocking(), s.Apply(fdpass.Options{})} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%d: %v after Close", i, err)
		}
	}
	if s.FD() != -1 {
		t.Errorf("FD() = %d after Close", s.FD())
	}
}

func TestBindErrors(t *testing.T) {
	fdleak.Snapshot(t)
	tests := []struct {
		addr fdpass.Addr
		opts fdpass.Options
		want string
	}{
		{fdpass.Addr{}, fdpass.Options{}, "unknown kind"},
		{fdpass.Addr{Kind: fdpass.TCP, Path: "/x"}, fdpass.Options{}, "not the path"},
		{fdpass.Addr{Kind: fdpass.Unix, Path: "/x", Port: 1}, fdpass.Options{}, "not an IP address"},
		{fdpass.Addr{Kind: fdpass.TCP}, fdpass.Options{Backlog: -1}, "backlog -1"},
		{fdpass.Addr{Kind: fdpass.Unix, Path: "/nonexistent/x"}, fdpass.Options{}, "directory /nonexistent: open: no such file"},
		{fdpass.Addr{Kind: fdpass.Unix, Path: "/tmp/x"}, fdpass.Options{Owner: "no-such-user"}, "/etc/passwd"},
		{fdpass.Addr{Kind: fdpass.Unix, Path: "/tmp/x"}, fdpass.Options{Group: "no-such-group"}, "/etc/group"},
		{fdpass.Addr{Kind: fdpass.Unix, Path: "/" + strings.Repeat("x", 120)}, fdpass.Options{}, "has 121 bytes"},
	}
	for _, tt := range tests {
		_, err := fdpass.Bind(tt.addr, tt.opts)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Bind(%+v, %+v) = %v, want %q", tt.addr, tt.opts, err, tt.want)
		}
	}
	a, _, err := fdpass.ParseAddr("192.0.2.1:80")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fdpass.Bind(a, fdpass.Options{}); !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("bind of a foreign address: %v", err)
	}
}
