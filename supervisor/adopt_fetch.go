package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// FetchHelperName is argv[0] of handoverd when it is run as the user of a program
// to take the program's sockets: main then calls FetchHelper and nothing else.
const FetchHelperName = "handoverd-fetch"

// fetchMissing takes sockets that the keeper did not have from generations that
// hold them, by pidfd_getfd(2), and where that is refused by a helper that runs as
// the generation's user.
func (l *loop) fetchMissing(missing map[string]heldSocket, living map[at]*child, saved *savedState, out map[string]*fdpass.Socket) {
	for _, a := range slices.SortedFunc(maps.Keys(living), compareAt) {
		c := living[a]
		if c.proc.Pidfd() < 0 {
			continue
		}
		byInode := map[uint64]string{}
		for key, h := range missing {
			if out[key] == nil {
				byInode[h.Inode] = key
			}
		}
		if len(byInode) == 0 {
			return
		}
		g := saved.Services[a.Service].gen(a.Gen)
		wanted := slices.Collect(maps.Keys(byInode))
		fds, err := fetchFrom(c, wanted)
		how := "pidfd_getfd"
		if len(fds) == 0 && errors.Is(err, unix.EPERM) && g.Spec.UID != nil {
			fds, err = l.fetchAs(c, g.Spec, wanted)
			how = "pidfd_getfd as user " + fmt.Sprint(*g.Spec.UID)
		}
		if err != nil {
			l.log.Warn("its sockets cannot be taken from it", "service", a.Service, "gen", a.Gen, "by", how, "err", err)
		}
		for ino, fd := range fds {
			key := byInode[ino]
			if s := l.adoptSocket(fd, key, missing[key], how); s != nil {
				out[key] = s
			}
		}
	}
}

// fetchFrom looks in all processes of a generation whose main process lives. The
// caller owns the descriptors.
func fetchFrom(c *child, inodes []uint64) (map[uint64]int, error) {
	members, err := proc.Members(c.pid, c.token)
	if err != nil {
		return nil, err
	}
	// The main process first.
	slices.SortFunc(members, func(a, b proc.Process) int { return boolOrder(a.PID == c.pid, b.PID == c.pid) })
	found := map[uint64]int{}
	var errs []error
	for _, m := range members {
		if len(found) == len(inodes) {
			break
		}
		errs = append(errs, fetchOf(m.PID, m.StartTime, inodes, found))
	}
	if len(found) == len(inodes) {
		return found, nil
	}
	return found, errors.Join(errs...)
}

func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// fetchOf adds copies of the sockets that one process holds to found.
func fetchOf(pid int, started uint64, inodes []uint64, found map[uint64]int) error {
	pidfd := openExactly(pid, started)
	if pidfd < 0 {
		return nil
	}
	defer func() { _ = unix.Close(pidfd) }()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return sameErrno(err)
	}
	var hidden error
	for _, e := range entries {
		link, err := os.Readlink(dir + "/" + e.Name())
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) {
			hidden = sameErrno(err)
		}
		if err != nil {
			continue
		}
		var ino uint64
		var n int
		if _, err := fmt.Sscanf(link, "socket:[%d]", &ino); err != nil || !slices.Contains(inodes, ino) {
			continue
		}
		if _, have := found[ino]; have {
			continue
		}
		if _, err := fmt.Sscan(e.Name(), &n); err != nil {
			continue
		}
		// It needs the right to attach to the process (ptrace(2),
		// PTRACE_MODE_ATTACH_REALCREDS).
		fd, err := fetchFD(pidfd, n)
		if err != nil {
			return fmt.Errorf("process %d: %w", pid, os.NewSyscallError("pidfd_getfd", err))
		}
		found[ino] = fd
	}
	return hidden
}

// sameErrno makes one error of the two by which /proc and pidfd_getfd say that a
// process may not be looked at.
func sameErrno(err error) error {
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w (%w)", unix.EPERM, err)
	}
	return err
}
