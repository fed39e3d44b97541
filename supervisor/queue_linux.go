package supervisor

import (
	"os"

	"golang.org/x/sys/unix"
)

// acceptQueue is the length of a listening TCP socket's accept queue: for such a
// socket tcpi_unacked is that (tcp(7), TCP_INFO; net/ipv4/tcp.c, tcp_get_info,
// Linux 2.6.24).
func acceptQueue(fd int) (int, error) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, os.NewSyscallError("getsockopt TCP_INFO", err)
	}
	return int(info.Unacked), nil
}

// The filter sees a segment from the TCP header on (net/ipv4/tcp_ipv4.c, tcp_v4_rcv:
// the IP header has been pulled). The flags are in its 14th byte (RFC 9293, 3.1).
const (
	tcpFlags = 13
	flagSYN  = 0x02
	flagACK  = 0x10
)

// dropConnections has a listening TCP socket drop every SYN that begins a connection,
// for all who hold it (socket(7), SO_ATTACH_FILTER). A handshake that has begun is
// completed, since its last segment has no SYN; whoever sent a SYN tries again later.
func dropConnections(fd int) error {
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: tcpFlags},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: flagSYN | flagACK},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: flagSYN},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff}, // all of it
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &fprog))
}

// takeConnections undoes dropConnections. A socket without a filter is left alone.
func takeConnections(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	if err == unix.ENOENT {
		return nil
	}
	return os.NewSyscallError("setsockopt SO_DETACH_FILTER", err)
}
