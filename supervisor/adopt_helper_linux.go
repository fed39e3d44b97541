package supervisor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// fetchLimit is how long such a helper may take.
const fetchLimit = 5 * time.Second

// FetchHelper is the whole life of a helper: its arguments are pid, start time and
// the inodes of the sockets that are wanted. It sends what it finds over descriptor
// 0, a SOCK_SEQPACKET socket: in each packet the inodes and as many descriptors,
// and at the end an error number in a packet of four bytes, 0 for none.
func FetchHelper(args []string) error {
	if len(args) < 3 {
		return errors.New("fetch: PID START INODE…")
	}
	numbers := make([]uint64, len(args))
	for i, a := range args {
		n, err := strconv.ParseUint(a, 10, 64)
		if err != nil {
			return fmt.Errorf("fetch: %w", err)
		}
		numbers[i] = n
	}
	found := map[uint64]int{}
	err := fetchOf(int(numbers[0]), numbers[1], numbers[2:], found)
	for part := range slices.Chunk(slices.Sorted(maps.Keys(found)), fdpass.MaxFiles) {
		var text []byte
		var fds []int
		for _, ino := range part {
			text, fds = binary.BigEndian.AppendUint64(text, ino), append(fds, found[ino])
		}
		if err := fdpass.SendFDs(0, text, fds); err != nil {
			return err
		}
	}
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		errno = unix.EIO
	}
	return fdpass.SendFDs(0, binary.BigEndian.AppendUint32(nil, uint32(errno)), nil)
}

// fetchAs runs a helper as the user of a generation. That works where the program's
// user may look at it and handoverd, without CAP_SYS_PTRACE, may not. The caller
// owns the descriptors.
func (l *loop) fetchAs(c *child, spec *Spec, inodes []uint64) (map[uint64]int, error) {
	if os.Geteuid() != 0 {
		return nil, unix.EPERM
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	args := []string{FetchHelperName, strconv.Itoa(c.pid), strconv.FormatUint(c.proc.StartTime, 10)}
	for _, ino := range inodes {
		args = append(args, strconv.FormatUint(ino, 10))
	}
	ended := make(chan proc.Exit, 1)
	pid, err := l.reaper.Start(func() (int, error) {
		return syscall.ForkExec("/proc/self/exe", args, &syscall.ProcAttr{
			Dir: "/", Env: []string{}, Files: []uintptr{uintptr(pair[1]), 2, 2},
			Sys: &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: *spec.UID, Gid: *spec.GID, Groups: spec.Groups}},
		})
	}, func(e proc.Exit) { ended <- e })
	_ = unix.Close(pair[1])
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("fork/exec", err), unix.Close(pair[0]))
	}
	found, err := receiveFetched(pair[0], inodes)
	_ = unix.Close(pair[0])
	ctx, cancel := context.WithTimeout(l.ctx, fetchLimit)
	defer cancel()
	select {
	case <-ended:
	case <-ctx.Done(): // held by the reaper: nobody else can have its number
		_ = unix.Kill(pid, unix.SIGKILL)
		<-ended
	}
	_ = l.reaper.Release(pid)
	return found, err
}

// receiveFetched reads what a helper sends, of the sockets that were asked for.
func receiveFetched(fd int, inodes []uint64) (found map[uint64]int, err error) {
	found = map[uint64]int{}
	limit := unix.NsecToTimeval(fetchLimit.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return nil, os.NewSyscallError("setsockopt SO_RCVTIMEO", err)
	}
	buf := make([]byte, 8*fdpass.MaxFiles)
	for {
		n, fds, err := fdpass.RecvFDs(fd, buf, fdpass.MaxFiles)
		switch {
		case err != nil:
			return found, err
		case n == 0:
			return found, io.ErrUnexpectedEOF
		case n == 4 && len(fds) == 0:
			if errno := syscall.Errno(binary.BigEndian.Uint32(buf)); errno != 0 {
				return found, errno
			}
			return found, nil
		}
		for i, f := range fds {
			ino := uint64(0)
			if 8*i+8 <= n {
				ino = binary.BigEndian.Uint64(buf[8*i:])
			}
			if _, have := found[ino]; have || !slices.Contains(inodes, ino) {
				_ = unix.Close(f)
				continue
			}
			found[ino] = f
		}
	}
}
