package fdpass

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

const (
	kindList = "tcp, tcp4, tcp6, udp, udp4, udp6, unix, unixgram, unixpacket"
	accepted = ":8080, 127.0.0.1:80, [::1]:80, tcp://:80, tcp4://, tcp6://, udp://, udp4://, udp6://, " +
		"unix:///run/name.sock?mode=0660&group=www, unix:@name, unixgram:, unixpacket:"
)

// ParseAddr reads an address with its options:
//
//	:8080  127.0.0.1:80  [::1]:80  localhost:80      tcp
//	tcp://:80                                        dual-stack [::]:80
//	tcp4://:80  tcp6://[::]:80  udp://127.0.0.1:53   and udp4, udp6
//	unix:///run/app.sock?mode=0660&group=www         a path
//	unix:@name                                       an abstract name
//	unixgram:…  unixpacket:…                         datagrams, packets
//
// A host is an IP literal or localhost, which is 127.0.0.1; nothing is looked
// up. A port is a number. The options after "?" are backlog, reuse_port, v6only,
// nonblocking, mode, owner and group, as in the configuration. In a path, "%",
// "?" and control bytes are written %XX.
//
// The result is canonical ([Canonical]). An error says what was wrong with s.
func ParseAddr(s string) (Addr, Options, error) {
	a, o, err := parseAddr(s)
	if err != nil {
		return Addr{}, Options{}, fmt.Errorf("fdpass: address %q: %w (accepted: %s)", s, err, accepted)
	}
	return a, o, nil
}

func parseAddr(s string) (Addr, Options, error) {
	if s == "" {
		return Addr{}, Options{}, errors.New("it is empty")
	}
	rest, query, _ := strings.Cut(s, "?")
	o, err := parseOptions(query)
	if err != nil {
		return Addr{}, Options{}, err
	}
	kind, rest, err := cutKind(rest)
	if err != nil {
		return Addr{}, Options{}, err
	}
	a := Addr{Kind: kind}
	if kind.unix() {
		if a.Path, err = unescapePath(strings.TrimPrefix(rest, "//")); err != nil {
			return Addr{}, Options{}, err
		}
	} else if a.IP, a.Port, err = parseHostPort(kind, strings.TrimPrefix(rest, "//")); err != nil {
		return Addr{}, Options{}, err
	}
	a, err = Canonical(a, o)
	return a, o, err
}

// cutKind splits "kind:rest" or "kind://rest"; what has no kind is tcp.
func cutKind(s string) (Kind, string, error) {
	switch {
	case strings.HasPrefix(s, "/"), strings.HasPrefix(s, "@"):
		return "", "", fmt.Errorf("it has no kind: for a UNIX socket write unix:%s", s)
	case strings.HasPrefix(s, ":"), strings.HasPrefix(s, "["):
		return TCP, s, nil
	}
	word, rest, found := strings.Cut(s, ":")
	kind := Kind(word)
	switch {
	case !found:
		return "", "", errors.New("it has no port: write HOST:PORT or :PORT")
	case kind.unix():
		return kind, rest, nil
	case kind.inet() && strings.HasPrefix(rest, "//"):
		return kind, rest, nil
	case kind.inet():
		return "", "", fmt.Errorf("after %s: comes //, as in %s://:80", kind, kind)
	case strings.HasPrefix(rest, "//"):
		return "", "", fmt.Errorf("unknown kind %q: the kinds are %s", word, kindList)
	}
	return TCP, s, nil
}

func parseHostPort(kind Kind, s string) (netip.Addr, uint16, error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.HasSuffix(s, "]") {
		return netip.Addr{}, 0, errors.New("it has no port: write HOST:PORT or :PORT")
	}
	host, digits := s[:i], s[i+1:]
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return netip.Addr{}, 0, fmt.Errorf("the port %q is not a number from 0 to 65535", digits)
	}
	ip, err := parseHost(host)
	if err != nil {
		return netip.Addr{}, 0, err
	}
	if !ip.IsValid() {
		ip = Addr{Kind: kind}.ip()
	}
	return ip, uint16(port), nil
}

// parseHost returns the zero address for an empty host.
func parseHost(host string) (netip.Addr, error) {
	switch host {
	case "":
		return netip.Addr{}, nil
	case "localhost":
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	bare, bracketed := host, false
	if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		bare, bracketed = host[1:len(host)-1], true
	}
	ip, err := netip.ParseAddr(bare)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("the host %q is neither an IP address nor localhost: names are not looked up", host)
	case ip.Is6() && !bracketed:
		return netip.Addr{}, fmt.Errorf("an IPv6 address is written in brackets: [%s]:PORT", host)
	case ip.Is4() && bracketed:
		return netip.Addr{}, fmt.Errorf("an IPv4 address is written without brackets: %s:PORT", bare)
	}
	if !validZone(ip.Zone()) {
		return netip.Addr{}, fmt.Errorf("the zone %q of the address is no interface", ip.Zone())
	}
	return ip, nil
}

// validZone reports whether zone can be an interface's name (dev_valid_name,
// net/core/dev.c: under 16 bytes, no slash, colon or space) and prints as itself.
func validZone(zone string) bool {
	return len(zone) < 16 && !strings.ContainsFunc(zone, func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune("/:%?[]", r)
	})
}

func parseOptions(query string) (Options, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return Options{}, fmt.Errorf("the options %q: %w", query, err)
	}
	var o Options
	for key, all := range values {
		if len(all) > 1 {
			return Options{}, fmt.Errorf("the option %s is given %d times", key, len(all))
		}
		if err := o.set(key, all[0]); err != nil {
			return Options{}, err
		}
	}
	return o, o.check()
}

func (o *Options) set(key, value string) error {
	if value == "" {
		return fmt.Errorf("the option %q has no value", key)
	}
	switch key {
	case "backlog":
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			return fmt.Errorf("backlog=%q: it is a number of at least 1", value)
		}
		o.Backlog = n
	case "mode":
		n, err := strconv.ParseUint(value, 8, 32)
		if err != nil {
			return fmt.Errorf("mode=%q: it is an octal number such as 0660", value)
		}
		mode := uint32(n)
		o.Mode = &mode
	case "owner":
		o.Owner = value
	case "group":
		o.Group = value
	case "reuse_port", "v6only", "nonblocking":
		b, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%s=%q: it is true or false", key, value)
		}
		switch key {
		case "reuse_port":
			o.ReusePort = b
		case "v6only":
			o.V6Only = &b
		default:
			o.Nonblocking = &b
		}
	default:
		return fmt.Errorf("unknown option %q: the options are backlog, reuse_port, v6only, nonblocking, mode, owner, group", key)
	}
	return nil
}

// escapePath writes the bytes that ParseAddr would take for something else, and
// those that would break a line of a log, as %XX.
func escapePath(p string) string {
	var b strings.Builder
	for i := range len(p) {
		if c := p[i]; c == '%' || c == '?' || c < ' ' || c == 0x7f {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func unescapePath(p string) (string, error) {
	un, err := url.PathUnescape(p)
	if err != nil {
		return "", fmt.Errorf("the path %q: %w: a percent sign is written %%25", p, err)
	}
	return un, nil
}
