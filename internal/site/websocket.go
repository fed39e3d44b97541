package site

import (
	"bufio"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// ServiceRestart is the close code of a service that restarts (RFC 6455, the registry of 11.7).
const ServiceRestart = 1012

// What else is used here of RFC 6455: an opcode (5.2), and the GUID of the handshake (1.3).
const (
	opClose   = 8
	handshake = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
)

// writeLimit bounds the write of a frame.
const writeLimit = 5 * time.Second

// WebSocket is the server's end of a WebSocket, with as little of RFC 6455 as the clients of the tests need: messages of
// one frame, of less than 64 KiB. It is safe for concurrent use, but for Echo, which one goroutine calls.
type WebSocket struct {
	conn net.Conn
	in   *bufio.Reader

	mu     sync.Mutex
	closed bool // a close frame has been sent
}

// Upgrade answers the handshake, and names who answers in X-Generation. After an error the request has been answered, or
// the client has gone. The caller closes the WebSocket.
func Upgrade(w http.ResponseWriter, r *http.Request, generation string) (*WebSocket, error) {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + handshake))
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return nil, err
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Generation: "+
		generation+"\r\nSec-WebSocket-Accept: "+base64.StdEncoding.EncodeToString(sum[:])+"\r\n\r\n")
	if err != nil {
		_ = conn.Close() // the client has gone
		return nil, err
	}
	return &WebSocket{conn: conn, in: rw.Reader}, nil
}

// Echo sends each message back. It returns when the connection has ended, or a close frame was answered by one, unless
// the goodbye was it. Whoever ended it: the client counts that.
func (s *WebSocket) Echo() {
	for {
		opcode, payload, err := s.read()
		if err != nil {
			return
		}
		if err := s.send(opcode, payload); err != nil || opcode == opClose {
			return
		}
	}
}

// Goodbye asks the client to leave; its close frame, the answer, ends Echo.
func (s *WebSocket) Goodbye() {
	// Where it fails the client has gone.
	_ = s.send(opClose, binary.BigEndian.AppendUint16(nil, ServiceRestart))
}

// Close cuts the connection.
func (s *WebSocket) Close() error { return s.conn.Close() }

// errFrame is what no client of the tests sends.
var errFrame = errors.New("frame that is not masked, in parts, or too long")

// read reads one frame of a client, which is masked (RFC 6455, 5.3).
func (s *WebSocket) read() (opcode byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(s.in, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(head[1] & 0x7f)
	if head[0]&0x80 == 0 || head[1]&0x80 == 0 || n == 127 {
		return 0, nil, errFrame
	}
	opcode = head[0] & 0xf
	if n == 126 {
		if _, err := io.ReadFull(s.in, head[:]); err != nil {
			return 0, nil, err
		}
		n = int(binary.BigEndian.Uint16(head[:]))
	}
	payload = make([]byte, 4+n)
	if _, err := io.ReadFull(s.in, payload); err != nil {
		return 0, nil, err
	}
	mask, payload := payload[:4], payload[4:]
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return opcode, payload, nil
}

// send writes one frame, but nothing after a close frame (RFC 6455, 5.5.1).
func (s *WebSocket) send(opcode byte, payload []byte) error {
	frame := []byte{0x80 | opcode}
	if len(payload) < 126 {
		frame = append(frame, byte(len(payload)))
	} else {
		frame = binary.BigEndian.AppendUint16(append(frame, 126), uint16(len(payload)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = opcode == opClose
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	_, err := s.conn.Write(append(frame, payload...))
	return err
}
