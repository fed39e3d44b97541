package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// A runtime directory may be tampered with while a handoverd has it: emptied, removed and made anew, renamed. Then
// nobody else is to take over what that one still has, and it is to write into no directory that has come in the place of
// its own, which may be another one's.

// dying is how long a process may take to end after the kernel has dropped its locks.
const dying = 2 * time.Second

// writerLives reports whether the handoverd that wrote the state lives, although nobody has the lock: the file was
// removed, and made anew by whoever has it now. It waits for one that is about to end, at most for patience.
func writerLives(w heldProcess, patience time.Duration) error {
	if w.PID == os.Getpid() {
		return nil
	}
	fd := openExactly(w.PID, w.StartTime)
	if fd < 0 {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	ended, err := endsWithin(fd, patience)
	if err == nil && !ended {
		err = fmt.Errorf("%w (pid %d), though the file \"lock\" that it had was removed: nothing is taken from it", ErrLocked, w.PID)
	}
	return err
}

// endsWithin waits until the process of a pidfd has ended, at most for patience, and reports whether it has.
func endsWithin(pidfd int, patience time.Duration) (bool, error) {
	for until := proc.Now().Add(patience); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(max(0, until.Until()).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0, os.NewSyscallError("poll", err)
		}
	}
}

// ours is an error where the directory is no longer at its path.
func (d *runtimeDir) ours() error {
	if d.dir == nil {
		return nil
	}
	here, err := os.Stat(d.path)
	if err != nil {
		return err
	}
	locked, err := d.dir.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(here, locked) {
		return fmt.Errorf("%s is another directory than the one that handoverd was started in: nothing is written into it", d.path)
	}
	return nil
}

// regular refuses what is no file: to read a pipe waits for a writer.
func regular(f *os.File) (os.FileInfo, error) {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: f.Name(), Err: errors.New("is no regular file")}
	}
	return info, err
}

// readRegular reads a file of at most limit bytes.
func readRegular(path string, limit int64) ([]byte, error) {
	// Without O_NONBLOCK to open a pipe waits as well (fifo(7)).
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := regular(f)
	if err != nil {
		return nil, err
	}
	long := &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d bytes", limit)}
	if info.Size() > limit { // not read first: a hole of any length costs nothing
		return nil, long
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit { // it has grown
		err = long
	}
	return b, err
}

// openTemp opens the file that is about to take another's place. Whatever is there that cannot be written to is removed.
func openTemp(path string) (*os.File, error) {
	open := func() (*os.File, error) {
		return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	}
	f, err := open()
	if err == nil {
		if _, bad := regular(f); bad == nil {
			return f, nil
		}
		_ = f.Close()
	}
	for _, e := range []error{nil, unix.ENXIO, unix.ELOOP, unix.EACCES} { // ENXIO: a pipe that nobody reads
		if errors.Is(err, e) && os.Remove(path) == nil {
			return open()
		}
	}
	return nil, err
}
