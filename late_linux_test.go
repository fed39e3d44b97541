package handover

import (
	"fmt"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A listener that another holder has shut down, and that is made to listen again, goes on: its server is told nothing.
func TestAcceptOutlivesShutdown(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := plain.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	_ = plain.Close()
	fd := int(f.Fd())
	mine, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{newLate("http", "tcp", mine, plain.Addr(), func(f *os.File) (net.Listener, error) {
		ln, err := openListener(f)
		return &countsRefusals{Listener: ln, refused: make(chan struct{}, 1)}, err
	})}
	l.settle(nil)
	if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_ = c.Close()
		}
		accepted <- err
	}()
	<-l.conn.(*countsRefusals).refused
	if err := unix.Listen(fd, 16); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd) // a port that was not asked for is another one now
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", sa.(*unix.SockaddrInet4).Port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := <-accepted; err != nil {
		t.Errorf("the server is told %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// countsRefusals says when accept(2) was refused.
type countsRefusals struct {
	net.Listener
	refused chan struct{}
}

func (c *countsRefusals) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		select {
		case c.refused <- struct{}{}:
		default:
		}
	}
	return conn, err
}
