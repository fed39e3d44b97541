package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

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
		byInode := stillMissing(missing, out)
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
		l.adoptFetched(fds, byInode, missing, how, out)
	}
}

// fetchOrphaned takes sockets from a keeper that does not answer.
func (l *loop) fetchOrphaned(missing map[string]heldSocket, out map[string]*fdpass.Socket) {
	byInode := stillMissing(missing, out)
	if l.orphan.PID == 0 || len(byInode) == 0 {
		return
	}
	found := map[uint64]int{}
	if err := fetchOf(l.orphan.PID, l.orphan.StartTime, slices.Collect(maps.Keys(byInode)), found); err != nil {
		l.log.Warn("its sockets cannot be taken from the keeper", "pid", l.orphan.PID, "err", err)
	}
	l.adoptFetched(found, byInode, missing, "the keeper, by pidfd_getfd", out)
}

// stillMissing are the keys of the sockets that nobody has given yet, by inode.
func stillMissing(missing map[string]heldSocket, out map[string]*fdpass.Socket) map[uint64]string {
	byInode := map[uint64]string{}
	for key, h := range missing {
		if out[key] == nil {
			byInode[h.Inode] = key
		}
	}
	return byInode
}

// adoptFetched takes descriptors, by inode, and adds those that are what was missing.
func (l *loop) adoptFetched(fds map[uint64]int, byInode map[uint64]string, missing map[string]heldSocket, how string, out map[string]*fdpass.Socket) {
	for ino, fd := range fds {
		key := byInode[ino]
		if s := l.adoptSocket(fd, key, missing[key], how); s != nil {
			out[key] = s
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
		ino, ok := proc.SocketInode([]byte(link))
		if !ok || !slices.Contains(inodes, ino) {
			continue
		}
		if _, have := found[ino]; have {
			continue
		}
		n, err := strconv.Atoi(e.Name())
		if err != nil {
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
