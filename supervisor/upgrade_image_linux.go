package supervisor

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// openImage opens a program to be executed by execute, close-on-exec. The caller owns
// it.
func openImage(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var st unix.Stat_t
	err = os.NewSyscallError("fstat", unix.Fstat(fd, &st))
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = &os.PathError{Op: "exec", Path: path, Err: unix.EACCES}
	}
	if err == nil {
		err = os.NewSyscallError("access", unix.Faccessat(unix.AT_FDCWD, fdPath(fd), unix.X_OK, unix.AT_EACCESS))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("%s: %w", path, err)
	}
	return fd, nil
}

// writtenTo looks at when a file was written to last.
func writtenTo(fd int) (imageText, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return imageText{st.Size, time.Duration(unix.TimespecToNsec(st.Mtim))}, os.NewSyscallError("fstat", err)
}

// The begin of a program: its magic number and class, and the machine that it is for (elf(5)).
const (
	elfMagic   = "\x7fELF"
	elfHeader  = 20
	elfClass   = 4
	elfMachine = 18
)

// checkImage refuses a file that the kernel would not execute by itself, as a script. Its
// pre-flight would be well: but in place of this process its interpreter is executed, which is told to open it by a
// descriptor that is closed by then (execve(2), binfmt_misc). What may be executed and not be read is not looked at.
func checkImage(fd int) error {
	header, err := headerOf(fdPath(fd))
	if err != nil {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	}
	own, err := headerOf("/proc/self/exe")
	switch {
	case strings.HasPrefix(header, "#!"):
		return errors.New("it is a script, which cannot take over: say which program with --binary")
	case !strings.HasPrefix(header, elfMagic) || len(header) < elfHeader:
		return errors.New("it is no program")
	case err == nil && len(own) == elfHeader && (header[elfClass] != own[elfClass] || header[elfMachine:] != own[elfMachine:]):
		return errors.New("it is a program for another machine")
	}
	return nil
}

func headerOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, elfHeader)
	n, err := io.ReadFull(f, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return string(b[:n]), err
}

// fdPath is a path of what the descriptor is of, in this process.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
