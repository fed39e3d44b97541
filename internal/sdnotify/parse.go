package sdnotify

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxDatagram is the largest message in bytes. systemd's bound is the same
// (PIPE_BUF), so no program sends more.
const MaxDatagram = 4096

// Message is one datagram. Its zero value says nothing.
type Message struct {
	// Assignments holds all of it; of a repeated key the first, as in systemd.
	Assignments map[string]string

	Ready     bool // READY=1: started, or reloaded
	Reloading bool // RELOADING=1
	Stopping  bool // STOPPING=1
	Barrier   bool // BARRIER=1 with its descriptor: all that was sent before has been read

	Status     string // STATUS=, empty if not valid UTF-8
	MainPID    int    // MAINPID=, as the sender sees it; 0 if not given
	ExtendUsec uint64 // EXTEND_TIMEOUT_USEC=, microseconds from arrival; 0 if not given

	// Invalid names the keys above that were given a value they cannot have.
	// They are left zero; the rest of the message holds.
	Invalid []string
}

// Errors of [Parse] and of [Socket.Recv], which goes on after them.
var (
	ErrEmpty     = errors.New("sdnotify: empty datagram")
	ErrNUL       = errors.New("sdnotify: NUL byte in datagram")
	ErrTruncated = errors.New("sdnotify: truncated datagram")
)

// Parse reads one datagram. A line that is no assignment is ignored. Barrier
// is set for BARRIER=1 alone; whether its descriptor came with it is for the
// caller to know.
func Parse(b []byte) (Message, error) {
	if len(b) > MaxDatagram {
		return Message{}, fmt.Errorf("%w: %d bytes, more than %d", ErrTruncated, len(b), MaxDatagram)
	}
	// One NUL at the end is what C programs send when they count it in.
	b = bytes.TrimSuffix(b, []byte{0})
	if len(b) == 0 {
		return Message{}, ErrEmpty
	}
	if bytes.IndexByte(b, 0) >= 0 {
		return Message{}, ErrNUL
	}
	m := Message{Assignments: make(map[string]string)}
	for line := range strings.SplitSeq(string(b), "\n") {
		key, value, ok := strings.Cut(line, "=")
		if !ok || key == "" {
			continue
		}
		if _, again := m.Assignments[key]; again {
			continue
		}
		m.Assignments[key] = value
		if !m.set(key, value) {
			m.Invalid = append(m.Invalid, key)
		}
	}
	m.Barrier = m.Barrier && len(m.Assignments) == 1
	return m, nil
}

// set interprets one assignment. It is false for a value that key cannot have.
func (m *Message) set(key, value string) bool {
	switch key {
	case "READY":
		m.Ready = value == "1"
		return m.Ready
	case "RELOADING":
		m.Reloading = value == "1"
		return m.Reloading
	case "STOPPING":
		m.Stopping = value == "1"
		return m.Stopping
	case "BARRIER":
		m.Barrier = value == "1"
		return m.Barrier
	case "STATUS":
		if !utf8.ValidString(value) {
			return false
		}
		m.Status = value
	case "MAINPID":
		pid, err := strconv.ParseInt(value, 10, 32)
		if err != nil || pid <= 1 {
			return false
		}
		m.MainPID = int(pid)
	case "EXTEND_TIMEOUT_USEC":
		usec, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return false
		}
		m.ExtendUsec = usec
	}
	return true
}
