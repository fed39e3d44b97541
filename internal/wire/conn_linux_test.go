package wire

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// openFDs counts the descriptors of this process.
func openFDs(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// noLeak checks at the end of the test that no descriptor was left open.
func noLeak(t *testing.T) {
	t.Helper()
	warm(t) // the poller's own descriptors
	before := openFDs(t)
	t.Cleanup(func() {
		if after := openFDs(t); after != before {
			t.Errorf("%d descriptors open, %d before", after, before)
		}
	})
}

func warm(t *testing.T) {
	c, fd, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	_ = unix.Close(fd)
}

// rawPair gives a Conn and the other end as a bare descriptor.
func rawPair(t *testing.T) (*Conn, int) {
	t.Helper()
	noLeak(t)
	c, fd, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, fd
}

func pair(t *testing.T) (a, b *Conn) {
	t.Helper()
	a, fd := rawPair(t)
	b, err := NewConn(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return a, b
}

func sendRaw(t *testing.T, fd int, b, oob []byte) {
	t.Helper()
	if err := unix.Sendmsg(fd, b, oob, nil, unix.MSG_DONTWAIT); err != nil {
		t.Fatal(os.NewSyscallError("sendmsg", err))
	}
}

func TestBothWaysWithFiles(t *testing.T) {
	a, b := pair(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Send(Message{Verb: Bound, Names: []string{"x"}}, w); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	m, files, err := b.Recv()
	if err != nil || m.Verb != Bound || len(files) != 1 {
		t.Fatalf("got %+v, %d files, %v", m, len(files), err)
	}
	flags, err := unix.FcntlInt(files[0].Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("received descriptor: flags %#x, %v; want close-on-exec", flags, err)
	}
	if _, err := files[0].WriteString("hi"); err != nil {
		t.Error(err)
	}
	_ = files[0].Close()
	if got, err := io.ReadAll(r); string(got) != "hi" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	_ = r.Close()
	if err := b.Send(Message{Verb: Ready}); err != nil {
		t.Fatal(err)
	}
	if m, _, err := a.Recv(); err != nil || m.Verb != Ready {
		t.Errorf("got %+v, %v", m, err)
	}
}

func TestMaxFiles(t *testing.T) {
	a, b := pair(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	files := make([]*os.File, MaxFiles)
	for i := range files {
		files[i] = null
	}
	if err := a.Send(Message{Verb: Sockets}, files...); err != nil {
		t.Fatal(err)
	}
	_, got, err := b.Recv()
	if err != nil || len(got) != MaxFiles {
		t.Errorf("%d files, %v", len(got), err)
	}
	for _, f := range got {
		_ = f.Close()
	}
	if err := a.Send(Message{Verb: Sockets}, append(files, null)...); err == nil {
		t.Errorf("%d files accepted", MaxFiles+1)
	}
}

func TestEmptyPacketIsNotEOF(t *testing.T) {
	c, fd := rawPair(t)
	defer func() { _ = unix.Close(fd) }()
	sendRaw(t, fd, nil, nil)
	sendRaw(t, fd, []byte(`{"v":1,"verb":"ready"}`), nil)
	if _, _, err := c.Recv(); !errors.Is(err, ErrEmpty) || errors.Is(err, io.EOF) {
		t.Errorf("got %v, want ErrEmpty", err)
	}
	if m, _, err := c.Recv(); err != nil || m.Verb != Ready {
		t.Errorf("after the empty packet: %+v, %v", m, err)
	}
}

func TestEmptyPacketWithDescriptor(t *testing.T) {
	c, fd := rawPair(t)
	defer func() { _ = unix.Close(fd) }()
	before := openFDs(t)
	sendRaw(t, fd, nil, unix.UnixRights(fd))
	if m, files, err := c.Recv(); err == nil {
		t.Errorf("got %+v, %d files", m, len(files))
	}
	if n := openFDs(t); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

func TestEOF(t *testing.T) {
	c, fd := rawPair(t)
	sendRaw(t, fd, []byte(`{"v":1,"verb":"bye"}`), nil)
	_ = unix.Close(fd)
	if m, _, err := c.Recv(); err != nil || m.Verb != Bye {
		t.Errorf("what was sent before the end: %+v, %v", m, err)
	}
	for range 2 {
		if _, _, err := c.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want EOF", err)
		}
	}
	if err := c.Send(Message{Verb: Ack}); !errors.Is(err, unix.EPIPE) {
		t.Errorf("send to a closed peer: %v, want EPIPE", err)
	}
}

func TestResetIsEOF(t *testing.T) {
	c, fd := rawPair(t)
	if err := c.Send(Message{Verb: Ack}); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd) // with a packet unread
	if _, _, err := c.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want EOF", err)
	}
}

func TestHalfClosedIsNotEOF(t *testing.T) {
	c, fd := rawPair(t)
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Recv(); !errors.Is(err, ErrShut) {
		t.Errorf("got %v, want ErrShut", err)
	}
}

func TestTruncatedPacketClosesDescriptors(t *testing.T) {
	c, fd := rawPair(t)
	defer func() { _ = unix.Close(fd) }()
	before := openFDs(t)
	big := []byte(`{"v":1,"verb":"status","text":"` + strings.Repeat("x", MaxPacket) + `"}`)
	sendRaw(t, fd, big, unix.UnixRights(fd, fd))
	if _, files, err := c.Recv(); !errors.Is(err, ErrTruncated) || files != nil {
		t.Errorf("got %d files, %v", len(files), err)
	}
	if n := openFDs(t); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

func TestTruncatedControlClosesDescriptors(t *testing.T) {
	c, fd := rawPair(t)
	defer func() { _ = unix.Close(fd) }()
	before := openFDs(t)
	// Room for two of the three, as when the limit of descriptors is reached.
	c.oob = c.oob[:unix.CmsgSpace(4)]
	sendRaw(t, fd, []byte(`{"v":1,"verb":"status"}`), unix.UnixRights(fd, fd, fd))
	if _, files, err := c.Recv(); !errors.Is(err, ErrTruncated) || files != nil {
		t.Errorf("got %d files, %v", len(files), err)
	}
	if n := openFDs(t); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

func TestBadMessageClosesDescriptors(t *testing.T) {
	c, fd := rawPair(t)
	defer func() { _ = unix.Close(fd) }()
	before := openFDs(t)
	sendRaw(t, fd, []byte(`{"v":1,"verb":"dance"}`), unix.UnixRights(fd))
	m, files, err := c.Recv()
	if !errors.Is(err, ErrUnknownVerb) || files != nil || m.Verb != "dance" {
		t.Errorf("got %+v, %d files, %v", m, len(files), err)
	}
	if n := openFDs(t); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}

func TestFullBufferNeverBlocks(t *testing.T) {
	a, b := pair(t)
	sent := 0
	var err error
	for ; sent < 1e6; sent++ {
		if err = a.Send(Message{Verb: Status, Text: fmt.Sprint(sent)}); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFull) || sent == 0 {
		t.Fatalf("after %d messages: %v, want ErrFull", sent, err)
	}
	for i := range sent {
		m, _, err := b.Recv()
		if err != nil || m.Text != fmt.Sprint(i) {
			t.Fatalf("message %d: %+v, %v", i, m, err)
		}
	}
	if err := a.Send(Message{Verb: Bye}); err != nil {
		t.Errorf("once there is room: %v", err)
	}
}

func TestCloseUnblocksRecv(t *testing.T) {
	a, _ := pair(t)
	done := make(chan error)
	go recvInto(a, done) // the test waits for it
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("got %v, want os.ErrClosed", err)
	}
	if err := a.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("second Close: %v", err)
	}
	if err := a.Send(Message{Verb: Ack}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
}

func recvInto(c *Conn, done chan<- error) {
	_, _, err := c.Recv()
	done <- err
}

func TestNewConnRefuses(t *testing.T) {
	noLeak(t)
	file, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewConn(file); !errors.Is(err, unix.ENOTSOCK) {
		t.Errorf("a file: %v, want ENOTSOCK", err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewConn(fds[0]); err == nil {
		t.Error("a stream socket was accepted")
	}
	_ = unix.Close(fds[1])
}
