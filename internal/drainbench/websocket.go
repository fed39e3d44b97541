package main

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

// The opcodes that are used here (RFC 6455, 5.2), and the close code of a service that restarts (its registry, 11.7).
const (
	wsText         = 1
	wsClose        = 8
	serviceRestart = 1012
)

// echo is a WebSocket whose every message is sent back: as little of RFC 6455 as the load generator's client needs.
type echo struct {
	program    *program
	generation string
}

func (e echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	defer conn.Close()
	_, err = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Generation: " +
		e.generation + "\r\nSec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n"))
	if err != nil {
		return // the client has gone
	}
	left, done := e.program.joins("GET /ws")
	defer done()
	ended := make(chan struct{})
	out := &frames{conn: conn}
	// Not waited for: it ends with ended, or with one write.
	go restart(out, left, ended)
	defer close(ended)
	for {
		opcode, payload, err := readFrame(rw.Reader)
		if err != nil {
			return // whoever ended it, the client counts that itself
		}
		if err := out.send(opcode, payload); err != nil || opcode == wsClose {
			return
		}
	}
}

// restart closes politely when the stream is to leave; the client's close frame, which is the answer to it, ends the reader.
func restart(out *frames, left, ended <-chan struct{}) {
	select {
	case <-left:
		// Where it fails the client has gone.
		_ = out.send(wsClose, binary.BigEndian.AppendUint16(nil, serviceRestart))
	case <-ended:
	}
}

// errFrame is what no client of this server sends.
var errFrame = errors.New("frame that is masked not at all, in parts, or too long")

// readFrame reads one frame of a client (RFC 6455, 5.2).
func readFrame(r *bufio.Reader) (opcode byte, payload []byte, err error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:2]); err != nil {
		return 0, nil, err
	}
	n := int(head[1] & 0x7f)
	if head[0]&0x80 == 0 || head[1]&0x80 == 0 || n == 127 {
		return 0, nil, errFrame
	}
	opcode = head[0] & 0xf
	if n == 126 {
		if _, err := io.ReadFull(r, head[:2]); err != nil {
			return 0, nil, err
		}
		n = int(binary.BigEndian.Uint16(head[:2]))
	}
	payload = make([]byte, 4+n)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	mask, payload := payload[:4], payload[4:]
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return opcode, payload, nil
}

// writeLimit bounds the write of a frame.
const writeLimit = 5 * time.Second

// frames is the writing half of a WebSocket.
type frames struct {
	conn   net.Conn
	mu     sync.Mutex
	closed bool // a close frame has been sent
}

// send writes one frame of less than 64 KiB, but nothing after a close frame (RFC 6455, 5.5.1).
func (f *frames) send(opcode byte, payload []byte) error {
	frame := []byte{0x80 | opcode}
	if len(payload) < 126 {
		frame = append(frame, byte(len(payload)))
	} else {
		frame = binary.BigEndian.AppendUint16(append(frame, 126), uint16(len(payload)))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = opcode == wsClose
	if err := f.conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	_, err := f.conn.Write(append(frame, payload...))
	return err
}
