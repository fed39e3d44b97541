//go:build 386 || arm

package shim

import "golang.org/x/sys/unix"

// The unnumbered calls of these architectures take 16 bits.
const (
	sysSetgroups = unix.SYS_SETGROUPS32
	sysSetresuid = unix.SYS_SETRESUID32
	sysSetresgid = unix.SYS_SETRESGID32
)
