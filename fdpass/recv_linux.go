package fdpass

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Recv receives one message and at most limit descriptors (0 to MaxFiles) from c.
// n is the length of the message in buf; the caller owns files. It blocks until
// c's read deadline.
//
// A message that does not fit buf (but for streams), descriptors that the kernel
// dropped, because they were more than limit or because the process has no room for
// them (RLIMIT_NOFILE), are errors that wrap ErrTruncated; every descriptor that
// did come is closed. The end of a stream is io.EOF; on a SOCK_SEQPACKET
// connection an empty packet looks the same.
func Recv(c *net.UnixConn, buf []byte, limit int) (n int, files []*os.File, err error) {
	if err := checkRecv(len(buf), limit); err != nil {
		return 0, nil, err
	}
	oob := controlBuffer(limit)
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob)
	fds, err := received(oob[:oobn], flags, limit, err)
	if err != nil {
		return 0, nil, err
	}
	for i, fd := range fds {
		f, err := newFile(fd, fmt.Sprintf("received descriptor %d", i))
		if err != nil {
			closeAll(fds[i+1:])
			for _, f := range files {
				_ = f.Close()
			}
			return 0, nil, fmt.Errorf("fdpass: receive: %w", err)
		}
		files = append(files, f)
	}
	return n, files, nil
}

// RecvFDs is Recv on raw descriptors: it borrows fd, a UNIX socket, and returns
// descriptors that the caller owns, close-on-exec. Like recvmsg(2) it returns
// n == 0 without an error at the end of a stream and for an empty packet. On a
// non-blocking fd nothing to read is EAGAIN.
func RecvFDs(fd int, buf []byte, limit int) (n int, fds []int, err error) {
	if err := checkRecv(len(buf), limit); err != nil {
		return 0, nil, err
	}
	oob := controlBuffer(limit)
	var oobn, flags int
	for {
		n, oobn, flags, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	fds, err = received(oob[:oobn], flags, limit, os.NewSyscallError("recvmsg", err))
	if err != nil {
		return 0, nil, err
	}
	return n, fds, nil
}

func checkRecv(bytes, limit int) error {
	if bytes == 0 {
		// recvmsg(2) into nothing drops a packet, with its descriptors.
		return errors.New("fdpass: receive: the buffer is empty")
	}
	if limit < 0 || limit > MaxFiles {
		return fmt.Errorf("fdpass: receive: %d descriptors asked for, from 0 to %d fit a message", limit, MaxFiles)
	}
	return nil
}

// controlBuffer has room for limit descriptors and for the credentials that a
// socket with SO_PASSCRED adds, which would push descriptors out.
func controlBuffer(limit int) []byte {
	n := unix.CmsgSpace(unix.SizeofUcred)
	if limit > 0 {
		n += unix.CmsgSpace(4 * limit)
	}
	return make([]byte, n)
}

// received takes the descriptors out of control messages. It returns them, or
// closes all if the message is not whole. recvErr is what receiving returned: an
// empty packet with descriptors is an end of file to package net.
func received(oob []byte, flags, limit int, recvErr error) (fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
			fds = nil
		}
	}()
	var parseErr error
	for len(oob) >= unix.CmsgSpace(0) && parseErr == nil {
		var header unix.Cmsghdr
		var data []byte
		header, data, oob, parseErr = unix.ParseOneSocketControlMessage(oob)
		// SCM_PIDFD carries one descriptor, where SO_PASSPIDFD is set: it is not
		// asked for, and must not stay open.
		if parseErr == nil && header.Level == unix.SOL_SOCKET {
			switch header.Type {
			case unix.SCM_RIGHTS:
				fds = append(fds, descriptors(data)...)
			case unix.SCM_PIDFD:
				closeAll(descriptors(data))
			}
		}
	}
	switch {
	case errors.Is(recvErr, io.EOF):
		return fds, io.EOF
	case recvErr != nil:
		return fds, fmt.Errorf("fdpass: receive: %w", recvErr)
	case parseErr != nil:
		return fds, fmt.Errorf("fdpass: receive: control message: %w", parseErr)
	case flags&unix.MSG_TRUNC != 0:
		return fds, fmt.Errorf("fdpass: receive: the message is longer than the buffer (MSG_TRUNC): %w", ErrTruncated)
	case flags&unix.MSG_CTRUNC != 0:
		return fds, fmt.Errorf("fdpass: receive: the kernel dropped descriptors (MSG_CTRUNC): more than %d came, "+
			"or RLIMIT_NOFILE leaves no room for them: %w", limit, ErrTruncated)
	case len(fds) > limit:
		// The buffer's padding and the room for credentials hold a few more.
		return fds, fmt.Errorf("fdpass: receive: %d descriptors came and at most %d were asked for: %w", len(fds), limit, ErrTruncated)
	}
	return fds, nil
}

// descriptors reads the C ints of a control message.
func descriptors(data []byte) []int {
	fds := make([]int, 0, len(data)/4)
	for ; len(data) >= 4; data = data[4:] {
		fds = append(fds, int(int32(binary.NativeEndian.Uint32(data))))
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
