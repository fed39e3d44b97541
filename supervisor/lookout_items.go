package supervisor

import (
	"slices"

	"github.com/handoverd/handover/fdpass"
)

// connections derives from the state whose connections are to be looked at.
func (l *loop) connections() []connItem {
	var out []connItem
	for _, name := range l.state.Order {
		if it := l.connItem(l.state.Services[name]); it != nil {
			out = append(out, *it)
		}
	}
	return out
}

func (l *loop) connItem(svc *Service) *connItem {
	it := &connItem{service: svc.Name}
	if svc.Lame != nil && svc.Stop != StopDraining {
		it.lame = svc.Lame.Began
	}
	if svc.Stop == StopHolding {
		it.quiet = svc.hold()
	}
	var living []*child
	for _, g := range svc.Generations {
		held := l.children[ref(svc, g)]
		if g.PID == 0 || g.Exited || held == nil {
			continue
		}
		living = append(living, held)
		c := connGen{at: ref(svc, g), pid: g.PID}
		switch {
		case g.Phase == PhaseServing, g.Phase == PhaseBaking:
			it.drain = append(it.drain, c)
		case g.Phase == PhaseDraining && g.Untold && g.Held && len(g.Leaving) == 0:
			it.quiet, it.settled = svc.hold(), true
			it.drain = append(it.drain, c)
		}
		if g.Phase == PhaseDraining {
			if l.state.Stop == nil { // it may leave at any time: that is no news until its deadlines are near
				c.from = g.undisturbed().Add(-openFrom)
			}
			it.count = append(it.count, c)
		}
	}
	if it.lame == 0 && it.quiet == 0 && len(it.count) == 0 {
		return nil // nearly always: what follows is for all sockets
	}
	for _, c := range living {
		it.add(c.tcpSockets())
	}
	if len(it.sockets) == 0 {
		return nil
	}
	it.alone = len(living) == 1 && !l.shared(svc)
	return it
}

func (it *connItem) add(sockets []fdpass.Addr) {
	for _, a := range sockets {
		if !slices.Contains(it.sockets, a) {
			it.sockets = append(it.sockets, a)
		}
	}
}

// tcpSockets are where the TCP sockets of a generation listen, or listened: one that
// was closed here may still have connections.
func (c *child) tcpSockets() []fdpass.Addr {
	var out []fdpass.Addr
	for _, a := range c.addrs {
		if isInet(a.Kind) && !a.Kind.Datagram() {
			out = append(out, a)
		}
	}
	return out
}

// shared reports whether another service has one of the service's sockets.
func (l *loop) shared(svc *Service) bool {
	if svc.Spec == nil {
		return false
	}
	for name, other := range l.state.Services {
		if name == svc.Name || other.Spec == nil {
			continue
		}
		for _, k := range svc.Spec.Keys {
			if slices.ContainsFunc(other.Spec.Keys, func(o SocketKey) bool { return o.Key == k.Key }) {
				return true
			}
		}
	}
	return false
}
