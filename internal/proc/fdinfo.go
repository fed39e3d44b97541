package proc

import (
	"bytes"
	"strconv"
)

// epollEntry is one entry of an epoll set.
type epollEntry struct {
	fd     int // the number under which it was added, which may since mean something else or nothing
	events uint64
	inode  uint64 // zero where the kernel does not tell
	device uint64 // as the kernel numbers it: major<<20 | minor
}

// The event bits that let a listener wake a waiter; EPOLLIN and POLLIN are the same bit, and so are the others
// (asm-generic/poll.h). An entry without them, armed to see a hang-up only, is not waiting for connections.
const readable = 0x001 | 0x040 // POLLIN | POLLRDNORM

// parseEpoll reads the lines of an epoll descriptor's /proc/PID/fdinfo/FD (man proc_pid_fdinfo(5)):
//
//	tfd:        5 events:       19 data:                5  pos:0 ino:61af sdev:7
//
// The number after tfd is decimal, all others but pos are hexadecimal. pos, ino and sdev are missing in kernels
// before 4.13. Lines that are not understood are left out.
func parseEpoll(fdinfo []byte) []epollEntry {
	var entries []epollEntry
	for line := range bytes.Lines(fdinfo) {
		if !bytes.HasPrefix(line, []byte("tfd:")) {
			continue
		}
		if e, ok := parseEpollEntry(line); ok {
			entries = append(entries, e)
		}
	}
	return entries
}

func parseEpollEntry(line []byte) (e epollEntry, ok bool) {
	var key []byte
	for field := range bytes.FieldsSeq(line) {
		value := field // alone, if its key was the field before
		if before, after, ok := bytes.Cut(field, []byte(":")); ok {
			key, value = before, after
		}
		if len(value) == 0 {
			continue
		}
		var err error
		switch string(key) {
		case "tfd":
			e.fd, err = strconv.Atoi(string(value))
			ok = true
		case "events":
			e.events, err = strconv.ParseUint(string(value), 16, 64)
		case "ino":
			e.inode, err = strconv.ParseUint(string(value), 16, 64)
		case "sdev":
			e.device, err = strconv.ParseUint(string(value), 16, 64)
		}
		if err != nil {
			return epollEntry{}, false
		}
	}
	return e, ok
}

// syscallLine is what /proc/PID/task/TID/syscall tells (man proc_pid_syscall(5)).
type syscallLine struct {
	blocked bool // in a system call: number and args are set
	running bool // on a processor or about to be
	number  int
	args    [6]uint64
}

// parseSyscall reads "running", "-1 SP PC" (blocked, in no system call) or "NUMBER ARG1 … ARG6 SP PC".
func parseSyscall(line []byte) (s syscallLine, ok bool) {
	f := bytes.Fields(line)
	if len(f) == 1 && string(f[0]) == "running" {
		return syscallLine{running: true}, true
	}
	if len(f) == 0 {
		return syscallLine{}, false
	}
	n, err := strconv.Atoi(string(f[0]))
	if err != nil {
		return syscallLine{}, false
	}
	if n < 0 {
		return syscallLine{}, true
	}
	if len(f) < 1+len(s.args) {
		return syscallLine{}, false
	}
	s.blocked, s.number = true, n
	for i := range s.args {
		v, err := strconv.ParseUint(string(bytes.TrimPrefix(f[1+i], []byte("0x"))), 16, 64)
		if err != nil {
			return syscallLine{}, false
		}
		s.args[i] = v
	}
	return s, true
}

// SocketInode reads the target of a link in /proc/PID/fd: "socket:[12345]".
func SocketInode(link []byte) (inode uint64, ok bool) {
	rest, ok := bytes.CutPrefix(link, []byte("socket:["))
	if !ok {
		return 0, false
	}
	rest, ok = bytes.CutSuffix(rest, []byte("]"))
	if !ok {
		return 0, false
	}
	inode, err := strconv.ParseUint(string(rest), 10, 64)
	return inode, err == nil
}
