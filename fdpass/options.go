package fdpass

import (
	"fmt"
	"math"
	"unicode/utf8"
)

// DefaultBacklog is the backlog where none is set. The kernel caps it at
// net.core.somaxconn, which is 4096 from Linux 5.4 on (listen(2)).
const DefaultBacklog = 4096

// DefaultMode is the mode of a UNIX socket's path where none is set, as in
// systemd.socket(5).
const DefaultMode = 0o666

// Options are what may be said about a socket beside its address. The zero value
// is every default.
type Options struct {
	Backlog     int     `json:"backlog,omitempty"`     // connections; 0 is DefaultBacklog; the kernel caps it
	ReusePort   bool    `json:"reuse_port,omitempty"`  // SO_REUSEPORT; IP sockets only
	V6Only      *bool   `json:"v6only,omitempty"`      // IPV6_V6ONLY; nil is false for a tcp or udp wildcard, else true
	Nonblocking *bool   `json:"nonblocking,omitempty"` // O_NONBLOCK; nil is true
	Mode        *uint32 `json:"mode,omitempty"`        // permission bits of a path; nil is DefaultMode; the umask does not apply
	Owner       string  `json:"owner,omitempty"`       // of a path: a name in /etc/passwd or a number; empty leaves it
	Group       string  `json:"group,omitempty"`       // of a path: a name in /etc/group or a number; empty leaves it
}

func (o Options) backlog() int {
	if o.Backlog == 0 {
		return DefaultBacklog
	}
	return o.Backlog
}

func (o Options) nonblocking() bool { return o.Nonblocking == nil || *o.Nonblocking }

func (o Options) mode() uint32 {
	if o.Mode == nil {
		return DefaultMode
	}
	return *o.Mode
}

// check refuses values that no socket can have.
func (o Options) check() error {
	if o.Backlog < 0 || o.Backlog > math.MaxInt32 {
		return fmt.Errorf("backlog %d: it is a number from 1 to %d", o.Backlog, math.MaxInt32)
	}
	if o.Mode != nil && *o.Mode > 0o777 {
		return fmt.Errorf("mode %#o: it has permission bits only, up to 0777", *o.Mode)
	}
	if !utf8.ValidString(o.Owner) || !utf8.ValidString(o.Group) {
		return fmt.Errorf("owner %q or group %q is not UTF-8", o.Owner, o.Group)
	}
	return nil
}

// Diff names the options in which other differs from o, by their configuration
// keys: those in kept may be given to an open socket by [Socket.Apply], those in
// refused need a new socket. A default that is spelled out is no difference.
//
// v6only is compared only where both say it: otherwise its default depends on
// the address, and a change of it shows as a change of the key ([Canonical]).
func (o Options) Diff(other Options) (kept, refused []string) {
	add := func(differs bool, list *[]string, name string) {
		if differs {
			*list = append(*list, name)
		}
	}
	add(o.backlog() != other.backlog(), &kept, "backlog")
	add(o.mode() != other.mode(), &kept, "mode")
	add(o.Owner != other.Owner, &kept, "owner")
	add(o.Group != other.Group, &kept, "group")
	add(o.ReusePort != other.ReusePort, &refused, "reuse_port")
	add(o.V6Only != nil && other.V6Only != nil && *o.V6Only != *other.V6Only, &refused, "v6only")
	add(o.nonblocking() != other.nonblocking(), &refused, "nonblocking")
	return kept, refused
}
