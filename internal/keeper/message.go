package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

const (
	// Version is the version of the protocol.
	Version = 1
	// ProgramName is argv[0] of handoverd when it is to be the keeper: main then
	// calls Serve and nothing else. argv[1] is the runtime directory, for people
	// who look at the list of processes as well.
	ProgramName = "handoverd-keeper"
	// ListenFD is the number at which the keeper finds its listening socket.
	ListenFD = 3
	// LockName is the file in the runtime directory whose lock a client proves to
	// have. It is not the directory's own: a copy of that in a packet that no keeper
	// reads would keep it locked when its owner is dead.
	LockName = "keeper.lock"
	// MaxPacket is the longest packet, in bytes.
	MaxPacket = 64 << 10

	maxName  = 1 << 10 // bytes of one name
	maxBatch = 32 << 10
	maxFiles = 253 // SCM_MAX_FD
)

// The verbs.
const (
	verbHello = "hello" // with the lock; answered by hello with the keeper's pid
	verbKeep  = "keep"  // names, and as many descriptors
	verbDrop  = "drop"  // names
	verbTake  = "take"  // answered by kept packets, the last of them with "last"
	verbKept  = "kept"  // names, and as many descriptors
	verbError = "error" // the keeper could not do what it was told
)

// message is one packet.
type message struct {
	V     int      `json:"v"`
	Verb  string   `json:"verb"`
	Names []string `json:"names,omitempty"`
	Last  bool     `json:"last,omitempty"`
	PID   int      `json:"pid,omitempty"`
	Error string   `json:"error,omitempty"`
}

// errProtocol is wrapped by every error about a packet.
var errProtocol = errors.New("not a message of the keeper's protocol")

// decode reads a packet that came with n descriptors.
func decode(b []byte, n int) (message, error) {
	var m message
	if err := json.Unmarshal(b, &m); err != nil {
		return message{}, fmt.Errorf("%w: %w", errProtocol, err)
	}
	want := 0
	switch m.Verb {
	case verbKeep, verbKept:
		want = len(m.Names)
	case verbHello:
		want = n // the client's comes with one, the answer with none
		if n > 1 {
			return message{}, fmt.Errorf("%w: hello with %d descriptors", errProtocol, n)
		}
	case verbDrop, verbTake, verbError:
	default:
		return message{}, fmt.Errorf("%w: verb %.20q", errProtocol, m.Verb)
	}
	if m.V < 1 || n != want {
		return message{}, fmt.Errorf("%w: version %d, %d names, %d descriptors", errProtocol, m.V, len(m.Names), n)
	}
	for _, name := range m.Names {
		if name == "" || len(name) > maxName || !utf8.ValidString(name) {
			return message{}, fmt.Errorf("%w: the name %.40q", errProtocol, name)
		}
	}
	return m, nil
}

func encode(m message) ([]byte, error) {
	m.V = Version
	b, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if len(b) > MaxPacket {
		return nil, fmt.Errorf("keeper: a message of %d bytes, at most %d", len(b), MaxPacket)
	}
	return b, nil
}

// batch is how many of the names go into one packet: at most limit.
func batch(names []string, limit int) int {
	size := 0
	for i, name := range names {
		// A byte of a name takes six in JSON at most (\u00xx).
		if size += 6*len(name) + 3; i == limit || i > 0 && size > maxBatch {
			return i
		}
	}
	return len(names)
}
