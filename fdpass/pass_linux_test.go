package fdpass_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/fdleak"
)

// pair is a blocking UNIX socket pair, closed at the end of the test.
func pair(t testing.TB, typ int) (a, b int) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(os.NewSyscallError("socketpair", err))
	}
	t.Cleanup(func() { _ = unix.Close(p[0]); _ = unix.Close(p[1]) })
	return p[0], p[1]
}

// conns is a pair as package net has it.
func conns(t testing.TB, typ int) (a, b *net.UnixConn) {
	t.Helper()
	var c [2]*net.UnixConn
	x, y := pair(t, typ)
	for i, fd := range []int{x, y} {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(dup), "pair")
		conn, err := net.FileConn(f)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		c[i] = conn.(*net.UnixConn)
	}
	return c[0], c[1]
}

// pipes makes n descriptors, the read ends of pipes whose writers are closed.
func pipes(t testing.TB, n int) (fds []int) {
	t.Helper()
	for range n {
		var p [2]int
		if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(os.NewSyscallError("pipe2", err))
		}
		_ = unix.Close(p[1])
		t.Cleanup(func() { _ = unix.Close(p[0]) })
		fds = append(fds, p[0])
	}
	return fds
}

func files(t testing.TB, n int) (fs []*os.File) {
	t.Helper()
	for i, fd := range pipes(t, n) {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(dup), fmt.Sprintf("pipe %d", i))
		t.Cleanup(func() { _ = f.Close() })
		fs = append(fs, f)
	}
	return fs
}

func fileInode(t testing.TB, fd int) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(os.NewSyscallError("fstat", err))
	}
	return st.Ino
}

func control(t testing.TB, f *os.File, do func(fd int)) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { do(int(fd)) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

var types = map[string]int{"stream": unix.SOCK_STREAM, "seqpacket": unix.SOCK_SEQPACKET, "datagram": unix.SOCK_DGRAM}

// 300 sockets and more do not fit one message; they arrive in batches, in order.
func TestSendFDsBatches(t *testing.T) {
	fdleak.Snapshot(t)
	const total = 300
	for name, typ := range types {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, typ)
			var socks []*fdpass.Socket
			for range total {
				socks = append(socks, bind(t, "tcp://127.0.0.1:0"))
			}
			var got []int
			defer func() {
				for _, fd := range got {
					_ = unix.Close(fd)
				}
			}()
			for at := 0; at < total; at += fdpass.MaxFiles {
				var fds []int
				for _, s := range socks[at:min(at+fdpass.MaxFiles, total)] {
					fds = append(fds, s.FD())
				}
				if err := fdpass.SendFDs(a, []byte("batch"), fds); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 16)
				n, recv, err := fdpass.RecvFDs(b, buf, fdpass.MaxFiles)
				got = append(got, recv...)
				if err != nil || string(buf[:n]) != "batch" || len(recv) != len(fds) {
					t.Fatalf("%q, %d of %d descriptors, %v", buf[:n], len(recv), len(fds), err)
				}
			}
			for i, fd := range got {
				if fileInode(t, fd) != socks[i].Inode() {
					t.Fatalf("descriptor %d is another socket", i)
				}
				if tr := traitsOf(t, fd); !tr.CloseOnExec || !tr.Nonblock || tr.Listens != 1 {
					t.Fatalf("descriptor %d: %+v", i, tr)
				}
			}
		})
	}
}

