package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// Version is the protocol version that this package speaks and accepts.
const Version = 1

// MaxPacket is the largest packet in bytes. The kernel would carry about 200
// KiB; a bound well below that is the same on every host.
const MaxPacket = 64 << 10

// The environment of a supervised program.
const (
	// EnvFD holds the number of the inherited end of the connection.
	EnvFD = "HANDOVER_FD"
	// EnvGeneration holds the number of the generation, 1 or more.
	EnvGeneration = "HANDOVER_GENERATION"
	// EnvService holds the name of the service.
	EnvService = "HANDOVER_SERVICE"
	// EnvToken holds a random text, the same for every process of one
	// generation: the supervisor finds strays by it, so it stays inherited.
	EnvToken = "HANDOVER_TOKEN"
	// EnvSocketPrefix precedes a socket's name, in upper case and with "_"
	// for "-"; the value is the number of its descriptor.
	EnvSocketPrefix = "HANDOVER_FD_"
	// EnvPerGeneration names the sockets that no other generation has, with ":"
	// between them. Nobody else accepts there, so they need not wait for Accept.
	EnvPerGeneration = "HANDOVER_PER_GENERATION"
)

// Verb says what a message asks for or tells.
type Verb string

// The verbs.
const (
	Hello    Verb = "hello"     // child: speaks this protocol; PID, Generation
	Sockets  Verb = "sockets"   // child: which sockets are there; supervisor: Names, with descriptors
	Bind     Verb = "bind"      // child: Address to bind, under Names[0]
	Ready    Verb = "ready"     // child: can serve; Names are the sockets it took
	Draining Verb = "draining"  // child: has begun to drain, the answer to Drain
	Status   Verb = "status"    // child: Text for the operator
	Extend   Verb = "extend"    // child: needs ExtendNS more to become ready
	Bye      Verb = "bye"       // child: closes the connection on purpose
	Bound    Verb = "bound"     // supervisor: the answer to Bind, with one descriptor
	Accept   Verb = "accept"    // supervisor: may accept connections from now on
	Ack      Verb = "ack"       // supervisor: is the serving generation now
	LameDuck Verb = "lame_duck" // supervisor: serve on, but tell clients to go elsewhere
	Drain    Verb = "drain"     // supervisor: finish until DeadlineNS; Reason
	Error    Verb = "error"     // either: Error is why the peer's Reply verb was refused
)

var verbs = []Verb{
	Hello, Sockets, Bind, Ready, Draining, Status, Extend, Bye,
	Bound, Accept, Ack, LameDuck, Drain, Error,
}

// Reasons of Drain after which no other generation takes over: the service ends. Any other one, also none and one of a
// newer supervisor, is a hand-over.
const (
	ReasonStop    = "stop"    // the supervisor stops
	ReasonRemoved = "removed" // the service is no longer configured
)

// Message is one packet. Only the fields that its verb names mean anything;
// the others are zero and not sent.
type Message struct {
	V    int  `json:"v"` // 0 is sent as Version
	Verb Verb `json:"verb"`

	PID        int    `json:"pid,omitempty"` // as the sender sees it: in its own pid namespace
	Generation int    `json:"generation,omitempty"`
	Service    string `json:"service,omitempty"`

	Names   []string `json:"names,omitempty"`   // socket names, in the order of the descriptors if there are any
	Address string   `json:"address,omitempty"` // as in the configuration, "tcp://:8080"
	Text    string   `json:"text,omitempty"`
	Reason  string   `json:"reason,omitempty"`

	// DeadlineNS is a time of CLOCK_BOOTTIME in nanoseconds (clock_gettime(2)),
	// the same for every process of the host and going on while it sleeps. 0
	// is no deadline.
	DeadlineNS int64 `json:"deadline_ns,omitempty"`
	ExtendNS   int64 `json:"extend_ns,omitempty"` // nanoseconds, counted from arrival

	Reply Verb   `json:"reply,omitempty"` // the verb that an Error refuses; empty: the connection as a whole
	Error string `json:"error,omitempty"`
}

// What is wrong with a packet; see [DecodeError].
var (
	ErrUnknownVerb = errors.New("unknown verb")
	ErrVersion     = errors.New("unsupported version")
)

// DecodeError is a packet that is not a message. The connection stays usable:
// the receiver answers with [Error] and goes on.
type DecodeError struct {
	Verb Verb // as far as it could be read
	Err  error
}

func (e *DecodeError) Error() string {
	if e.Verb != "" {
		return fmt.Sprintf("wire: decode %.40q: %v", string(e.Verb), e.Err)
	}
	return "wire: decode: " + e.Err.Error()
}

// Unwrap gives the cause: [ErrUnknownVerb], [ErrVersion] or a JSON error.
func (e *DecodeError) Unwrap() error { return e.Err }

// Encode gives m as one packet. It refuses what Decode would refuse.
func Encode(m Message) ([]byte, error) {
	if m.V == 0 {
		m.V = Version
	}
	if err := check(m); err != nil {
		return nil, fmt.Errorf("wire: encode %q: %w", string(m.Verb), err)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("wire: encode %q: %w", string(m.Verb), err)
	}
	if len(b) > MaxPacket {
		return nil, fmt.Errorf("wire: encode %q: %d bytes, more than %d", string(m.Verb), len(b), MaxPacket)
	}
	return b, nil
}

// Decode reads one packet. Its error is a *[DecodeError]; the message is then
// as complete as could be read, for the answer.
func Decode(b []byte) (Message, error) {
	var m Message
	if len(b) > MaxPacket {
		return m, &DecodeError{Err: fmt.Errorf("%d bytes, more than %d", len(b), MaxPacket)}
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, &DecodeError{Verb: m.Verb, Err: err}
	}
	if err := check(m); err != nil {
		return m, &DecodeError{Verb: m.Verb, Err: err}
	}
	return m, nil
}

func check(m Message) error {
	if m.V != Version {
		return fmt.Errorf("%w %d", ErrVersion, m.V)
	}
	if !slices.Contains(verbs, m.Verb) {
		return ErrUnknownVerb
	}
	// Durations and counts: a negative one would turn a comparison round.
	if m.PID < 0 || m.Generation < 0 || m.DeadlineNS < 0 || m.ExtendNS < 0 {
		return errors.New("negative number")
	}
	return nil
}
