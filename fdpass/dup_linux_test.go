package fdpass_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/fdleak"
)

// polled reports whether an epoll set of this process holds descriptor n.
func polled(t testing.TB, n int) bool {
	t.Helper()
	infos, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range infos {
		b, err := os.ReadFile(info)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) > 1 && f[0] == "tfd:" && f[1] == fmt.Sprint(n) {
				return true
			}
		}
	}
	return false
}

func nonblock(t testing.TB, fd int) bool {
	t.Helper()
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		t.Fatal(err)
	}
	return flags&unix.O_NONBLOCK != 0
}

// A file of a listener holds it: it is in no epoll set, O_NONBLOCK stays, also
// with the flag off, and package net can make a listener of it.
func TestDup(t *testing.T) {
	fdleak.Snapshot(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f, err := fdpass.Dup(ln.(*net.TCPListener), "http")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Name() != "http" {
		t.Errorf("Name() = %q", f.Name())
	}
	control(t, f, func(fd int) {
		if polled(t, fd) {
			t.Error("the file of a listener is in an epoll set")
		}
		if tr := traitsOf(t, fd); !tr.Nonblock || !tr.CloseOnExec || tr.Listens != 1 {
			t.Errorf("%+v", tr)
		}
	})
	again, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	control(t, f, func(fd int) {
		if !nonblock(t, fd) {
			t.Error("FileListener cleared O_NONBLOCK")
		}
	})
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", again.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := again.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Close()
	second, err := fdpass.Dup(f, "again")
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
	_ = f.Close()
	if _, err := fdpass.Dup(f, "closed"); err == nil || !strings.Contains(err.Error(), "use of closed file") {
		t.Errorf("Dup of a closed file: %v", err)
	}
}

// A connection's duplicate can be read, with the poller.
func TestDupConn(t *testing.T) {
	fdleak.Snapshot(t)
	a, b := conns(t, unix.SOCK_STREAM)
	f, err := fdpass.Dup(a, "conn")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	line := make(chan string, 1)
	go func() {
		s, _ := bufio.NewReader(f).ReadString('\n')
		line <- s
	}()
	if _, err := b.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if got := <-line; got != "hello\n" {
		t.Errorf("read %q", got)
	}
}

// Nothing that passes a socket on changes its shared flags or polls it.
func TestFlagsUnchanged(t *testing.T) {
	fdleak.Snapshot(t)
	dir := t.TempDir()
	for _, flag := range []string{"true", "false"} {
		want := flag == "true"
		for _, addr := range []string{"tcp://127.0.0.1:0", "udp://127.0.0.1:0", "unix:" + dir + "/s" + flag, "unixgram:" + dir + "/d" + flag} {
			s := bind(t, addr+"?nonblocking="+flag)
			a, b := pair(t, unix.SOCK_SEQPACKET)
			if err := fdpass.SendFDs(a, []byte("m"), []int{s.FD()}); err != nil {
				t.Fatal(err)
			}
			_, fds, err := fdpass.RecvFDs(b, make([]byte, 8), 1)
			if err != nil {
				t.Fatal(err)
			}
			if got := nonblock(t, s.FD()); got != want {
				t.Errorf("%s: O_NONBLOCK is %v after SendFDs and RecvFDs", addr, got)
			}
			if err := fdpass.SendFDs(a, []byte("m"), fds); err != nil {
				t.Fatal(err)
			}
			_ = unix.Close(fds[0])
			c, d := conns(t, unix.SOCK_STREAM)
			_, fds, err = fdpass.RecvFDs(b, make([]byte, 8), 1)
			if err != nil {
				t.Fatal(err)
			}
			adopted, err := fdpass.Adopt(fds[0], s.Addr(), s.Options())
			if err != nil {
				t.Fatal(err)
			}
			if err := fdpass.SendFDs(rawOf(t, c), []byte("m"), []int{adopted.FD()}); err != nil {
				t.Fatal(err)
			}
			_, fs, err := fdpass.Recv(d, make([]byte, 8), 1)
			if err != nil {
				t.Fatal(err)
			}
			dup, err := fdpass.Dup(fs[0], "dup")
			if err != nil {
				t.Fatal(err)
			}
			if err := fdpass.Send(c, []byte("m"), []*os.File{dup}); err != nil {
				t.Fatal(err)
			}
			_, last, err := fdpass.Recv(d, make([]byte, 8), 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range []*os.File{fs[0], dup, last[0]} {
				control(t, f, func(fd int) {
					if polled(t, fd) {
						t.Errorf("%s: a file is in an epoll set", addr)
					}
				})
			}
			if got := nonblock(t, s.FD()); got != want {
				t.Errorf("%s: O_NONBLOCK is %v after Adopt, Send, Recv and Dup", addr, got)
			}
			if err := errors.Join(fs[0].Close(), dup.Close(), last[0].Close(), adopted.Close()); err != nil {
				t.Error(err)
			}
		}
	}
}

// rawOf is the descriptor of c, borrowed.
func rawOf(t testing.TB, c *net.UnixConn) int {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := -1
	if err := raw.Control(func(fd uintptr) { n = int(fd) }); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestSet(t *testing.T) {
	fdleak.Snapshot(t)
	var s fdpass.Set
	if _, ok := s.Take("none"); ok || s.Len() != 0 || s.Close() != nil {
		t.Error("the zero set is not empty")
	}
	fs := files(t, 3)
	s.Add("b", fs[0])
	s.Add("a", fs[1])
	s.Add("b", fs[2])
	if got := s.Names(); !slices.Equal(got, []string{"b", "a", "b"}) || s.Len() != 3 {
		t.Errorf("Names() = %v", got)
	}
	f, ok := s.Take("b")
	if !ok || f != fs[0] || !slices.Equal(s.Names(), []string{"a", "b"}) {
		t.Errorf("Take: %v, %v; left %v", f, ok, s.Names())
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil || s.Len() != 0 {
		t.Errorf("Close: %v, %d left", err, s.Len())
	}
	if _, err := fs[0].Stat(); err != nil {
		t.Errorf("a taken file was closed: %v", err)
	}
	if _, err := fs[1].Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a file that was not taken: %v", err)
	}
}
