package proc

import (
	"net/netip"
	"time"
)

// Connection is one TCP connection as the kernel shows it.
type Connection struct {
	Local, Remote netip.AddrPort // an IPv4-mapped address is shown as IPv4
	Cookie        uint64         // tells it from every other for as long as the system runs
	Inode         uint64         // of the socket; 0: no process has accepted it yet, or none holds it any more
	Closing       bool           // it has been closed here: TIME_WAIT
	Unread        uint32         // bytes that no process has read
	Unsent        uint32         // bytes that the other end has not acknowledged
	// Sent and Received are how long ago the last data went each way; 0 where the
	// kernel does not tell, as of a connection in TIME_WAIT.
	Sent, Received time.Duration
}

// Silent reports whether nothing has gone either way for at least d, and nothing
// waits to be read or to be acknowledged.
func (c *Connection) Silent(d time.Duration) bool {
	return c.Closing || c.Unread == 0 && c.Unsent == 0 && c.Sent >= d && c.Received >= d
}
