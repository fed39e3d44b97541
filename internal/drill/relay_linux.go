package drill

import (
	"net"

	"golang.org/x/sys/unix"
)

// waitReset waits, after the peer's FIN, until the connection is reset (true) or closed here (false). Nothing can be read
// any more, so the reset shows only as SO_ERROR (socket(7)), of which the poller tells by EPOLLHUP (epoll_ctl(2)).
func waitReset(c *net.TCPConn) bool {
	rc, err := c.SyscallConn()
	if err != nil {
		return false
	}
	reset := false
	err = rc.Read(func(fd uintptr) bool {
		errno, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		reset = err == nil && errno != 0
		return reset || err != nil
	})
	return err == nil && reset
}
