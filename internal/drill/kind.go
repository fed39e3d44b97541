package drill

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
)

// Kind is how a request failed, as its client saw it.
type Kind string

// The kinds. A request has at most one; only KindDuplicate comes beside an answer that was counted as good.
const (
	KindRefused      Kind = "refused"       // connect: ECONNREFUSED, or no file at a UNIX path
	KindResetConnect Kind = "reset-connect" // connect: ECONNRESET
	KindReset        Kind = "reset"         // ECONNRESET or EPIPE before the first byte of the answer
	KindEOF          Kind = "eof"           // the connection ended before the first byte of the answer
	KindTruncated    Kind = "truncated"     // ended or was reset after the first byte, before the last
	KindTimeout      Kind = "timeout"       // Load.Timeout passed, in connect or after; a datagram without an answer
	KindBadStatus    Kind = "bad-status"    // status other than 200, or no status line
	KindWrongBody    Kind = "wrong-body"    // number, checksum or generation not as sent, a malformed or overlong answer
	KindDuplicate    Kind = "duplicate"     // a datagram or message answered a second time
	// KindRefusedStream is a request over HTTP/2 that the server refused twice without having processed it. The first time is
	// no failure: see Report.RefusedStreams.
	KindRefusedStream Kind = "refused-stream"
	// KindClosed is a WebSocket that the server closed by a close frame, with a message unanswered, or with a code that tells of
	// an error. One that ends without a close frame (1006) is KindEOF, KindReset or KindTruncated.
	KindClosed Kind = "closed"
	KindOther  Kind = "other" // any other error; the sample has its text
)

// Kinds lists all kinds, in the order in which reports show them.
func Kinds() []Kind {
	return []Kind{
		KindRefused, KindResetConnect, KindReset, KindEOF, KindTruncated,
		KindTimeout, KindBadStatus, KindWrongBody, KindDuplicate, KindRefusedStream, KindClosed, KindOther,
	}
}

// faultUnsent is the generator's fault of not having sent a request that was due: no client was free for it.
const faultUnsent = "unsent"

// failure is how one exchange failed: kind, or fault when it was the generator's.
type failure struct {
	kind  Kind
	fault string
	err   error
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT)
}

// generatorFault names the errors that say something of this process or machine and nothing of the server.
func generatorFault(err error) string {
	for errno, name := range map[syscall.Errno]string{
		syscall.EADDRNOTAVAIL: "EADDRNOTAVAIL", // no free port
		syscall.EADDRINUSE:    "EADDRINUSE",
		syscall.EMFILE:        "EMFILE",
		syscall.ENFILE:        "ENFILE",
		syscall.ENOBUFS:       "ENOBUFS",
		syscall.ENOMEM:        "ENOMEM",
		syscall.EACCES:        "EACCES",
		syscall.EPERM:         "EPERM",
	} {
		if errors.Is(err, errno) {
			return name
		}
	}
	return ""
}

// connectFailure classifies an error of connect(2).
func connectFailure(err error) *failure {
	f := &failure{kind: KindOther, err: err}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT):
		f.kind = KindRefused
	case errors.Is(err, syscall.ECONNRESET):
		f.kind = KindResetConnect
	case isTimeout(err):
		f.kind = KindTimeout
	default:
		f.fault = generatorFault(err)
	}
	return f
}

// streamFailure classifies an error of a connection; begun says whether a byte of the answer had come.
func streamFailure(err error, begun bool) *failure {
	f := &failure{kind: KindOther, err: err}
	// Over TLS an end without close_notify is an unexpected one (RFC 8446, 6.1); in a frame, one that is not whole.
	ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	reset := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	switch {
	case isTimeout(err):
		f.kind = KindTimeout
	case begun && (ended || reset):
		f.kind = KindTruncated
	case ended:
		f.kind = KindEOF
	case reset:
		f.kind = KindReset
	default:
		f.fault = generatorFault(err)
	}
	return f
}
