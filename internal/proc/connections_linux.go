package proc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Numbers of linux/inet_diag.h, linux/unix_diag.h and net/tcp_states.h.
const (
	stateEstablished = 1
	stateSynRecv     = 3
	stateFinWait1    = 4
	stateFinWait2    = 5
	stateTimeWait    = 6
	stateCloseWait   = 8
	attrInfo         = 2 // INET_DIAG_INFO
	infoDataSent     = 44
	infoDataRecv     = 52
	unixShowQueue    = 0x10 // UDIAG_SHOW_RQLEN
	attrUnixQueue    = 4    // UNIX_DIAG_RQLEN
	unixRequestSize  = 24   // struct unix_diag_req
	unixAnswerSize   = 16   // struct unix_diag_msg
)

// Connections returns the TCP connections whose local port is one of these, in the network namespace of the caller
// (sock_diag(7)): those that are open in at least one direction, those that wait to be accepted, and those in TIME_WAIT,
// not those whose handshake is under way. The kernel walks its whole table of connections for each port and address family.
func Connections(ports []uint16) ([]Connection, error) {
	const states = 1<<stateEstablished | 1<<stateCloseWait | 1<<stateFinWait1 | 1<<stateFinWait2 | 1<<stateTimeWait
	var found []Connection
	err := eachSocket(ports, states, 1<<(attrInfo-1), func(b []byte) {
		if c, ok := parseConnection(b); ok {
			found = append(found, c)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list connections: %w", err)
	}
	return found, nil
}

// HalfOpen counts the handshakes to these local ports that are under way, by port: their connections will stand in an
// accept queue.
func HalfOpen(ports []uint16) (map[uint16]int, error) {
	n := map[uint16]int{}
	err := eachSocket(ports, 1<<stateSynRecv, 0, func(b []byte) { n[localPort(b)]++ })
	if err != nil {
		return nil, fmt.Errorf("list handshakes: %w", err)
	}
	return n, nil
}

// localPort of a struct inet_diag_msg.
func localPort(b []byte) uint16 { return binary.BigEndian.Uint16(b[4:]) }

// manyPorts is from how many ports on the whole table is asked for once, and not for each of them: the kernel walks all of
// it each time.
const manyPorts = 3

// eachSocket calls f with a struct inet_diag_msg and its attributes for each TCP socket of these ports in one of the states.
func eachSocket(ports []uint16, states uint32, ext byte, f func([]byte)) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	asked, wanted := ports, f
	if len(ports) >= manyPorts {
		set := make(map[uint16]bool, len(ports))
		for _, port := range ports {
			set[port] = true
		}
		asked = []uint16{0} // any
		wanted = func(b []byte) {
			if set[localPort(b)] {
				f(b)
			}
		}
	}
	for _, port := range asked {
		for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
			body := make([]byte, requestSize)
			body[0], body[1], body[2] = family, unix.IPPROTO_TCP, ext
			binary.NativeEndian.PutUint32(body[4:], states)
			binary.BigEndian.PutUint16(body[8:], port)
			if err := dump(fd, body, unix.NLM_F_DUMP, wanted); err != nil {
				return err
			}
		}
	}
	return nil
}

// dump asks sock_diag and calls f with each answer.
func dump(fd int, body []byte, flags uint16, f func([]byte)) error {
	req := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	binary.NativeEndian.PutUint32(req[0:], uint32(len(req)+len(body)))
	binary.NativeEndian.PutUint16(req[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|flags)
	if err := unix.Sendto(fd, append(req, body...), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 64<<10) // the kernel sends at most 32 KiB at once (af_netlink.c, netlink_dump)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		done, err := eachAnswer(buf[:n], flags&unix.NLM_F_DUMP != 0, f)
		if done || err != nil {
			return err
		}
	}
}

// eachAnswer reads the netlink messages of one packet. done says that no more will come.
func eachAnswer(b []byte, many bool, f func([]byte)) (done bool, err error) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return false, fmt.Errorf("netlink message of %d bytes in %d", size, len(b))
		}
		body := b[unix.SizeofNlMsghdr:size]
		switch binary.NativeEndian.Uint16(b[4:]) {
		case unix.NLMSG_DONE:
			return true, nil
		case unix.NLMSG_ERROR:
			if len(body) < 4 {
				return false, errors.New("netlink error without a number")
			}
			return false, os.NewSyscallError("sock_diag", unix.Errno(-int32(binary.NativeEndian.Uint32(body))))
		case sockDiagByFamily:
			if len(body) < answerSize && many {
				return false, fmt.Errorf("sock_diag answer of %d bytes", len(body))
			}
			f(body)
			done = !many
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return done, nil
}

