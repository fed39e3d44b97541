package fdpass

import "os"

// Socket is one bound socket. It owns one raw descriptor, until Close. It is
// made by Bind or Adopt and is not safe for concurrent use.
//
// After Close, FD is -1 and the methods that need the descriptor return an error
// that wraps os.ErrClosed.
type Socket struct {
	fd    int
	inode uint64
	addr  Addr
	opts  Options
	path  pathID // UNIX sockets with a path only
}

// pathID is the identity of a bound UNIX socket's file. The file's inode is not
// the socket's: Inode is a number of sockfs. While the socket is open the kernel
// keeps the file's inode, so that its number is not given to another file.
type pathID struct {
	dev, ino uint64
	linked   bool // the hard link beside the path exists
}

// FD returns the descriptor, borrowed: it stays open and must not be closed.
func (s *Socket) FD() int { return s.fd }

// Addr returns where the socket is bound, in canonical form, with the port that
// the kernel chose where 0 was asked for.
func (s *Socket) Addr() Addr { return s.addr }

// Inode returns the number by which /proc/PID/fd, /proc/net and sock_diag(7) name
// the socket: the 7 of "socket:[7]". It is the same for every holder.
func (s *Socket) Inode() uint64 { return s.inode }

// Options returns the options as they were given to Bind, Adopt or the last Apply.
func (s *Socket) Options() Options { return s.opts }

// HardLink returns the second name of a UNIX socket's file, .NAME.handoverd in
// the same directory, from which Restore brings the path back, and whether it
// exists: not every file system has hard links. Other sockets have none.
func (s *Socket) HardLink() (path string, exists bool) {
	if !s.addr.onDisk() {
		return "", false
	}
	return linkPath(s.addr.Path), s.path.linked
}

// fail wraps err with what failed. It keeps nil.
func (s *Socket) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	return &BindError{Op: op, Addr: s.addr, Err: err}
}

// open returns os.ErrClosed after Close.
func (s *Socket) open() error {
	if s.fd < 0 {
		return os.ErrClosed
	}
	return nil
}
