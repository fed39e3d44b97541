package sdnotify

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func openFDs(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

func listen(t *testing.T) *Socket {
	t.Helper()
	s, err := Listen(filepath.Join(t.TempDir(), "n"), 0o600, -1, -1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// send sends b with descriptors, as sd_pid_notify_with_fds(3) does.
func send(t *testing.T, s *Socket, b []byte, fds ...int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if err := unix.Sendmsg(fd, b, oob, &unix.SockaddrUnix{Name: s.Path()}, unix.MSG_DONTWAIT); err != nil {
		t.Fatal(os.NewSyscallError("sendmsg", err))
	}
}

func TestNotify(t *testing.T) {
	for _, path := range []string{
		filepath.Join(t.TempDir(), "notify"),
		fmt.Sprintf("@handover-sdnotify-test-%d", os.Getpid()),
	} {
		s, err := Listen(path, 0o600, -1, -1)
		if err != nil {
			t.Fatal(err)
		}
		if err := Notify(path, "READY=1\nSTATUS=up"); err != nil {
			t.Error(err)
		}
		m, cred, err := s.Recv()
		if err != nil || !m.Ready || m.Status != "up" {
			t.Errorf("%s: %+v, %v", path, m, err)
		}
		if int(cred.Pid) != os.Getpid() || int(cred.Uid) != os.Getuid() {
			t.Errorf("%s: credentials %+v", path, cred)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestNotifyErrors(t *testing.T) {
	if err := Notify(filepath.Join(t.TempDir(), "none"), "READY=1"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no such socket: %v, want ENOENT", err)
	}
	for _, s := range []string{"", "vsock:2:1", "relative"} {
		if err := Notify(s, "READY=1"); err == nil {
			t.Errorf("%q accepted", s)
		}
	}
}

func TestListenModeOwnerAndStaleFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n")
	for range 2 { // the second finds the file of the first
		s, err := Listen(path, 0o600, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode&0o7777 != 0o600 || st.Uid != 1 || st.Gid != 1 {
			t.Errorf("mode %o owner %d:%d", st.Mode, st.Uid, st.Gid)
		}
		_ = s.Close()
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(file, 0o600, -1, -1); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("over a plain file: %v, want EADDRINUSE", err)
	}
	if _, err := Listen("/tmp/"+strings.Repeat("x", 120), 0o600, -1, -1); err == nil {
		t.Error("a path of 125 bytes was bound")
	}
}

func TestBarrierIsAnsweredByClosing(t *testing.T) {
	s := listen(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	send(t, s, []byte("BARRIER=1"), int(w.Fd()))
	_ = w.Close()
	m, _, err := s.Recv()
	if err != nil || !m.Barrier {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the barrier is still open: %v", err)
	}
	send(t, s, []byte("BARRIER=1"))
	if m, _, err := s.Recv(); err != nil || m.Barrier {
		t.Errorf("without a descriptor: %+v, %v", m, err)
	}
}

func TestDescriptorsAreClosed(t *testing.T) {
	s := listen(t)
	before := openFDs(t)
	for _, b := range [][]byte{
		[]byte("FDSTORE=1\nREADY=1"),
		nil,
		[]byte("READY=1\x00x"),
		[]byte("STATUS=" + strings.Repeat("x", 2*MaxDatagram)),
	} {
		send(t, s, b, 0, 1, 2)
		m, cred, err := s.Recv()
		if (err == nil) != m.Ready {
			t.Errorf("%.20q: %+v, %v", b, m, err)
		}
		if int(cred.Pid) != os.Getpid() {
			t.Errorf("%.20q: sender %d unknown", b, cred.Pid)
		}
		if n := openFDs(t); n != before {
			t.Errorf("%.20q: %d descriptors, %d before", b, n, before)
		}
	}
	s.oob = s.oob[:unix.CmsgSpace(unix.SizeofUcred)+unix.CmsgSpace(4)]
	send(t, s, []byte("READY=1"), 0, 1, 2)
	if _, _, err := s.Recv(); !errors.Is(err, ErrTruncated) {
		t.Errorf("short control buffer: %v", err)
	}
	if n := openFDs(t); n != before {
		t.Errorf("short control buffer: %d descriptors, %d before", n, before)
	}
}

func TestCloseUnblocksRecv(t *testing.T) {
	s := listen(t)
	done := make(chan error)
	go recvInto(s, done) // the test waits for it
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v, want os.ErrClosed", err)
	}
}

func recvInto(s *Socket, done chan<- error) {
	_, _, err := s.Recv()
	done <- err
}
