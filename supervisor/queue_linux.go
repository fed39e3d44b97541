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
