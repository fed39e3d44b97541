package supervisor

import (
	"syscall"

	"golang.org/x/sys/unix"
)

type rawControl = syscall.RawConn

func peerCred(fd int) (*unix.Ucred, error) {
	return unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
}
