package fdpass

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Kind is the type and family of a socket, in the words of package net.
type Kind string

// The kinds. TCP and UDP take the family of the address; with [::] they are
// dual-stack. The kinds that end in 4 or 6 force a family.
const (
	TCP        Kind = "tcp"
	TCP4       Kind = "tcp4"
	TCP6       Kind = "tcp6"
	UDP        Kind = "udp"
	UDP4       Kind = "udp4"
	UDP6       Kind = "udp6"
	Unix       Kind = "unix"       // stream
	Unixgram   Kind = "unixgram"   // datagram
	Unixpacket Kind = "unixpacket" // sequenced packets
)

// Valid reports whether k is one of the nine kinds.
func (k Kind) Valid() bool { return k.inet() || k.unix() }

// Datagram reports whether sockets of this kind receive datagrams: they do not
// listen and accept.
func (k Kind) Datagram() bool { return k.base() == UDP || k == Unixgram }

func (k Kind) inet() bool { return k.base() == TCP || k.base() == UDP }
func (k Kind) unix() bool { return k == Unix || k == Unixgram || k == Unixpacket }

// base is k without its forced family.
func (k Kind) base() Kind {
	switch k {
	case TCP4, TCP6:
		return TCP
	case UDP4, UDP6:
		return UDP
	}
	return k
}

// with6 is k with the IPv6 family forced.
func (k Kind) with6() Kind { return k.base() + "6" }

// Paths longer than this do not fit sun_path with its final NUL, unix(7).
const maxPath = 107

// Addr is where a socket is bound. The zero value is no address.
type Addr struct {
	Kind Kind       `json:"kind"`
	IP   netip.Addr `json:"ip,omitzero"`    // inet; the zero value is [::], or 0.0.0.0 for tcp4 and udp4
	Port uint16     `json:"port,omitempty"` // inet; 0 lets the kernel choose
	Path string     `json:"path,omitempty"` // unix: an absolute path, or "@name" in the abstract namespace
}

// Abstract reports whether a is in the abstract UNIX namespace.
func (a Addr) Abstract() bool { return a.Kind.unix() && strings.HasPrefix(a.Path, "@") }

// onDisk reports whether a is a UNIX socket with a path.
func (a Addr) onDisk() bool { return a.Kind.unix() && !a.Abstract() }

