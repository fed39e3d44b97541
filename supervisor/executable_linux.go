package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lookAtExecutable says what file is at the path, without reading it.
func lookAtExecutable(path string) (*Executable, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	return statExecutable(fd)
}

func statExecutable(fd int) (*Executable, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("it is no regular file")
	}
	var magic [2]byte
	n, _ := unix.Pread(fd, magic[:], 0)
	return &Executable{
		Dev: st.Dev, Ino: st.Ino, Size: st.Size, Modified: st.Mtim.Nano(), Changed: st.Ctim.Nano(),
		Script: n == 2 && string(magic[:]) == "#!",
	}, nil
}

// openProgram opens the file that is want: at its path, or, when that has been given to
// another file meanwhile, the one that the process runs. It reads it, and makes a copy,
// without which it is kept as well: against what renames.
func openProgram(path string, pid int, want *Executable) (*keptFile, error) {
	fd, err := openSame(path, want)
	if err != nil && pid > 0 {
		fd, err = openSame(fmt.Sprintf("/proc/%d/exe", pid), want)
	}
	if err != nil {
		return nil, err
	}
	p := &keptFile{file: fd, copy: -1}
	is := *want
	if p.copy, is.Copy, p.noCopy = copyProgram(path, fd, want.Size); outOfFiles(p.noCopy) {
		p.close()
		return nil, p.noCopy // it is tried again
	}
	from := fd
	if p.copy >= 0 {
		from = p.copy
	}
	is.Digest, err = digestFD(from)
	if err == nil {
		// While it runs it cannot be written (ETXTBSY, execve(2)), but it may have ended.
		var now *Executable
		if now, err = statExecutable(fd); err == nil && (now.Modified != want.Modified || now.Size != want.Size) {
			err = errors.New("it was overwritten while it was read")
		}
	}
	if err != nil {
		p.close()
		return nil, err
	}
	p.is = &is
	return p, nil
}

func openSame(path string, want *Executable) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	is, err := statExecutable(fd)
	if err == nil && (is.Dev != want.Dev || is.Ino != want.Ino || is.Size != want.Size || is.Modified != want.Modified) {
		err = fmt.Errorf("%s is another file than the one that was started", path)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// copyProgram makes a copy that can be executed: one that shares the blocks of the
// file until that is overwritten, where its file system can do so (ioctl_ficlone(2)),
// else in memory, where the descriptor is all there is of it. -1, with the reason, if it
// is too large, or cannot be had: a pid namespace may forbid it (sysctl vm.memfd_noexec).
func copyProgram(path string, fd int, size int64) (copied int, how string, err error) {
	if copied, err = reflink(filepath.Dir(path), fd); err == nil {
		return copied, copyReflink, nil
	}
	if size > maxCopy {
		return -1, "", errTooLarge
	}
	copied, err = inMemory(filepath.Base(path), fd, size)
	if err != nil {
		return -1, "", err
	}
	return copied, copyMemory, nil
}

// reflink makes a file without a name beside the original. It is open for reading
// alone in the end: one that is open for writing cannot be executed.
func reflink(dir string, fd int) (int, error) {
	w, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o755)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(w) }()
	if err := unix.IoctlFileClone(w, fd); err != nil {
		return -1, err
	}
	if err := unix.Fchmod(w, 0o755); err != nil {
		return -1, err
	}
	return unix.Open(fmt.Sprintf("/proc/self/fd/%d", w), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

// inMemory copies into a sealed memfd.
func inMemory(name string, fd int, size int64) (int, error) {
	m, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // MFD_EXEC is of Linux 6.3; before, all can be executed
		m, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	var at int64
	for err == nil && at < size {
		var n int
		n, err = unix.Sendfile(m, fd, &at, int(min(size-at, 1<<20)))
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			err = nil
		} else if err == nil && n == 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	if err == nil {
		err = unix.Fchmod(m, 0o755)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(m), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Close(m)
		return -1, fmt.Errorf("copy in memory: %w", err)
	}
	return m, nil
}

// digestFD is the SHA-256 of an open file, whatever its offset.
func digestFD(fd int) (string, error) {
	h := sha256.New()
	buf := make([]byte, 256<<10)
	for at := int64(0); ; {
		n, err := unix.Pread(fd, buf, at)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", os.NewSyscallError("pread", err)
		case n == 0:
			return hex.EncodeToString(h.Sum(nil)), nil
		default:
			_, _ = h.Write(buf[:n])
			at += int64(n)
		}
	}
}

func digestFile(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	return digestFD(fd)
}
