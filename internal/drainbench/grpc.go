package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// The calls of the server, in gRPC's wire format over HTTP/2 ("gRPC over HTTP2", PROTOCOL-HTTP2.md): a POST, messages with
// five bytes before each, and the status in a trailer. It is written by hand here, on
// net/http's frames, so that the module does not depend on gRPC; grpcserver has the same calls of grpc-go's server.
const (
	grpcUnary  = "/bench.Echo/Unary"
	grpcStream = "/bench.Echo/Stream"
	grpcType   = "application/grpc"
)

// grpcOK and grpcUnavailable are codes of status ("Status codes and their use in gRPC"). The second one is what a client
// tries again.
const (
	grpcOK          = "0"
	grpcUnavailable = "14"
)

// messageEvery is the time between two messages of a stream.
const messageEvery = 200 * time.Millisecond

// unary answers a message with the same, after unaryTakes.
func (p *program) unary(w http.ResponseWriter, r *http.Request) {
	message, err := readMessage(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", grpcType)
	timer := time.NewTimer(unaryTakes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
		return
	}
	// Where it fails the client has gone.
	_, _ = w.Write(appendMessage(nil, message))
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", grpcOK)
}

// unaryTakes is how long a call takes, so that there always are some under way.
const unaryTakes = 10 * time.Millisecond

// stream sends messages without an end. One that is told to leave ends with a status, upon which the client calls again.
func (p *program) stream(w http.ResponseWriter, r *http.Request) {
	if _, err := readMessage(r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", grpcType)
	message := func(n int) []byte { return appendMessage(nil, fmt.Appendf(nil, "message %d", n)) }
	p.sends(w, r, "POST "+grpcStream, messageEvery, message, func() {
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", grpcUnavailable)
	})
}

// appendMessage appends a message that is not compressed.
func appendMessage(b, message []byte) []byte {
	b = binary.BigEndian.AppendUint32(append(b, 0), uint32(len(message)))
	return append(b, message...)
}

// maxMessage is more than any message of this program, in bytes.
const maxMessage = 1 << 10

// readMessage reads one; io.EOF: there is none left.
func readMessage(r io.Reader) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if head[0] != 0 || n > maxMessage {
		return nil, errors.New("message that is compressed or too long")
	}
	message := make([]byte, n)
	if _, err := io.ReadFull(r, message); err != nil {
		return nil, fmt.Errorf("message of %d bytes: %w", n, io.ErrUnexpectedEOF)
	}
	return message, nil
}
