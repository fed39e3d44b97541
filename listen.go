package handover

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
)

// Listen gives the inherited socket called name. network must match it: "tcp",
// "tcp4", "tcp6", "unix" or "unixpacket". address is used only without a
// supervisor, where Listen binds like [net.Listen].
//
// A supervised listener does not accept before the supervisor says so, which
// is while Ready waits: until then Accept blocks, Addr works, and the socket
// is in no epoll set. One that is bound for this generation alone
// (per_generation) accepts at once: nobody else does there. A name that is not there is a *[SocketError] wrapping
// [ErrNoSocket] and listing those that are; each can be taken once, before
// Ready.
//
// The caller owns the result. Closing it stops this process from accepting;
// the socket stays open for the next generation. It removes no path but one
// that it bound itself. O_NONBLOCK is set on the socket, for all who share it:
// Go cannot work without.
func (c *Child) Listen(name, network, address string) (net.Listener, error) {
	const op = "listen"
	if !slices.Contains([]string{"tcp", "tcp4", "tcp6", "unix", "unixpacket"}, network) {
		return nil, &SocketError{Op: op, Name: name, Network: network, Err: net.UnknownNetworkError(network)}
	}
	if c.standalone() {
		ln, err := bind(c, op, name, network, address, func(ctx context.Context) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, network, address)
		})
		if err != nil {
			return nil, err
		}
		return ln, nil
	}
	fd, addr, err := c.obtain(op, name, network, address, true)
	if err != nil {
		return nil, err
	}
	l := &listener{newLate(name, network, fd, addr, openListener)}
	c.behindGate(name, l)
	if c.env.activated && c.conn == nil { // by systemd: nothing to wait for
		ln, err := l.get("listen")
		if err != nil {
			return nil, err
		}
		return ln, nil
	}
	return l, nil
}

// ListenPacket is Listen for datagrams: "udp", "udp4", "udp6" or "unixgram".
// Before the supervisor says so nothing is read, and writes wait as well.
func (c *Child) ListenPacket(name, network, address string) (net.PacketConn, error) {
	const op = "listen packet"
	if !slices.Contains([]string{"udp", "udp4", "udp6", "unixgram"}, network) {
		return nil, &SocketError{Op: op, Name: name, Network: network, Err: net.UnknownNetworkError(network)}
	}
	if c.standalone() {
		pc, err := bind(c, op, name, network, address, func(ctx context.Context) (net.PacketConn, error) {
			return new(net.ListenConfig).ListenPacket(ctx, network, address)
		})
		if err != nil {
			return nil, err
		}
		return pc, nil
	}
	fd, addr, err := c.obtain(op, name, network, address, false)
	if err != nil {
		return nil, err
	}
	p := &packetConn{late: newLate(name, network, fd, addr, net.FilePacketConn)}
	c.behindGate(name, p)
	if c.env.activated && c.conn == nil {
		pc, err := p.get(op)
		if err != nil {
			return nil, err
		}
		return pc, nil
	}
	return p, nil
}

// behindGate has l wait until this generation may accept. A socket that no other
// generation has need not: probes that ask there want to be answered before.
func (c *Child) behindGate(name string, l interface{ settle(error) }) {
	if c.env.alone(name) {
		l.settle(nil)
		return
	}
	c.accept.add(l)
}

// File gives any other inherited descriptor; the caller owns it. Of a
// listening socket prefer Listen: a File of a non-blocking socket is in the
// epoll set at once, and the supervisor takes that for accepting.
func (c *Child) File(name string) (*os.File, error) {
	fd, _, err := c.take("file", name, "", false)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// standalone says that nobody passes sockets, so Listen binds.
func (c *Child) standalone() bool {
	return !c.env.supervised && !c.env.activated && !c.env.upgradesItself()
}

// obtain gives the descriptor of the socket called name: what was passed or, to a program that upgrades itself, what the
// process before this one had, or a new one.
func (c *Child) obtain(op, name, network, address string, listening bool) (int, net.Addr, error) {
	if !c.env.upgradesItself() {
		return c.take(op, name, network, listening)
	}
	var addr net.Addr
	fd, err := bind(c, op, name, network, address, func(ctx context.Context) (int, error) {
		fd, err := c.self.open(ctx, name, network, address, listening)
		if err != nil {
			return -1, err
		}
		if addr, err = inspect(fd, network, listening); err != nil {
			closeFD(fd)
		}
		return fd, err
	})
	return fd, addr, err
}

// bind takes name by binding it.
func bind[T any](c *Child, op, name, network, address string, listen func(context.Context) (T, error)) (T, error) {
	fail := func(err error) (T, error) {
		var none T
		return none, &SocketError{Op: op, Name: name, Network: network, Address: address, Err: err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.late {
		return fail(errLate)
	}
	for _, s := range c.socks {
		if s.name == name {
			return fail(fmt.Errorf("%w: taken before", ErrNoSocket))
		}
	}
	v, err := listen(context.Background())
	if err != nil {
		return fail(err)
	}
	c.socks = append(c.socks, inherited{name: name, fd: -1, taken: true})
	return v, nil
}

// take hands the descriptor called name over to the caller. With a network it
// is checked first, and stays where it is if it does not match.
func (c *Child) take(op, name, network string, listening bool) (int, net.Addr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fail := func(err error) (int, net.Addr, error) {
		return -1, nil, &SocketError{Op: op, Name: name, Network: network, Err: err}
	}
	if c.late {
		return fail(errLate)
	}
	s, err := c.find(name)
	if err != nil {
		return fail(err)
	}
	var addr net.Addr
	if network != "" {
		if addr, err = inspect(s.fd, network, listening); err != nil {
			return fail(err)
		}
	}
	s.taken, s.name = true, name
	return s.fd, addr, nil
}

// find gives the first socket called name that is not taken; systemd may pass
// several under one name.
func (c *Child) find(name string) (*inherited, error) {
	names, taken := make([]string, 0, len(c.socks)), false
	nameless := !c.env.supervised && len(c.socks) == 1 && c.socks[0].name == unnamed
	for i := range c.socks {
		s := &c.socks[i]
		names = append(names, s.name)
		same := s.name == name || nameless || (c.env.byKey && socketKey(s.name) == socketKey(name))
		if same && !s.taken {
			return s, nil
		}
		taken = taken || same
	}
	switch {
	case taken:
		return nil, fmt.Errorf("%w: taken before", ErrNoSocket)
	case len(names) == 0:
		return nil, fmt.Errorf("%w: none is inherited", ErrNoSocket)
	}
	return nil, fmt.Errorf("%w: inherited are %q", ErrNoSocket, names)
}
