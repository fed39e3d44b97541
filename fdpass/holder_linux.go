package fdpass

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
)

// maxHolders bounds how many processes an error names.
const maxHolders = 3

// holders names the processes that hold a, as far as /proc shows: "pid 12
// (nginx), pid 13 (nginx)". A socket that is bound but neither listens nor is a
// datagram socket is in no table of /proc/net.
func holders(a Addr) string {
	inodes := boundInodes(a)
	if len(inodes) == 0 {
		return ""
	}
	var found []string
	more := false
	for _, pid := range processes() {
		if !holdsAny(pid, inodes) {
			continue
		}
		if len(found) == maxHolders {
			more = true
			break
		}
		found = append(found, fmt.Sprintf("pid %d (%s)", pid, program(pid)))
	}
	text := strings.Join(found, ", ")
	if more {
		text += " and others"
	}
	return text
}

// boundInodes finds the sockets whose address overlaps with a. The tables are those
// of the calling thread's network: /proc/net is the main thread's, which may have
// another one.
func boundInodes(a Addr) []string {
	switch {
	case a.Kind.unix():
		return unixInodes(a.Path)
	case a.Kind.base() == TCP:
		const listen = "0A" // TCP_LISTEN, include/net/tcp_states.h
		return append(inetInodes("/proc/thread-self/net/tcp", a, listen), inetInodes("/proc/thread-self/net/tcp6", a, listen)...)
	}
	return append(inetInodes("/proc/thread-self/net/udp", a, ""), inetInodes("/proc/thread-self/net/udp6", a, "")...)
}

// inetInodes reads a table in the form of proc_pid_net(5): local address and port
// in the second field, state in the fourth, inode in the tenth.
func inetInodes(table string, a Addr, state string) []string {
	var inodes []string
	for _, line := range readLines(table) {
		f := strings.Fields(line)
		if len(f) < 10 || state != "" && f[3] != state {
			continue
		}
		ip, port, ok := parseProcAddr(f[1])
		if ok && port == a.Port && overlaps(ip, a.ip()) {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}

// overlaps is loose: a wildcard meets everything, since /proc/net does not tell
// dual-stack from v6only.
func overlaps(x, y netip.Addr) bool {
	return x == y.WithZone("") || x.IsUnspecified() || y.IsUnspecified()
}

// parseProcAddr reads "0100007F:0050": each 32-bit word of the address is printed
// as a number of the machine's byte order.
func parseProcAddr(s string) (netip.Addr, uint16, bool) {
	words, digits, _ := strings.Cut(s, ":")
	port, err := strconv.ParseUint(digits, 16, 16)
	if err != nil {
		return netip.Addr{}, 0, false
	}
	b, err := hex.DecodeString(words)
	if err != nil || len(b)%4 != 0 {
		return netip.Addr{}, 0, false
	}
	for word := range slices.Chunk(b, 4) {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	ip, ok := netip.AddrFromSlice(b)
	return ip.Unmap(), uint16(port), ok
}

// unixInodes reads the UNIX table of proc_pid_net(5): flags in the fourth field, inode in the
// seventh, path in the eighth. Accepted connections carry their listener's path,
// so a listener (the flag __SO_ACCEPTCON) goes before all others.
func unixInodes(path string) []string {
	const acceptCon = 0x10000
	var bound, listeners []string
	for _, line := range readLines("/proc/thread-self/net/unix") {
		f := strings.Fields(line)
		if len(f) < 8 || !strings.HasSuffix(line, " "+path) {
			continue
		}
		bound = append(bound, f[6])
		if flags, err := strconv.ParseUint(f[3], 16, 64); err == nil && flags&acceptCon != 0 {
			listeners = append(listeners, f[6])
		}
	}
	if len(listeners) > 0 {
		return listeners
	}
	return bound
}

// BoundTo gives the inodes of the UNIX sockets of the calling thread's network namespace that are bound to
// path, whoever holds them and whatever is at the path now; those that cannot be seen are
// left out (proc_net(5), unix). Of a socket that was bound anew the one before is among
// them for as long as somebody holds it.
func BoundTo(path string) []uint64 {
	var out []uint64
	for _, line := range readLines("/proc/thread-self/net/unix") {
		f := strings.Fields(line)
		if len(f) < 8 || !strings.HasSuffix(line, " "+path) {
			continue
		}
		if inode, err := strconv.ParseUint(f[6], 10, 64); err == nil {
			out = append(out, inode)
		}
	}
	return out
}

// readLines returns nothing where the file cannot be read: the holder is help in
// an error, and its absence no second error.
func readLines(file string) []string {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimRight(string(b), "\n"), "\n")
}

// processes returns the process ids that /proc shows, in rising order.
func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

func holdsAny(pid int, inodes []string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	defer f.Close()
	// A process that ends meanwhile gives an error and what was read so far.
	names, _ := f.Readdirnames(-1)
	for _, name := range names {
		target, err := os.Readlink(dir + "/" + name)
		if err != nil {
			continue
		}
		number, isSocket := strings.CutPrefix(target, "socket:[")
		if isSocket && slices.Contains(inodes, strings.TrimSuffix(number, "]")) {
			return true
		}
	}
	return false
}

// program is the base name of what pid runs, or its command name where the
// executable may not be seen.
func program(pid int) string {
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		return exe[strings.LastIndexByte(exe, '/')+1:]
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(comm))
}
