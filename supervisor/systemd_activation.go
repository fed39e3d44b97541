package supervisor

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
)

// Sockets of systemd's socket units are adopted by name: FileDescriptorName= is the
// name of a configured socket, or SERVICE.NAME. systemd holds them for as long as
// their unit is active. So they are not stored, never closed for others, and their
// queues never emptied: who waits in them is served by the next start.

// activatedBy is whom a socket of a socket unit was taken from.
const activatedBy = "systemd's socket unit"

// activated makes a socket of what systemd passes under its name, if it passes one;
// nil if not. One that is bound elsewhere than is configured is an error: nobody
// would be served at the configured address, or twice.
func (p *preparation) activated(cfg *Config, service string, sc SocketConfig) (*fdpass.Socket, error) {
	var faults []error
	for _, s := range p.passed {
		full := s.Name == service+"."+sc.Name
		if s.Name != sc.Name && !full {
			continue
		}
		sock, err := activate(s.FD, sc)
		if err == nil {
			return sock, nil
		}
		// A name that several services have for sockets of their own is that of one of them.
		if full || timesNamed(cfg, sc.Name) == 1 {
			faults = append(faults, fmt.Errorf("systemd passes a socket named %q that is not this one: it is %s (ListenStream= and the like of the socket unit have to agree with the address): %w",
				s.Name, boundTo(s.FD), err))
		}
	}
	return nil, errors.Join(faults...)
}

func timesNamed(cfg *Config, name string) int {
	n := 0
	for _, svc := range cfg.Services {
		for _, sc := range svc.Sockets {
			if sc.Name == name {
				n++
			}
		}
	}
	return n
}

// activate makes a socket of a copy of fd, with the options that may still be set.
func activate(fd int, sc SocketConfig) (*fdpass.Socket, error) {
	if sc.PerGeneration {
		return nil, errors.New("it would be that of all generations, and per_generation is set")
	}
	s, err := copied(fd, sc)
	if err != nil {
		return nil, err
	}
	if on := sc.Options.Nonblocking; on == nil || *on {
		err = s.SetNonblocking()
	}
	if err == nil && !sc.Addr.Kind.Datagram() {
		err = s.Relisten()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// copied makes a socket of a copy of fd, if it is what is configured.
func copied(fd int, sc SocketConfig) (*fdpass.Socket, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ino, err := socketInode(fd)
	if err == nil {
		var s *fdpass.Socket
		if s, err = takeSocket(fd, heldSocket{Addr: sc.Addr, Options: sc.Options, Inode: ino}); err == nil {
			return s, nil
		}
	}
	_ = unix.Close(fd)
	return nil, err
}

// boundTo is where a descriptor is bound, for people.
func boundTo(fd int) string {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return "no socket"
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port)).String()
	case *unix.SockaddrUnix:
		return sa.Name
	}
	return "of a family that handoverd does not know"
}

// adoptActivated gives sockets of socket units back to a state that had them, by
// their inodes.
func (l *loop) adoptActivated(missing map[string]heldSocket, out map[string]*fdpass.Socket) (keys []string) {
	for key, h := range missing {
		for _, p := range l.passed {
			if ino, err := socketInode(p.FD); out[key] != nil || err != nil || ino != h.Inode {
				continue
			}
			fd, err := unix.FcntlInt(uintptr(p.FD), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				l.log.Error("socket not taken back", "socket", h.Addr.String(), "from", activatedBy, "err", err)
				continue
			}
			if s := l.adoptSocket(fd, key, h, activatedBy); s != nil {
				out[key], keys = s, append(keys, key)
			}
		}
	}
	return keys
}

// unclaimed names what systemd passes and no configured socket has the name of.
func (l *loop) unclaimed() {
	if l.s.fault != nil {
		return // what is configured is not known
	}
	for _, p := range l.passed {
		named := false
		for _, svc := range l.s.cfg.Services {
			for _, sc := range svc.Sockets {
				named = named || p.Name == sc.Name || p.Name == svc.Name+"."+sc.Name
			}
		}
		if !named {
			l.log.Warn("systemd passes a socket that no configured one has the name of: it is not used; set FileDescriptorName= in its unit",
				"name", strings.ToValidUTF8(p.Name, "?"), "bound", boundTo(p.FD))
		}
	}
}
