package main

import (
	"bufio"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// What is used here of RFC 6455: opcodes (5.2), and the longest payload whose
// length fits in the second byte.
const (
	opText  = 1
	opClose = 8
	longest = 125
)

const (
	// pause is the time after a failed connect until the next.
	pause = 100 * time.Millisecond
	// patience bounds a connect with its handshake and first echo.
	patience = 10 * time.Second
)

// A socket is a WebSocket that has echoed once.
type socket struct {
	conn   net.Conn
	br     *bufio.Reader
	server string // the process that answers
}

// hold keeps one WebSocket open for ever.
func hold(addr string, b *book) {
	var lost time.Time
	var before string
	for {
		b.attempt()
		s, err := connect(addr)
		if err != nil {
			b.fail()
			time.Sleep(pause)
			continue
		}
		b.open(lost, s.server == before)
		how := s.wait()
		lost, before = time.Now(), s.server
		b.end(how)
	}
}

// connect opens a WebSocket and sends a message over it, which must come back.
func connect(addr string) (*socket, error) {
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return nil, err
	}
	s := &socket{conn: conn, br: bufio.NewReaderSize(conn, 512)}
	if err := s.greet(addr); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

// greet is the handshake and one echo. The server need not prove that it knows
// the key (Sec-WebSocket-Accept): an echo says more.
func (s *socket) greet(addr string) error {
	if err := s.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	key := make([]byte, 16)
	rand.Read(key)
	name := base64.StdEncoding.EncodeToString(key)
	if _, err := fmt.Fprintf(s.conn, "GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n", addr, name); err != nil {
		return err
	}
	resp, err := http.ReadResponse(s.br, nil)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("status %s", resp.Status)
	}
	s.server = resp.Header.Get("X-Generation")
	if err := s.send(opText, []byte(name)); err != nil {
		return err
	}
	opcode, payload, err := s.read()
	if err != nil {
		return err
	}
	if opcode != opText || string(payload) != name {
		return fmt.Errorf("echo of %q: opcode %d, %q", name, opcode, payload)
	}
	return s.conn.SetDeadline(time.Time{})
}

// wait reads until the server ends the WebSocket, and says how: a close code, or
// what the connection died of. A close frame is answered (RFC 6455, 5.5.1).
func (s *socket) wait() (how string) {
	// It has ended; how the descriptor closes is no news.
	defer s.conn.Close()
	opcode, payload, err := s.read()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return endEOF
	case errors.Is(err, syscall.ECONNRESET):
		return endReset
	case err != nil, opcode != opClose, len(payload) < 2:
		return endOther
	}
	code := strconv.Itoa(int(binary.BigEndian.Uint16(payload)))
	if err := s.send(opClose, payload[:2]); err != nil {
		return "no answer taken to " + code
	}
	return code
}

// read reads one frame of the server.
func (s *socket) read() (opcode byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(s.br, head[:]); err != nil {
		return 0, nil, err
	}
	if head[0]&0x80 == 0 || head[1] > longest {
		return 0, nil, errors.New("a frame that is in parts, masked, or long")
	}
	payload = make([]byte, head[1])
	_, err = io.ReadFull(s.br, payload)
	return head[0] & 0xf, payload, err
}

// send writes one frame, masked with zeros: there is no proxy here to protect,
// which is what a mask is for (RFC 6455, 10.3).
func (s *socket) send(opcode byte, payload []byte) error {
	frame := append([]byte{0x80 | opcode, 0x80 | byte(len(payload)), 0, 0, 0, 0}, payload...)
	_, err := s.conn.Write(frame)
	return err
}
