package fdpass

import (
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dirLockTimeout bounds the wait for another process that holds the lock on
	// a socket's directory. The lock is held for a few system calls.
	dirLockTimeout  = 5 * time.Second
	dirLockInterval = 5 * time.Millisecond
)

func bindUnix(a Addr, o Options) (s *Socket, err error) {
	uid, gid, err := lookupOwner(o)
	if err != nil {
		return nil, err
	}
	fd, err := newSocket(unix.AF_UNIX, socketType(a.Kind), o)
	if err != nil {
		return nil, err
	}
	s = &Socket{fd: fd, addr: a, opts: o}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if s.inode, err = inode(fd); err != nil {
		return nil, err
	}
	if a.Abstract() {
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: a.Path}); err != nil {
			return nil, os.NewSyscallError("bind", err)
		}
	} else if err := s.bindPath(uid, gid); err != nil {
		return nil, err
	}
	if a.Kind.Datagram() {
		return s, nil
	}
	if err := unix.Listen(fd, o.backlog()); err != nil {
		return nil, errors.Join(os.NewSyscallError("listen", err), s.Unlink())
	}
	return s, nil
}

// bindPath binds the final name, never a temporary one: getsockname(2) keeps the
// name of the bind, and programs find an inherited socket by it.
func (s *Socket) bindPath(uid, gid int) (err error) {
	d, err := lockDir(path.Dir(s.addr.Path))
	if err != nil {
		return err
	}
	defer d.close()
	name, link := path.Base(s.addr.Path), path.Base(linkPath(s.addr.Path))
	if err := d.removeStale(name); err != nil {
		return err
	}
	linkFree, err := d.removeStaleLink(link)
	if err != nil {
		return err
	}
	// The file gets the mode of the socket's own inode less the umask
	// (unix_bind_bsd, net/unix/af_unix.c), so it has it from its first instant.
	if err := unix.Fchmod(s.fd, s.opts.mode()); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	if err := unix.Bind(s.fd, &unix.SockaddrUnix{Name: s.addr.Path}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	st, err := d.stat(name)
	if err != nil {
		return err
	}
	s.path = pathID{dev: st.Dev, ino: st.Ino}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.unlinkOwn(name, s.path), d.unlinkOwn(link, s.path))
		}
	}()
	if linkFree {
		s.path.linked = d.link(name, link) == nil
	}
	// The umask may have taken bits away. Then the owner, last: an unprivileged
	// process may not make hard links to what it does not own (proc_sys_fs(5),
	// protected_hardlinks).
	if st.Mode&0o777 != s.opts.mode() {
		if err := d.chmod(name, s.path, s.opts.mode()); err != nil {
			return err
		}
	}
	return d.chown(name, s.path, uid, gid)
}

// Unlink removes the path of a UNIX socket and the hard link beside it, each only
// where it still is the file of this socket. Call it before Close: as long as the
// socket is open the file's inode number is not given to another file. For other
// sockets, and for paths that are gone or foreign, it does nothing.
func (s *Socket) Unlink() error {
	if !s.addr.onDisk() || s.path.ino == 0 {
		return nil
	}
	d, err := lockDir(path.Dir(s.addr.Path))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return s.fail("unlink", err)
	}
	defer d.close()
	err = errors.Join(
		d.unlinkOwn(path.Base(s.addr.Path), s.path),
		d.unlinkOwn(path.Base(linkPath(s.addr.Path)), s.path))
	if err == nil {
		s.path.linked = false
	}
	return s.fail("unlink", err)
}

// AtPath reports whether the path of a UNIX socket still is that of its file, without
// waiting for anybody; for other sockets it is true. Where it is not, Restore is next.
func (s *Socket) AtPath() bool {
	if !s.addr.onDisk() {
		return true
	}
	var st unix.Stat_t
	err := unix.Lstat(s.addr.Path, &st)
	return err == nil && s.path.ino != 0 && st.Dev == s.path.dev && st.Ino == s.path.ino
}

