package drill

import (
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"unicode/utf8"
)

// Opcodes of RFC 6455, 5.2.
const (
	wsContinuation = 0x0
	wsText         = 0x1
	wsBinary       = 0x2
	wsClose        = 0x8
	wsPing         = 0x9
	wsPong         = 0xa
)

// Close codes of RFC 6455, 7.4, and of the registry that it opened (1012, 1013).
const (
	wsNormal    = 1000
	wsGoingAway = 1001
	wsNoCode    = 1005 // never sent: a close frame without a code
	wsAbnormal  = 1006 // never sent: no close frame
	wsRestart   = 1012 // service restart
	wsTryLater  = 1013
)

// wsGUID is appended to the key (RFC 6455, 1.3).
const wsGUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

// wsKey is a new Sec-WebSocket-Key, and the Sec-WebSocket-Accept that belongs to it (RFC 6455, 4.1). It tells a server
// that speaks the protocol from one that repeats what it is sent; it is no secret.
func wsKey() (key, accept string) {
	var nonce [16]byte
	binary.NativeEndian.PutUint64(nonce[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(nonce[8:], rand.Uint64())
	key = base64.StdEncoding.EncodeToString(nonce[:])
	sum := sha1.Sum([]byte(key + wsGUID))
	return key, base64.StdEncoding.EncodeToString(sum[:])
}

// appendFrame appends one final frame, masked as a client's must be (RFC 6455, 5.3).
func appendFrame(dst []byte, opcode byte, payload []byte) []byte {
	dst = append(dst, 0x80|opcode)
	switch n := len(payload); {
	case n < 126:
		dst = append(dst, 0x80|byte(n))
	case n <= 0xffff:
		dst = binary.BigEndian.AppendUint16(append(dst, 0x80|126), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, 0x80|127), uint64(n))
	}
	var mask [4]byte
	binary.NativeEndian.PutUint32(mask[:], rand.Uint32())
	dst = append(dst, mask[:]...)
	for i, b := range payload {
		dst = append(dst, b^mask[i%4])
	}
	return dst
}

// readFrame reads one frame of a server; its payload is appended to scratch.
func (k *client) readFrame(scratch []byte) (opcode byte, final bool, payload []byte, err error) {
	k.begun = k.r != k.w
	head, err := k.take(scratch[len(scratch):], 2)
	if err != nil {
		return 0, false, scratch, err
	}
	opcode, final = head[0]&0x0f, head[0]&0x80 != 0
	n, masked := uint64(head[1]&0x7f), head[1]&0x80 != 0
	switch {
	case head[0]&0x70 != 0:
		return 0, false, scratch, malformedError("frame of an extension that was not agreed on")
	case masked:
		return 0, false, scratch, malformedError("masked frame from a server")
	case opcode >= wsClose && (!final || n > 125):
		return 0, false, scratch, malformedError("control frame in parts, or longer than 125 bytes")
	}
	if size := map[uint64]int{126: 2, 127: 8}[n]; size > 0 {
		long, err := k.take(scratch[len(scratch):], size)
		if err != nil {
			return 0, false, scratch, err
		}
		n = 0
		for _, b := range long {
			n = n<<8 | uint64(b)
		}
	}
	if n > maxBody {
		return 0, false, scratch, malformedError(fmt.Sprintf("frame of %d bytes", n))
	}
	payload, err = k.take(scratch, int(n))
	return opcode, final, payload, err
}

// closeCode reads a close frame's payload.
func closeCode(payload []byte) (code int, reason string, err error) {
	switch {
	case len(payload) == 0:
		return wsNoCode, "", nil
	case len(payload) == 1 || !utf8.Valid(payload[2:]):
		return 0, "", malformedError("close frame")
	}
	return int(binary.BigEndian.Uint16(payload)), string(payload[2:]), nil
}

// politeClose says whether a server that has nothing to complain of ends a connection with this code.
func politeClose(code int) bool {
	switch code {
	case wsNormal, wsGoingAway, wsNoCode, wsRestart, wsTryLater:
		return true
	}
	return false
}
