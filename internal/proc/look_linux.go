package proc

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// looked is one process while it is looked at.
type looked struct {
	files  string   // as filesOf returns it
	inodes []uint64 // sorted
	sockfs uint64
	view   *view

	sockets map[int]uint64 // descriptor → inode, of the sockets asked for
	epolls  []int          // descriptors of epoll sets
	uring   bool
	count   int // of all descriptors
}

// look fills the view: descriptor links first, since they take no lock that the process needs.
func (p *looked) look(t threads, deep bool) error {
	if err := p.readLinks(); err != nil {
		return err
	}
	unseen := t.denied
	if len(p.epolls) > 0 {
		if p.count < deepLimit || deep {
			hidden, err := p.readEpolls()
			if err != nil {
				return err
			}
			unseen = hidden || unseen
		} else {
			p.view.skipped = true
		}
	}
	if len(p.sockets) > 0 {
		hidden, err := p.readWaits(t)
		if err != nil {
			return err
		}
		unseen = hidden || unseen
	}
	idle := p.view.idle()
	waits := len(p.view.polled) > 0 || len(p.view.accepting) > 0
	// What waits in a ring shows nowhere. A process that holds none of the sockets and has an epoll set is not
	// suspected: libuv has a ring beside its epoll set for other work.
	ring := p.uring && !waits && (len(p.sockets) > 0 || len(p.epolls) == 0)
	p.view.blind = unseen && idle || ring
	p.view.busy = idle && t.running()
	return nil
}

// asked reports whether the socket is one of those to be looked for.
func (p *looked) asked(inode uint64) bool {
	_, ok := slices.BinarySearch(p.inodes, inode)
	return ok
}

func (p *looked) readLinks() error {
	dir, err := os.Open(p.files + "fd")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	p.sockets = make(map[int]uint64)
	p.count = len(names)
	conn, err := dir.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(dirfd uintptr) { failed = p.readLinksAt(int(dirfd), names) })
	return errors.Join(err, failed)
}

func (p *looked) readLinksAt(dirfd int, names []string) error {
	link := make([]byte, 64) // what is looked for is shorter
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		n, err := unix.Readlinkat(dirfd, name, link)
		switch {
		case err == unix.ENOENT:
			continue // closed meanwhile
		case err != nil:
			return os.NewSyscallError("readlinkat", err)
		}
		switch target := link[:n]; string(target) {
		case "anon_inode:[eventpoll]":
			p.epolls = append(p.epolls, fd)
		case "anon_inode:[io_uring]":
			p.uring = true
		default:
			if inode, ok := SocketInode(target); ok && p.asked(inode) {
				p.sockets[fd] = inode
				p.view.held[inode] = true
			}
		}
	}
	return nil
}

// readEpolls looks for the sockets in the epoll sets. It reports whether there was one that it may not read; the error
// is one of starved.
func (p *looked) readEpolls() (unseen bool, err error) {
	for _, fd := range p.epolls {
		info, err := os.ReadFile(p.files + "fdinfo/" + strconv.Itoa(fd))
		if starved(err) {
			return false, err
		}
		if err != nil {
			unseen = unseen || !gone(err)
			continue
		}
		for _, e := range parseEpoll(info) {
			p.entry(e)
		}
	}
	return unseen, nil
}

// entry judges one entry of an epoll set. It is matched by inode: the number under which the socket was added may
// have been closed, while the entry lives as long as any process holds the socket.
func (p *looked) entry(e epollEntry) {
	inode := e.inode
	switch {
	case inode == 0:
		inode = p.sockets[e.fd]
	case e.device != 0 && e.device != p.sockfs:
		return // an inode of another file system with the same number
	}
	switch {
	case inode == 0 || !p.asked(inode):
	case !p.view.held[inode]:
		p.view.stale[inode] = true
	case e.events&readable != 0:
		p.view.polled[inode] = true
	}
}

// readWaits looks at the system calls in which the threads are blocked. It reports whether the memory that one of
// them points to may not be read; the error is one of starved.
func (p *looked) readWaits(t threads) (unseen bool, err error) {
	var mem *os.File
	defer func() {
		if mem != nil {
			mem.Close()
		}
	}()
	for _, th := range t.list {
		c := th.call
		if !c.blocked {
			continue
		}
		if slices.Contains(acceptCalls, c.number) {
			if inode, ok := p.sockets[int(int32(c.args[0]))]; ok {
				p.view.accepting[inode] = true
			}
			continue
		}
		isPoll, isSelect := slices.Contains(pollCalls, c.number), slices.Contains(selectCalls, c.number)
		if !isPoll && !isSelect {
			continue
		}
		if mem == nil {
			mem, err = os.Open(p.files + "mem")
			switch {
			case starved(err):
				return false, err
			case err != nil:
				return !gone(err), nil
			}
		}
		if isPoll {
			err = p.readPoll(mem, c.args[0], c.args[1])
		} else {
			err = p.readSelect(mem, c.args[0], c.args[1])
		}
		unseen = unseen || err != nil && denied(err)
	}
	return unseen, nil
}

// maxPolled bounds what is read of one array; no process has more descriptors unless fs.nr_open was raised.
const maxPolled = 1 << 20

// readPoll reads the first two arguments of poll and ppoll: an array of {int fd; short events, revents} and its
// length.
func (p *looked) readPoll(mem io.ReaderAt, at, n uint64) error {
	if at == 0 || n == 0 {
		return nil
	}
	const size = 8
	array := make([]byte, min(n, maxPolled)*size)
	if _, err := mem.ReadAt(array, int64(at)); err != nil {
		return err
	}
	for entry := range slices.Chunk(array, size) {
		fd := int32(binary.NativeEndian.Uint32(entry))
		events := binary.NativeEndian.Uint16(entry[4:])
		if inode, ok := p.sockets[int(fd)]; ok && events&readable != 0 {
			p.view.polled[inode] = true
		}
	}
	return nil
}

// readSelect reads the first two arguments of select and pselect6: one more than the highest descriptor, and the set
// of those to be read, an array of long. The kernel writes to it only when the call returns.
func (p *looked) readSelect(mem io.ReaderAt, n, at uint64) error {
	if at == 0 || n == 0 {
		return nil
	}
	const word = strconv.IntSize
	words := (min(n, maxPolled) + word - 1) / word
	set := make([]byte, words*word/8)
	if _, err := mem.ReadAt(set, int64(at)); err != nil {
		return err
	}
	for fd, inode := range p.sockets {
		if uint64(fd) >= n || uint64(fd) >= maxPolled {
			continue
		}
		at := set[fd/word*(word/8):]
		bits := uint64(0)
		if word == 64 {
			bits = binary.NativeEndian.Uint64(at)
		} else {
			bits = uint64(binary.NativeEndian.Uint32(at))
		}
		if bits>>(fd%word)&1 == 1 {
			p.view.polled[inode] = true
		}
	}
	return nil
}