// ip is the address to bind, with the default filled in and IPv4 in its own form.
func (a Addr) ip() netip.Addr {
	switch {
	case a.IP.IsValid():
		return a.IP.Unmap()
	case a.Kind == TCP4 || a.Kind == UDP4:
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// dual reports whether a also takes IPv4 on an IPv6 socket.
func (a Addr) dual() bool {
	return (a.Kind == TCP || a.Kind == UDP) && a.ip() == netip.IPv6Unspecified()
}

// String is a in the form that ParseAddr reads, without options.
func (a Addr) String() string {
	switch {
	case a.onDisk():
		return string(a.Kind) + "://" + escapePath(a.Path)
	case a.Kind.unix():
		return string(a.Kind) + ":" + escapePath(a.Path)
	case a.Kind.inet():
		return string(a.Kind) + "://" + netip.AddrPortFrom(a.ip(), a.Port).String()
	}
	return string(a.Kind) + ":?"
}

// Key is the identity of a: two addresses whose binds would make identical
// sockets have the same key, whatever their spelling. It holds the protocol,
// address and port, and whether an IPv6 wildcard is dual-stack or v6only. Resolve
// an address against its options first ([Canonical]): v6only is one of them.
//
// Port 0 is a new port for each bind, so a key with it is no identity; add what
// tells the sockets apart, for example their names.
func (a Addr) Key() string {
	if a.Kind.unix() {
		p := a.Path
		if !a.Abstract() {
			p = path.Clean(p)
		}
		return string(a.Kind) + "|" + p
	}
	ip := a.ip()
	key := string(a.Kind.base()) + "|" + ip.String() + "|" + strconv.Itoa(int(a.Port))
	switch {
	case a.dual():
		key += "|dual"
	case ip == netip.IPv6Unspecified():
		key += "|v6only"
	}
	return key
}

// Conflicts reports whether the kernel refuses a and b beside each other: they
// overlap but are not the same socket. A dual-stack wildcard overlaps with each
// IPv4 and IPv6 address on its port, a wildcard with each address of its family
// (ip(7), ipv6(7); reuse_port, which lifts this for one user, is not considered),
// and any two kinds of UNIX socket on one path. Identical addresses, by Key, do
// not conflict, nor does port 0 with anything.
func (a Addr) Conflicts(b Addr) bool {
	if a.Key() == b.Key() {
		return false
	}
	if a.Kind.unix() || b.Kind.unix() {
		if a.onDisk() != b.onDisk() {
			return false
		}
		if a.onDisk() {
			return path.Clean(a.Path) == path.Clean(b.Path)
		}
		// Abstract names are looked up by name and type: unix_find_abstract,
		// net/unix/af_unix.c.
		return false
	}
	if a.Kind.base() != b.Kind.base() || a.Port != b.Port || a.Port == 0 {
		return false
	}
	if a.dual() || b.dual() {
		return true
	}
	x, y := a.ip(), b.ip()
	if x.Is4() != y.Is4() {
		return false
	}
	return x.IsUnspecified() || y.IsUnspecified() || x == y
}

// Canonical is a as it is bound under o, or why the two do not fit together.
// A tcp or udp wildcard with v6only becomes tcp6 or udp6, so that Key tells it
// from a dual-stack one; IPv4 in IPv6 form becomes IPv4; the zero IP becomes the
// wildcard; a path is cleaned.
func Canonical(a Addr, o Options) (Addr, error) {
	switch {
	case a.Kind.inet():
		return canonicalInet(a, o)
	case a.Kind.unix():
		return canonicalUnix(a, o)
	}
	return Addr{}, fmt.Errorf("unknown kind %q: the kinds are %s", a.Kind, kindList)
}

func canonicalInet(a Addr, o Options) (Addr, error) {
	if a.Path != "" {
		return Addr{}, fmt.Errorf("%s has an IP address and a port, not the path %q", a.Kind, a.Path)
	}
	if o.Mode != nil || o.Owner != "" || o.Group != "" {
		return Addr{}, fmt.Errorf("mode, owner and group are for UNIX sockets with a path, not for %s", a.Kind)
	}
	mapped := a.IP.Is4In6()
	a.IP = a.ip()
	switch a.Kind {
	case TCP4, UDP4:
		if !a.IP.Is4() {
			return Addr{}, fmt.Errorf("%s needs an IPv4 address, and %s is IPv6: use %s or %s", a.Kind, a.IP, a.Kind.base(), a.Kind.with6())
		}
	case TCP6, UDP6:
		if a.IP.Is4() || mapped {
			return Addr{}, fmt.Errorf("%s needs an IPv6 address, and %s is IPv4: use %s or %s", a.Kind, a.IP, a.Kind.base(), a.Kind.base()+"4")
		}
	}
	if o.V6Only == nil {
		return a, nil
	}
	switch {
	case a.IP.Is4():
		return Addr{}, fmt.Errorf("v6only is for IPv6 addresses, not for %s", a.IP)
	case *o.V6Only && a.dual():
		a.Kind = a.Kind.with6()
	case !*o.V6Only && a.Kind == a.Kind.with6():
		return Addr{}, fmt.Errorf("%s takes IPv6 only: with v6only = false use %s", a.Kind, a.Kind.base())
	}
	return a, nil
}

func canonicalUnix(a Addr, o Options) (Addr, error) {
	if a.IP.IsValid() || a.Port != 0 {
		return Addr{}, fmt.Errorf("%s has a path, not an IP address and a port", a.Kind)
	}
	if o.ReusePort || o.V6Only != nil {
		return Addr{}, fmt.Errorf("reuse_port and v6only are for IP sockets, not for %s", a.Kind)
	}
	if strings.ContainsRune(a.Path, 0) {
		return Addr{}, fmt.Errorf("the path %q holds a NUL byte", a.Path)
	}
	if !utf8.ValidString(a.Path) {
		// JSON has no other strings: the path would come back changed.
		return Addr{}, fmt.Errorf("the path %q is not UTF-8", a.Path)
	}
	if a.Abstract() {
		if o.Mode != nil || o.Owner != "" || o.Group != "" {
			return Addr{}, errors.New("mode, owner and group are for UNIX sockets with a path, not for abstract ones")
		}
		if a.Path == "@" {
			return Addr{}, errors.New("the abstract name is empty: write @name")
		}
		if n := len(a.Path) - 1; n > maxPath {
			return Addr{}, fmt.Errorf("the abstract name has %d bytes, and at most %d fit a UNIX address", n, maxPath)
		}
		return a, nil
	}
	if !path.IsAbs(a.Path) {
		return Addr{}, fmt.Errorf("the path %q is not absolute: write /path/name, or @name for an abstract socket", a.Path)
	}
	if _, name := path.Split(a.Path); name == "" || name == "." || name == ".." {
		return Addr{}, fmt.Errorf("the path %q names a directory", a.Path)
	}
	a.Path = path.Clean(a.Path)
	if n := len(a.Path); n > maxPath {
		return Addr{}, fmt.Errorf("the path %q has %d bytes, and at most %d fit a UNIX address", a.Path, n, maxPath)
	}
	return a, nil
}
