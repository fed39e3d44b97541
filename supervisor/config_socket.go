package supervisor

import (
	"fmt"
	"math"
	"slices"

	"github.com/handoverd/handover/fdpass"
)

// laterSocketKeys are options of the design that this version lacks.
var laterSocketKeys = []string{
	"free_bind", "transparent", "device", "defer_accept", "fast_open", "mptcp",
	"recv_buffer", "send_buffer", "mark",
}

// sockets reads the table of a service's sockets, in the order of the file.
func (b *builder) sockets(service string, t *table) []SocketConfig {
	var list []SocketConfig
	variables := map[string]string{}
	for _, name := range t.names() {
		if err := checkName(name); err != nil {
			b.src.fail(t.at(name), err)
			continue
		}
		v := socketVariable(name)
		if other, taken := variables[v]; taken {
			t.fail(name, "its variable %s is that of socket %q too", v, other)
			continue
		}
		variables[v] = name
		if s, ok := b.socket(name, t); ok {
			list = append(list, s)
		}
	}
	return list
}

// socket reads one: an address, or a table with listen and options.
func (b *builder) socket(name string, parent *table) (SocketConfig, bool) {
	s := SocketConfig{Name: name, Line: b.src.lines[pathKey(parent.at(name))]}
	var listen string
	t, key := parent, name
	if _, ok := parent.m[name].(map[string]any); ok {
		t, key = parent.sub(name), "listen"
		if !t.has("listen") {
			parent.fail(name, "listen is missing")
		}
	}
	listen = t.str(key, "")
	if listen == "" {
		if _, ok := t.m[key].(string); ok {
			t.fail(key, "is empty")
		}
		if t != parent {
			b.socketOptions(t, &s.Options)
		}
		return s, false
	}
	addr, options, err := fdpass.ParseAddr(listen)
	if err != nil {
		t.fail(key, "%w", err)
		return s, false
	}
	s.Addr, s.Options = addr, options
	if t != parent {
		s.PerGeneration = t.boolean("per_generation", false)
		b.socketOptions(t, &s.Options)
	}
	b.checkSocket(t, key, &s)
	checkOwn(t, key, &s)
	return s, true
}

// socketOptions reads the options of a table over those of the address.
func (b *builder) socketOptions(t *table, o *fdpass.Options) {
	set := func(key string, fromAddress bool) bool {
		if !t.has(key) {
			return false
		}
		if fromAddress {
			t.fail(key, "is in the address too; keep one")
		}
		return true
	}
	if set("backlog", o.Backlog != 0) {
		o.Backlog = t.integer("backlog", 0, 1, math.MaxInt32)
	}
	if set("reuse_port", o.ReusePort) {
		o.ReusePort = t.boolean("reuse_port", false)
	}
	if set("v6only", o.V6Only != nil) {
		v := t.boolean("v6only", false)
		o.V6Only = &v
	}
	if set("nonblocking", o.Nonblocking != nil) {
		v := t.boolean("nonblocking", true)
		o.Nonblocking = &v
	}
	if set("mode", o.Mode != nil) {
		o.Mode = t.octal("mode", 0o777)
	}
	if set("owner", o.Owner != "") {
		o.Owner = t.str("owner", "")
	}
	if set("group", o.Group != "") {
		o.Group = t.str("group", "")
	}
	t.notYet(laterSocketKeys...)
	for _, known := range []string{"backlog", "reuse_port", "v6only", "nonblocking", "mode", "owner", "group", "per_generation"} {
		t.get(known)
	}
	t.finish()
}