// Restore brings the path of a UNIX socket back after a program has removed or
// replaced it, from the hard link beside it, by link and rename: the same socket,
// so that its queue and the clients in it notice nothing. What stands at the path
// is replaced. A missing hard link is made again while the path is right. Without
// both, the error wraps ErrNoLink. For other sockets it does nothing.
func (s *Socket) Restore() error {
	if !s.addr.onDisk() {
		return nil
	}
	return s.fail("restore", s.restore())
}

func (s *Socket) restore() error {
	if err := s.open(); err != nil {
		return err
	}
	d, err := lockDir(path.Dir(s.addr.Path))
	if err != nil {
		return err
	}
	defer d.close()
	name, link := path.Base(s.addr.Path), path.Base(linkPath(s.addr.Path))
	if s.path.linked, err = d.own(link, s.path); err != nil {
		return err
	}
	intact, err := d.own(name, s.path)
	if err != nil {
		return err
	}
	if intact {
		if !s.path.linked {
			s.path.linked = d.link(name, link) == nil
		}
		return nil
	}
	if !s.path.linked {
		return ErrNoLink
	}
	// A name left by a process killed between link and rename is our own file.
	tmp := link + ".new"
	if err := d.unlinkOwn(tmp, s.path); err != nil {
		return err
	}
	if err := d.link(link, tmp); err != nil {
		return err
	}
	if err := unix.Renameat(d.fd, tmp, d.fd, name); err != nil {
		return errors.Join(os.NewSyscallError("renameat", err), d.unlinkOwn(tmp, s.path))
	}
	// rename(2) does nothing when both names are the same file already.
	return d.unlinkOwn(tmp, s.path)
}

// lockedDir is an open directory under an exclusive flock(2). All handoverds that
// bind in it take the lock, so that none removes what another has just bound.
type lockedDir struct{ fd int }

func lockDir(dir string) (lockedDir, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return lockedDir{}, fmt.Errorf("directory %s: %w", dir, os.NewSyscallError("open", err))
	}
	deadline := time.Now().Add(dirLockTimeout)
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return lockedDir{fd}, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline):
			_ = unix.Close(fd)
			return lockedDir{}, fmt.Errorf("lock directory %s: %w", dir, os.NewSyscallError("flock", err))
		}
		// Not a waiting flock: anyone who may read the directory can lock it for
		// ever, and no signal would end the wait.
		time.Sleep(dirLockInterval)
	}
}

// close unlocks as well: no other descriptor of this open file exists.
func (d lockedDir) close() { _ = unix.Close(d.fd) }

func (d lockedDir) stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, os.NewSyscallError("fstatat", err)
}

// own reports whether name is the file id.
func (d lockedDir) own(name string, id pathID) (bool, error) {
	st, err := d.stat(name)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return err == nil && id.ino != 0 && st.Dev == id.dev && st.Ino == id.ino, err
}

// unlinkOwn removes name if it is the file id, and leaves anything else.
func (d lockedDir) unlinkOwn(name string, id pathID) error {
	own, err := d.own(name, id)
	if err != nil || !own {
		return err
	}
	return d.unlink(name)
}

func (d lockedDir) unlink(name string) error {
	err := unix.Unlinkat(d.fd, name, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return os.NewSyscallError("unlinkat", err)
}

func (d lockedDir) link(from, to string) error {
	return os.NewSyscallError("linkat", unix.Linkat(d.fd, from, d.fd, to, 0))
}

// pin opens the file id by name without following links, so that what is done to
// it cannot hit a file that has taken its place.
func (d lockedDir) pin(name string, id pathID) (int, error) {
	fd, err := unix.Openat(d.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("openat", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("fstat", err)
	}
	if st.Dev != id.dev || st.Ino != id.ino {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("%s is no longer the file of this socket", name)
	}
	return fd, nil
}

func (d lockedDir) chmod(name string, id pathID, mode uint32) error {
	fd, err := d.pin(name, id)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// fchmod(2) refuses an O_PATH descriptor; its link in /proc is followed.
	return os.NewSyscallError("chmod", unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode))
}

// chown leaves an id of -1 as it is.
func (d lockedDir) chown(name string, id pathID, uid, gid int) error {
	if uid == -1 && gid == -1 {
		return nil
	}
	fd, err := d.pin(name, id)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return os.NewSyscallError("fchownat", unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH))
}
