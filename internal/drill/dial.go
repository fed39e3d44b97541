package drill

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
)

// sources is the number of addresses that connections to 127.0.0.0/8 come from, beginning with 127.0.0.2. 127.0.0.1 is left
// out: there a connect to a closed port of the ephemeral range may connect to itself.
const sources = 249

// dialer opens connections to one target. It is safe for concurrent use.
type dialer struct {
	target target
	tls    *tls.Config // nil: none
	next   atomic.Uint32
}

// deadlineOnly is a context with a deadline that cannot be cancelled: net then sets a deadline on the socket and starts no
// goroutine for each connect.
type deadlineOnly struct {
	context.Context
	at time.Time
}

func (d deadlineOnly) Deadline() (time.Time, bool) { return d.at, true }

// source is the local address of the next connection; the zero value leaves it to the kernel.
func (d *dialer) source() netip.AddrPort {
	if a := d.target.addr.Addr(); !a.Is4() || !a.IsLoopback() {
		return netip.AddrPort{}
	}
	last := 2 + d.next.Add(1)%sources
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(last)}), 0)
}

// control runs between socket and bind.
func control(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = bindWithoutPort(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// dial opens one connection. The caller closes it.
func (d *dialer) dial(deadline time.Time) (net.Conn, error) {
	if d.target.network == "unix" {
		return dialUnix(d.target.path, deadline)
	}
	// Keep-alive probes would be four system calls for each connection and can tell nothing on loopback.
	nd := net.Dialer{KeepAlive: -1}
	if d.target.network == "tcp4" {
		nd.Control = control
	}
	c, err := nd.DialTCP(deadlineOnly{context.Background(), deadline}, d.target.network, d.source(), d.target.addr)
	if err != nil {
		return nil, err
	}
	return c, nil
}