func TestSendRecv(t *testing.T) {
	fdleak.Snapshot(t)
	for name, typ := range types {
		for _, n := range []int{0, 1, 2, fdpass.MaxFiles} {
			t.Run(fmt.Sprintf("%s %d", name, n), func(t *testing.T) {
				a, b := conns(t, typ)
				sent := files(t, n)
				if err := fdpass.Send(a, []byte("hello"), sent); err != nil {
					t.Fatal(err)
				}
				buf := make([]byte, 64)
				m, got, err := fdpass.Recv(b, buf, n)
				if err != nil || string(buf[:m]) != "hello" || len(got) != n {
					t.Fatalf("%q, %d files, %v", buf[:m], len(got), err)
				}
				for i, f := range got {
					var want, is uint64
					control(t, sent[i], func(fd int) { want = fileInode(t, fd) })
					control(t, f, func(fd int) { is = fileInode(t, fd) })
					if want != is {
						t.Errorf("file %d is another", i)
					}
					if err := f.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// A message larger than a stream's buffer goes out whole, the files once.
func TestSendLong(t *testing.T) {
	fdleak.Snapshot(t)
	a, b := conns(t, unix.SOCK_STREAM)
	raw, rawPeer := pair(t, unix.SOCK_STREAM)
	msg := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	sent := files(t, 1)
	pipe := pipes(t, 1)
	done := make(chan error, 2)
	go func() {
		done <- fdpass.Send(a, msg, sent)
		done <- fdpass.SendFDs(raw, msg, pipe)
	}()
	var text []byte
	count := 0
	buf := make([]byte, 1<<16)
	for len(text) < len(msg) {
		n, got, err := fdpass.Recv(b, buf, 1)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, buf[:n]...)
		for _, f := range got {
			count++
			_ = f.Close()
		}
	}
	if err := <-done; err != nil || !bytes.Equal(text, msg) || count != 1 {
		t.Errorf("Send: %v, %d files, equal %v", err, count, bytes.Equal(text, msg))
	}
	text, count = nil, 0
	for len(text) < len(msg) {
		n, got, err := fdpass.RecvFDs(rawPeer, buf, 1)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, buf[:n]...)
		for _, fd := range got {
			count++
			_ = unix.Close(fd)
		}
	}
	if err := <-done; err != nil || !bytes.Equal(text, msg) || count != 1 {
		t.Errorf("SendFDs: %v, %d descriptors, equal %v", err, count, bytes.Equal(text, msg))
	}
}

// Whatever is cut leaves nothing open: the snapshot sees to that.
func TestRecvTruncated(t *testing.T) {
	fdleak.Snapshot(t)
	tests := []struct {
		name      string
		msg       string
		fds       int
		buf, max  int
		truncated string
		streamToo bool
	}{
		{"no room for any", "m", 3, 8, 0, "MSG_CTRUNC|at most 0", true},
		{"room for one of three", "m", 3, 8, 1, "MSG_CTRUNC|at most 1", true},
		{"room for one of two, with padding", "m", 2, 8, 1, "at most 1", true},
		{"room for 252 of 253", "m", 253, 8, 252, "at most 252", true},
		{"long packet", "longer than it", 2, 8, 2, "MSG_TRUNC", false},
	}
	for _, tt := range tests {
		for name, typ := range types {
			if typ == unix.SOCK_STREAM && !tt.streamToo {
				continue
			}
			t.Run(tt.name+" "+name, func(t *testing.T) {
				check := func(n, got int, err error) {
					t.Helper()
					ok := false
					for want := range strings.SplitSeq(tt.truncated, "|") {
						ok = ok || err != nil && strings.Contains(err.Error(), want)
					}
					if !errors.Is(err, fdpass.ErrTruncated) || !ok || n != 0 || got != 0 {
						t.Errorf("%d bytes, %d descriptors, %v", n, got, err)
					}
				}
				fds := pipes(t, tt.fds)
				buf := make([]byte, tt.buf)
				a, b := pair(t, typ)
				if err := fdpass.SendFDs(a, []byte(tt.msg), fds); err != nil {
					t.Fatal(err)
				}
				n, got, err := fdpass.RecvFDs(b, buf, tt.max)
				check(n, len(got), err)

				c, d := conns(t, typ)
				if err := fdpass.Send(c, []byte(tt.msg), files(t, tt.fds)); err != nil {
					t.Fatal(err)
				}
				n, fs, err := fdpass.Recv(d, buf, tt.max)
				check(n, len(fs), err)
			})
		}
	}
}

// At its limit of descriptors the kernel installs some and drops the rest.
func TestRecvAtLimit(t *testing.T) {
	fdleak.Snapshot(t)
	a, b := pair(t, unix.SOCK_SEQPACKET)
	fds := pipes(t, 20)
	if err := fdpass.SendFDs(a, []byte("m"), fds); err != nil {
		t.Fatal(err)
	}
	next, err := unix.FcntlInt(uintptr(a), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(next)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next + 5), Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	n, got, err := fdpass.RecvFDs(b, make([]byte, 8), 20)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, fdpass.ErrTruncated) || n != 0 || len(got) != 0 {
		t.Errorf("%d bytes, %d descriptors, %v", n, len(got), err)
	}
}

func TestRefused(t *testing.T) {
	fdleak.Snapshot(t)
	a, b := pair(t, unix.SOCK_STREAM)
	c, d := conns(t, unix.SOCK_STREAM)
	one := pipes(t, 1)
	many := make([]int, fdpass.MaxFiles+1)
	for i := range many {
		many[i] = one[0]
	}
	f := files(t, 1)
	manyFiles := make([]*os.File, fdpass.MaxFiles+1)
	for i := range manyFiles {
		manyFiles[i] = f[0]
	}
	closed := files(t, 1)
	_ = closed[0].Close()
	recvFDs := func(buf []byte, limit int) error { _, _, err := fdpass.RecvFDs(b, buf, limit); return err }
	recv := func(buf []byte, limit int) error { _, _, err := fdpass.Recv(d, buf, limit); return err }
	for i, tt := range []struct {
		err  error
		is   error
		want string
	}{
		{fdpass.SendFDs(a, nil, one), unix.EINVAL, "the message is empty"},
		{fdpass.Send(c, nil, f), unix.EINVAL, "the message is empty"},
		{fdpass.SendFDs(a, []byte("m"), many), unix.EINVAL, "at most 253 fit"},
		{fdpass.Send(c, []byte("m"), manyFiles), unix.EINVAL, "at most 253 fit"},
		{fdpass.SendFDs(a, []byte("m"), []int{-1}), unix.EBADF, "sendmsg"},
		{fdpass.Send(c, []byte("m"), closed), os.ErrClosed, "pipe 0"},
		{recvFDs(nil, 1), nil, "buffer is empty"},
		{recv(nil, 1), nil, "buffer is empty"},
		{recvFDs(make([]byte, 1), 254), nil, "254 descriptors"},
		{recv(make([]byte, 1), -1), nil, "-1 descriptors"},
	} {
		if tt.err == nil || tt.is != nil && !errors.Is(tt.err, tt.is) || !strings.Contains(tt.err.Error(), tt.want) {
			t.Errorf("%d: %v, want %q", i, tt.err, tt.want)
		}
	}
	// Nothing of all this was sent.
	if err := unix.SetNonblock(b, true); err != nil {
		t.Fatal(err)
	}
	if err := recvFDs(make([]byte, 8), 8); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("something was sent: %v", err)
	}
}

func TestRecvEnd(t *testing.T) {
	fdleak.Snapshot(t)
	for name, typ := range map[string]int{"stream": unix.SOCK_STREAM, "seqpacket": unix.SOCK_SEQPACKET} {
		a, b := pair(t, typ)
		if err := unix.Shutdown(a, unix.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		if n, fds, err := fdpass.RecvFDs(b, make([]byte, 8), 1); n != 0 || fds != nil || err != nil {
			t.Errorf("%s: RecvFDs at the end: %d, %v, %v", name, n, fds, err)
		}
		c, d := conns(t, typ)
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if n, fs, err := fdpass.Recv(d, make([]byte, 8), 1); n != 0 || fs != nil || !errors.Is(err, io.EOF) {
			t.Errorf("%s: Recv at the end: %d, %v, %v", name, n, fs, err)
		}
		if err := fdpass.SendFDs(a, []byte("m"), nil); !errors.Is(err, unix.EPIPE) {
			t.Errorf("%s: send after shutdown: %v", name, err)
		}
	}
	// An empty packet that carries a descriptor looks like the end: it is closed.
	c, d := conns(t, unix.SOCK_SEQPACKET)
	sendEmpty(t, rawOf(t, c), pipes(t, 1))
	if n, fs, err := fdpass.Recv(d, make([]byte, 8), 1); n != 0 || fs != nil || !errors.Is(err, io.EOF) {
		t.Errorf("empty packet: %d, %v, %v", n, fs, err)
	}
}

// sendEmpty sends descriptors without a byte; package unix would add one.
func sendEmpty(t testing.TB, fd int, fds []int) {
	t.Helper()
	oob := unix.UnixRights(fds...)
	msg := unix.Msghdr{Control: &oob[0]}
	msg.SetControllen(len(oob))
	if _, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), 0); errno != 0 {
		t.Fatal(os.NewSyscallError("sendmsg", errno))
	}
}

// Credentials that the receiver's socket asks for do not push descriptors out.
func TestRecvWithCredentials(t *testing.T) {
	fdleak.Snapshot(t)
	a, b := pair(t, unix.SOCK_SEQPACKET)
	if err := unix.SetsockoptInt(b, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 2, 3, fdpass.MaxFiles} {
		if err := fdpass.SendFDs(a, []byte("m"), pipes(t, n)); err != nil {
			t.Fatal(err)
		}
		_, got, err := fdpass.RecvFDs(b, make([]byte, 8), n)
		if err != nil || len(got) != n {
			t.Errorf("%d of %d descriptors, %v", len(got), n, err)
		}
		for _, fd := range got {
			_ = unix.Close(fd)
		}
	}
}

func TestSendFull(t *testing.T) {
	fdleak.Snapshot(t)
	a, _ := pair(t, unix.SOCK_SEQPACKET)
	if err := unix.SetNonblock(a, true); err != nil {
		t.Fatal(err)
	}
	fds := pipes(t, 1)
	for {
		err := fdpass.SendFDs(a, make([]byte, 4096), fds)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
