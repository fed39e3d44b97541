package wire

import "errors"

// MaxFiles is how many descriptors one packet carries: SCM_MAX_FD of the
// kernel; sendmsg(2) answers EINVAL to one more.
const MaxFiles = 253

// Errors of [Conn]. After ErrFull, ErrEmpty, ErrTruncated and a *[DecodeError]
// the connection is as good as before; every other error of Recv is final.
var (
	// ErrFull: Send found the peer's buffer full. The message was not sent.
	ErrFull = errors.New("wire: the peer does not read: its buffer is full")
	// ErrEmpty: a packet of zero bytes arrived, which no peer may send. It
	// reads like an end of file but is none.
	ErrEmpty = errors.New("wire: empty packet")
	// ErrTruncated: a packet or its descriptors did not fit. All descriptors
	// that did arrive are closed.
	ErrTruncated = errors.New("wire: truncated packet")
	// ErrShut: the peer shut down its sending half (shutdown(2)). It lives,
	// but nothing will ever come from it.
	ErrShut = errors.New("wire: the peer shut down its sending half")
)
