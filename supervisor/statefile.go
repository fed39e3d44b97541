package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// runtimeDir is handoverd's directory: the lock, the state file, the control
// socket, and a folder each for logs and notify sockets.
type runtimeDir struct {
	path string
	lock *os.File
	dir  *os.File // the directory itself: see ours
	last []byte   // the state as last written
}

// ErrLocked is returned by Run when another handoverd has the runtime directory.
var ErrLocked = errors.New("another handoverd holds the lock")

// openRuntimeDir makes the directory (0711, so that a child of another user can
// reach its own notify socket; all else in it is 0600) and takes the lock,
// which the kernel drops when the process ends, however it ends (flock(2)).
func openRuntimeDir(path string) (*runtimeDir, error) {
	for _, d := range []string{path, filepath.Join(path, "log"), filepath.Join(path, "notify"), filepath.Join(path, "exe")} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, fmt.Errorf("runtime_dir: %w", err)
		}
		if err := ownDir(d); err != nil {
			return nil, fmt.Errorf("runtime_dir: %w", err)
		}
	}
	f, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		_, err = regular(f)
	}
	if err != nil {
		return nil, fmt.Errorf("runtime_dir: %w", err)
	}
	if err := lockSoon(f); err != nil {
		who, _ := os.ReadFile(f.Name())
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("runtime_dir %s: %w (pid %s)", path, ErrLocked, bytes.TrimSpace(who))
		}
		return nil, fmt.Errorf("runtime_dir %s: %w", path, err)
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("runtime_dir: %w", err), f.Close())
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid()) // for people; the lock is what counts
	}
	return &runtimeDir{path: path, lock: f, dir: dir}, nil
}

// flock takes an exclusive lock without waiting. Descriptors of regular files
// may be reached by SyscallConn; the lock belongs to the open file.
func flock(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	if err := c.Control(func(fd uintptr) { lockErr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		return err
	}
	return os.NewSyscallError("flock", lockErr)
}

// ownDir refuses a directory that somebody else could swap things in.
func ownDir(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return &os.PathError{Op: "open", Path: path, Err: unix.ENOTDIR}
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to uid %d, not to %d: be that user, or take another directory", path, st.Uid, os.Geteuid())
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s is writable by others (mode %#o), who could put another state there: chmod go-w it", path, st.Mode&0o777)
	}
	return nil
}

func (d *runtimeDir) file(parts ...string) string {
	return filepath.Join(append([]string{d.path}, parts...)...)
}

// save writes the state: temporary file, fsync, rename, fsync of the directory,
// so that a crash at any point leaves the old state or the new one whole. It
// does nothing if nothing has changed.
func (d *runtimeDir) save(s *State, h held) error {
	b, err := encodeState(s, h)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	if bytes.Equal(b, d.last) {
		return nil
	}
	if err := d.replace("state.json", stamped(b, proc.Now())); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	d.last = b
	return nil
}

func (d *runtimeDir) replace(name string, b []byte) error {
	if err := d.ours(); err != nil {
		return err
	}
	tmp := d.file("." + name + ".tmp")
	f, err := openTemp(tmp)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp)) // a full disk gets it back
	}
	if err := os.Rename(tmp, d.file(name)); err != nil {
		return err
	}
	if d.dir != nil {
		return d.dir.Sync()
	}
	dir, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// close ends a life in which everything was stopped: there is nothing to adopt.
func (d *runtimeDir) close(clean bool) error {
	var err error
	if clean && d.ours() == nil {
		// One that could never be written is none that is left.
		if err = os.Remove(d.file("state.json")); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if d.dir != nil {
		err = errors.Join(err, d.dir.Close())
	}
	return errors.Join(err, d.lock.Close())
}