// parseConnection reads a struct inet_diag_msg and the tcp_info behind it.
func parseConnection(b []byte) (c Connection, ok bool) {
	if len(b) < answerSize {
		return c, false
	}
	address := func(at, port int) netip.AddrPort {
		p := binary.BigEndian.Uint16(b[port:])
		if b[0] == unix.AF_INET {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[at:at+4])), p)
		}
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[at:at+16])).Unmap(), p)
	}
	c = Connection{
		Local: address(8, 4), Remote: address(24, 6), Closing: b[1] == stateTimeWait,
		Cookie: uint64(binary.NativeEndian.Uint32(b[48:]))<<32 | uint64(binary.NativeEndian.Uint32(b[44:])),
		Unread: binary.NativeEndian.Uint32(b[56:]), Unsent: binary.NativeEndian.Uint32(b[60:]),
		Inode: uint64(binary.NativeEndian.Uint32(b[68:])),
	}
	info := attribute(b[answerSize:], attrInfo)
	if len(info) >= infoDataRecv+4 {
		c.Sent = time.Duration(binary.NativeEndian.Uint32(info[infoDataSent:])) * time.Millisecond
		c.Received = time.Duration(binary.NativeEndian.Uint32(info[infoDataRecv:])) * time.Millisecond
	}
	return c, true
}

// attribute is the value of the first attribute of that type, or nil.
func attribute(b []byte, typ uint16) []byte {
	for len(b) >= unix.SizeofRtAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtAttr || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[2:]) == typ {
			return b[unix.SizeofRtAttr:size]
		}
		b = b[min(len(b), (size+3)&^3):]
	}
	return nil
}

// UnixQueue is how many connections wait in the accept queue of a listening UNIX socket (unix_diag.h, Linux 3.3).
func UnixQueue(inode uint64) (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	body := make([]byte, unixRequestSize)
	body[0] = unix.AF_UNIX
	binary.NativeEndian.PutUint32(body[4:], 1<<stateListen)
	binary.NativeEndian.PutUint32(body[8:], uint32(inode))
	binary.NativeEndian.PutUint32(body[12:], unixShowQueue)
	for i := 16; i < 24; i++ { // any cookie
		body[i] = 0xff
	}
	n := -1
	err = dump(fd, body, 0, func(b []byte) {
		if len(b) < unixAnswerSize {
			return
		}
		if q := attribute(b[unixAnswerSize:], attrUnixQueue); len(q) >= 8 {
			n = int(binary.NativeEndian.Uint32(q))
		}
	})
	if err == nil && n < 0 {
		err = errors.New("no queue in the answer")
	}
	if err != nil {
		return 0, fmt.Errorf("accept queue of a UNIX socket: %w", err)
	}
	return n, nil
}

// Holds returns which of the sockets, by inode, the processes hold. Those that have ended hold nothing; one that may not
// be looked at is an error.
func Holds(pids []int, inodes []uint64) (map[uint64]bool, error) {
	inodes = slices.Clone(inodes)
	slices.Sort(inodes)
	held := map[uint64]bool{}
	for _, pid := range pids {
		s, err := readStat(pid)
		if starved(err) {
			return held, fmt.Errorf("sockets of process %d: %w", pid, err)
		}
		if err != nil || s.dead() {
			continue
		}
		p := looked{inodes: inodes, view: newView(), files: filesOf(s)}
		if err := p.readLinks(); err != nil {
			if _, alive := blindUnlessGone(pid, err); alive {
				return held, fmt.Errorf("sockets of process %d: %w", pid, err)
			}
			continue
		}
		for inode := range p.view.held {
			held[inode] = true
		}
	}
	return held, nil
}

// PassiveOpens is how many TCP connections the network namespace of the caller has taken since it was made (RFC 1213,
// tcpPassiveOpens; proc_net(5), snmp).
func PassiveOpens() (uint64, error) {
	const path = "/proc/net/snmp"
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || fields[0] != "Tcp:":
		case names == nil:
			names = fields
		default:
			i := slices.Index(names, "PassiveOpens")
			var n uint64
			if i < 0 || i >= len(fields) {
				return 0, fmt.Errorf("%s: no PassiveOpens", path)
			}
			if _, err := fmt.Sscan(fields[i], &n); err != nil {
				return 0, fmt.Errorf("%s: PassiveOpens: %w", path, err)
			}
			return n, nil
		}
	}
	return 0, fmt.Errorf("%s: no line of Tcp", path)
}
