package drain

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"
)

// A conn is a tracked connection: it leaves its group when it is closed.
type conn struct {
	net.Conn
	member *member
}

// A rawConn is a conn over a connection with a descriptor.
type rawConn struct {
	*conn
	sc syscall.Conn
}

func wrap(c net.Conn, m *member) net.Conn {
	t := &conn{Conn: c, member: m}
	if sc, ok := c.(syscall.Conn); ok {
		return rawConn{t, sc}
	}
	return t
}

// Close closes the connection and then leaves the group.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.member.leave()
	return err
}

// NetConn returns the original connection. Closing that is not seen here.
func (c *conn) NetConn() net.Conn { return c.Conn }

// CloseWrite shuts down the writing side where the original can.
//
// net/http asks for it by type assertion before it hangs up on a client that
// is still sending; without it the unread bytes would turn into a reset that
// overtakes the response.
func (c *conn) CloseWrite() error {
	if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return cw.CloseWrite()
	}
	return errors.ErrUnsupported
}

// ReadFrom keeps sendfile(2) and splice(2): net/http and io.Copy look for it on
// the connection they were given.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	if rf, ok := c.Conn.(io.ReaderFrom); ok {
		return rf.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c.Conn}, r)
}

func (c *conn) tracked() *member { return c.member }

// SyscallConn gives access to the descriptor of the original connection.
func (c rawConn) SyscallConn() (syscall.RawConn, error) { return c.sc.SyscallConn() }

// memberOf finds the member behind a connection that net/http reports, which
// for ServeTLS is a *tls.Conn around ours.
func memberOf(c net.Conn) *member {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if t, ok := c.(interface{ tracked() *member }); ok {
		return t.tracked()
	}
	return nil
}