// checkSocket resolves the address against its options, and refuses options
// that this kind of socket does not have and owners that are in no file.
// key is where the address is written.
func (b *builder) checkSocket(t *table, key string, s *SocketConfig) {
	at := func(option string) string {
		if key == "listen" && t.has(option) {
			return option
		}
		return key
	}
	addr, err := fdpass.Canonical(s.Addr, s.Options)
	if err != nil {
		t.fail(key, "%w", err)
		return
	}
	s.Addr = addr
	if s.Options.Backlog != 0 && addr.Kind.Datagram() {
		t.fail(at("backlog"), "%s has no accept queue, so no backlog", addr.Kind)
	}
	if o := s.Options.Owner; o != "" {
		if _, err := b.host.accounts.uid(o); err != nil {
			t.fail(at("owner"), "%w", err)
		}
	}
	if g := s.Options.Group; g != "" {
		if _, err := b.host.accounts.gid(g); err != nil {
			t.fail(at("group"), "%w", err)
		}
	}
}

// placed is a socket with where it stands, for errors that name two.
type placed struct {
	service string
	socket  SocketConfig
}

func (p placed) path() []string { return []string{"service", p.service, "socket", p.socket.Name} }

func (p placed) String() string {
	if p.socket.Line == 0 {
		return fmt.Sprintf("%s.%s", p.service, p.socket.Name)
	}
	return fmt.Sprintf("%s.%s (line %d)", p.service, p.socket.Name, p.socket.Line)
}

// shareSockets refuses one address with different options, and addresses
// that the kernel does not bind beside each other.
func (b *builder) shareSockets(c *Config) {
	byKey := map[string]placed{}
	// Only sockets of one port or path can clash, so only they are compared:
	// a file may have thousands.
	byPlace := map[string][]placed{}
	for _, s := range c.inFileOrder() {
		for _, socket := range s.Sockets {
			p := placed{s.Name, socket}
			b.compareHTTP(c, p)
			key := socketKey(s.Name, socket)
			if socket.PerGeneration { // two of them on one path can never be bound
				key = socket.Addr.Key()
			}
			if first, ok := byKey[key]; ok && socket.PerGeneration && !isInet(socket.Addr.Kind) {
				b.src.fail(p.path(), fmt.Errorf("%s is bound for each generation, and so is that of %s", socket.Addr, first))
				continue
			} else if ok && !socket.PerGeneration {
				b.compareOptions(p, first)
				continue
			}
			byKey[key] = p
			place := fmt.Sprint(socket.Addr.Port, socket.Addr.Path)
			for _, q := range byPlace[place] {
				if socket.Addr.Conflicts(q.socket.Addr) {
					b.src.fail(p.path(), fmt.Errorf("%s cannot be bound beside %s of %s", socket.Addr, q.socket.Addr, q))
					break
				}
			}
			byPlace[place] = append(byPlace[place], p)
		}
	}
}

func (b *builder) compareOptions(p, first placed) {
	kept, refused := first.socket.Options.Diff(p.socket.Options)
	for _, option := range append(kept, refused...) {
		b.src.fail(p.path(), fmt.Errorf("names the same socket as %s with another %s: %s there, %s here",
			first, option, optionText(first.socket.Options, option), optionText(p.socket.Options, option)))
	}
}

func (b *builder) compareHTTP(c *Config, p placed) {
	for _, own := range []struct{ key, address string }{{"admin", c.Admin}, {"health", c.Health}} {
		a, ok := httpSocket(own.address)
		if ok && (a.Key() == p.socket.Addr.Key() || a.Conflicts(p.socket.Addr)) {
			b.src.fail(p.path(), fmt.Errorf("%s is taken by %s = %q", p.socket.Addr, own.key, own.address))
		}
	}
}

// inFileOrder sorts a copy of the services by their first socket's line,
// so that of two that clash the later one is blamed.
func (c *Config) inFileOrder() []*ServiceConfig {
	list := slices.Clone(c.Services)
	slices.SortStableFunc(list, func(a, b *ServiceConfig) int {
		if len(a.Sockets) == 0 || len(b.Sockets) == 0 {
			return len(b.Sockets) - len(a.Sockets)
		}
		return a.Sockets[0].Line - b.Sockets[0].Line
	})
	return list
}
