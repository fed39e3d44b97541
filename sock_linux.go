package handover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// bootNow is the clock of the supervisor's deadlines, CLOCK_BOOTTIME
// (clock_gettime(2)), which goes on while the host sleeps.
func bootNow() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Every kernel since 2.6.39 has it; a deadline that is computed from
		// anything else would be wrong silently.
		panic("handover: clock_gettime: " + err.Error())
	}
	return time.Duration(ts.Nano())
}

// pidfdID is the inode of pid's pidfd, unique for all processes since boot;
// known only where pidfds have a file system of their own (Linux 6.9).
func pidfdID(pid int) (id uint64, known bool) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return 0, false
	}
	defer closeFD(fd)
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Fstatfs(fd, &fs) != nil || unix.Fstat(fd, &st) != nil || fs.Type != unix.PID_FS_MAGIC {
		return 0, false
	}
	return st.Ino, true
}

// claim checks that fd is open and makes it close-on-exec: the environment
// that told of it is gone, so a program started from here could not use it.
func claim(fd int) error {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags|unix.FD_CLOEXEC)
	}
	if err != nil {
		return fmt.Errorf("descriptor %d: %w", fd, os.NewSyscallError("fcntl", err))
	}
	return nil
}

// duplicateFD is dup with close-on-exec (fcntl(2)).
func duplicateFD(fd uintptr) (int, error) {
	n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("fcntl", err)
	}
	return n, nil
}

func closeFD(fd int) { _ = unix.Close(fd) } // a borrowed description: nothing to flush

// kinds maps what the kernel says of a socket to the networks that mean it.
var kinds = map[[2]int][]string{
	{unix.AF_INET, unix.SOCK_STREAM}:    {"tcp", "tcp4"},
	{unix.AF_INET6, unix.SOCK_STREAM}:   {"tcp", "tcp6"},
	{unix.AF_INET, unix.SOCK_DGRAM}:     {"udp", "udp4"},
	{unix.AF_INET6, unix.SOCK_DGRAM}:    {"udp", "udp6"},
	{unix.AF_UNIX, unix.SOCK_STREAM}:    {"unix"},
	{unix.AF_UNIX, unix.SOCK_SEQPACKET}: {"unixpacket"},
	{unix.AF_UNIX, unix.SOCK_DGRAM}:     {"unixgram"},
}

// inspect gives the address of the socket fd, after checking that it is one of
// network and, if asked, listens. It does not touch the poller.
func inspect(fd int, network string, listening bool) (net.Addr, error) {
	domain, err := sockopt(fd, "SO_DOMAIN", unix.SO_DOMAIN)
	if err != nil {
		return nil, err
	}
	kind, err := sockopt(fd, "SO_TYPE", unix.SO_TYPE)
	if err != nil {
		return nil, err
	}
	networks := kinds[[2]int{domain, kind}]
	ok := false
	for _, n := range networks {
		ok = ok || n == network
	}
	if !ok {
		if len(networks) == 0 {
			return nil, fmt.Errorf("the inherited socket is of family %d, type %d", domain, kind)
		}
		return nil, fmt.Errorf("the inherited socket is %s", strings.Join(networks, ", "))
	}
	if listening {
		on, err := sockopt(fd, "SO_ACCEPTCONN", unix.SO_ACCEPTCONN)
		if err != nil {
			return nil, err
		}
		if on == 0 {
			return nil, errors.New("the inherited socket does not listen")
		}
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return nil, os.NewSyscallError("getsockname", err)
	}
	return netAddr(sa, network), nil
}

func sockopt(fd int, name string, opt int) (int, error) {
	v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, opt)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt "+name, err)
	}
	return v, nil
}

// netAddr gives sa the type that package net gives the same socket.
func netAddr(sa unix.Sockaddr, network string) net.Addr {
	var ip net.IP
	var port int
	var zone string
	switch sa := sa.(type) {
	case *unix.SockaddrUnix:
		return &net.UnixAddr{Name: sa.Name, Net: network}
	case *unix.SockaddrInet4:
		ip, port = sa.Addr[:], sa.Port
	case *unix.SockaddrInet6:
		ip, port = sa.Addr[:], sa.Port
		if sa.ZoneId != 0 {
			zone = strconv.Itoa(int(sa.ZoneId))
			if ifi, err := net.InterfaceByIndex(int(sa.ZoneId)); err == nil {
				zone = ifi.Name
			}
		}
	}
	if strings.HasPrefix(network, "udp") {
		return &net.UDPAddr{IP: ip, Port: port, Zone: zone}
	}
	return &net.TCPAddr{IP: ip, Port: port, Zone: zone}
}
