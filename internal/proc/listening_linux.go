package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Listening returns the listening TCP sockets that the processes hold, in the network namespace of the caller. It
// asks the kernel for the state LISTEN only (sock_diag(7)), so the number of connections does not matter, and needs
// PTRACE_MODE_READ of the processes. One that ends meanwhile shows nothing; for those that may not be looked at the
// error is fs.ErrPermission and names them, and what the others hold is returned beside it.
func Listening(pids []int) ([]Listener, error) {
	sockets, err := listeners()
	if err != nil {
		return nil, fmt.Errorf("list listening sockets: %w", err)
	}
	inodes := make([]uint64, 0, len(sockets))
	for inode := range sockets {
		inodes = append(inodes, inode)
	}
	slices.Sort(inodes)
	var found []Listener
	var errs []error
	for _, pid := range pids {
		p := looked{inodes: inodes, view: newView()}
		s, err := readStat(pid)
		if err == nil && s.dead() {
			continue
		}
		if err == nil {
			p.files = filesOf(s)
			err = p.readLinks()
		}
		if err != nil {
			if _, alive := blindUnlessGone(pid, err); alive {
				errs = append(errs, fmt.Errorf("sockets of process %d: %w", pid, err))
			}
			continue
		}
		for inode := range p.view.held {
			l := sockets[inode]
			l.PID = pid
			found = append(found, l)
		}
	}
	return found, errors.Join(errs...)
}

// listeners returns all listening TCP sockets by inode.
func listeners() (map[uint64]Listener, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	found := make(map[uint64]Listener)
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		if err := dumpListeners(fd, family, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// Numbers of linux/sock_diag.h, linux/inet_diag.h and net/tcp_states.h.
const (
	sockDiagByFamily = 20
	stateListen      = 10
	attrV6Only       = 11 // INET_DIAG_SKV6ONLY, always sent for a listening IPv6 socket since Linux 4.8
	requestSize      = 56 // struct inet_diag_req_v2
	answerSize       = 72 // struct inet_diag_msg
)

// dumpListeners asks for all listening TCP sockets of a family and adds them to found.
func dumpListeners(fd int, family byte, found map[uint64]Listener) error {
	body := make([]byte, requestSize)
	body[0], body[1] = family, unix.IPPROTO_TCP
	binary.NativeEndian.PutUint32(body[4:], 1<<stateListen)
	return dump(fd, body, unix.NLM_F_DUMP, func(b []byte) {
		if l, ok := parseListener(b); ok {
			found[l.Inode] = l
		}
	})
}

// parseListener reads a struct inet_diag_msg and its attributes (linux/inet_diag.h).
func parseListener(b []byte) (l Listener, ok bool) {
	if len(b) < answerSize {
		return Listener{}, false
	}
	port := binary.BigEndian.Uint16(b[4:])
	l.Inode = uint64(binary.NativeEndian.Uint32(b[68:]))
	if b[0] == unix.AF_INET {
		l.Kind = "tcp4"
		l.Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[8:12])), port)
		return l, true
	}
	l.Kind = "tcp"
	addr := netip.AddrFrom16([16]byte(b[8:24]))
	if index := binary.NativeEndian.Uint32(b[40:]); index != 0 && addr.IsLinkLocalUnicast() {
		addr = addr.WithZone(strconv.FormatUint(uint64(index), 10))
	}
	l.Addr = netip.AddrPortFrom(addr, port)
	for attrs := b[answerSize:]; len(attrs) >= unix.SizeofRtAttr; {
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.SizeofRtAttr || size > len(attrs) {
			break
		}
		if binary.NativeEndian.Uint16(attrs[2:]) == attrV6Only && size > unix.SizeofRtAttr && attrs[4] == 1 {
			l.Kind = "tcp6"
		}
		attrs = attrs[min(len(attrs), (size+3)&^3):]
	}
	return l, true
}
