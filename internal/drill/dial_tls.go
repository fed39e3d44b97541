package drill

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"time"
)

// open opens one connection, with TLS where the load has it. The caller closes it.
func (d *dialer) open(deadline time.Time) (net.Conn, *failure) {
	c, err := d.dial(deadline)
	if err != nil {
		return nil, d.failure(err)
	}
	if d.tls == nil {
		return c, nil
	}
	raw := &endSeen{Conn: c}
	t := &tlsConn{tls.Client(raw, d.tls), raw}
	err = c.SetDeadline(deadline)
	if err == nil {
		err = t.Handshake()
	}
	if err != nil {
		_ = c.Close() // nothing of it is used
		f := streamFailure(err, false)
		f.err = fmt.Errorf("TLS handshake: %w", err)
		return nil, f
	}
	if want := d.tls.NextProtos; len(want) > 0 && t.ConnectionState().NegotiatedProtocol != want[0] {
		_ = c.Close() // it speaks another protocol
		return nil, &failure{kind: KindBadStatus, err: fmt.Errorf("TLS handshake: the server does not offer %s (ALPN, RFC 7301)", want[0])}
	}
	return t, nil
}

// failure classifies an error of dial.
func (d *dialer) failure(err error) *failure {
	f := connectFailure(err)
	if d.target.network == "unix" && errors.Is(err, fs.ErrPermission) {
		f.fault = "" // the socket's mode is the server's doing
	}
	return f
}

// tlsConn tells an end that the server announced (close_notify) from a cut (RFC 8446, 6.1). crypto/tls gives io.EOF for both
// where the cut falls between two records.
type tlsConn struct {
	*tls.Conn
	raw *endSeen
}

// Read returns io.EOF after close_notify only, and io.ErrUnexpectedEOF after a cut.
func (c *tlsConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) && c.raw.ended {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// endSeen notes that its connection has ended. crypto/tls does not read beyond close_notify. It is read by one goroutine.
type endSeen struct {
	net.Conn
	ended bool
}

func (c *endSeen) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.ended = c.ended || errors.Is(err, io.EOF)
	return n, err
}
