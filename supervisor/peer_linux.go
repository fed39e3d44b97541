package supervisor

import (
	"os"

	"golang.org/x/sys/unix"
)

// peerUID is the user at the other end of a UNIX socket, when it connected
// (unix(7), SO_PEERCRED).
func peerUID(fd int) (int, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return -1, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	return int(cred.Uid), nil
}
