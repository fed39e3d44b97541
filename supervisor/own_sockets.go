package supervisor

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/handoverd/handover/fdpass"
)

// generationVar stands for the number of the generation in what is configured.
const generationVar = "${HANDOVER_GENERATION}"

// inGeneration fills the number in, written in either way.
func inGeneration(s string, n int) string {
	return expand(s, map[string]string{"HANDOVER_GENERATION": strconv.Itoa(n)})
}

// at is where the socket is in the table of sockets.
func (k SocketKey) at(n int) string {
	if k.Own {
		return fmt.Sprintf("%s#%d", k.Key, n)
	}
	return k.Key
}

// shares reports whether a generation of the spec shares a socket with the others.
// Only what it does with those says whether it takes its part of the clients, and
// whether it has let go of them.
func (s *Spec) shares() bool {
	return slices.ContainsFunc(s.Keys, func(k SocketKey) bool { return !k.Own })
}

func sharedKeys(s *Spec) []SocketKey {
	return slices.DeleteFunc(slices.Clone(s.Keys), func(k SocketKey) bool { return k.Own })
}

// keys are those of the generation's sockets in the table, in the order they are
// handed out.
func (g *Generation) keys() []SocketKey {
	out := slices.Clone(g.Spec.Keys)
	for i := range out {
		out[i].Key = out[i].at(g.N)
	}
	return out
}

// ownKeys are the keys of those that are bound for this generation alone.
func (g *Generation) ownKeys() []SocketKey {
	if !slices.ContainsFunc(g.Spec.Keys, func(k SocketKey) bool { return k.Own }) {
		return nil // no work for the many that have none
	}
	return slices.DeleteFunc(g.keys(), func(k SocketKey) bool { return !k.Own })
}

// in is the address of the socket in generation n.
func (c *SocketConfig) in(n int) fdpass.Addr {
	addr := c.Addr
	addr.Path = inGeneration(addr.Path, n)
	return addr
}

// bindOwn binds the sockets that are generation n's alone. The caller owns them,
// by key, also those that come with an error.
func bindOwn(spec *Spec, n int) (map[string]*fdpass.Socket, error) {
	var own map[string]*fdpass.Socket
	for i, k := range spec.Keys {
		if !k.Own {
			continue
		}
		c := &spec.Config.Sockets[i]
		s, err := fdpass.Bind(c.in(n), c.Options)
		if err != nil {
			return own, fmt.Errorf("service.%s.socket.%s: %w", spec.Config.Name, c.Name, err)
		}
		if own == nil {
			own = map[string]*fdpass.Socket{}
		}
		own[k.at(n)] = s
	}
	return own, nil
}

// closeOwn ends sockets that no table has taken.
func closeOwn(own map[string]*fdpass.Socket) {
	for _, s := range own {
		_, _ = s.Unlink(), s.Close()
	}
}

// describeOwn tells the dialects which sockets are the generation's alone, and
// where each is: the port of one may be the kernel's choice.
func (l *loop) describeOwn(h *handout, g *Generation) {
	for _, k := range g.ownKeys() {
		if s := l.sockets.open[k.Key]; s != nil {
			h.own = append(h.own, ownSocket{k.Name, dialAddress(s.Addr())})
		}
	}
}

// ownSocket is one of them.
type ownSocket struct{ name, address string }

// dialAddress is where a client on this host finds the socket: a path, "@name", or
// ADDRESS:PORT with the loopback for a wildcard.
func dialAddress(a fdpass.Addr) string {
	if !isInet(a.Kind) {
		return a.Path
	}
	ip := a.IP
	switch {
	case !ip.IsValid() || ip.IsUnspecified() && (ip.Is4() || a.Kind == fdpass.TCP || a.Kind == fdpass.UDP):
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // a dual-stack wildcard takes it too
	case ip.IsUnspecified():
		ip = netip.IPv6Loopback()
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(int(a.Port)))
}

// checkOwn refuses an address that two generations could not have at once.
func checkOwn(t *table, key string, s *SocketConfig) {
	varies := strings.Contains(s.Addr.Path, generationVar) || strings.Contains(s.Addr.Path, "$HANDOVER_GENERATION")
	switch {
	case !s.PerGeneration && varies:
		t.fail(key, "has the number of the generation in it: such a socket needs per_generation = true")
	case !s.PerGeneration:
	case isInet(s.Addr.Kind) && s.Addr.Port != 0:
		t.fail(key, "per_generation needs port 0, which gives each generation its own: two cannot have port %d at once", s.Addr.Port)
	case !isInet(s.Addr.Kind) && !varies:
		t.fail(key, "per_generation needs %s in the path: two generations cannot have one path at once", generationVar)
	case s.Options.ReusePort:
		t.fail(key, "per_generation and reuse_port: nobody shares the address of one generation")
	case len(inGeneration(s.Addr.Path, 1_000_000)) > maxSocketPath:
		t.fail(key, "the path with the number of a generation is longer than the %d bytes that a socket's has at most", maxSocketPath)
	}
}
