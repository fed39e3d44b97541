package proc

import "net/netip"

// Listener is a listening TCP socket that a process holds. Two processes that hold the same socket give two
// Listeners with one Inode.
type Listener struct {
	PID   int            `json:"pid"`
	Inode uint64         `json:"inode"`
	Addr  netip.AddrPort `json:"addr"` // the zone of a link-local address is the interface's number
	Kind  string         `json:"kind"` // "tcp4", "tcp6", or "tcp" for an IPv6 socket that takes IPv4 as well
}
