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
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/handoverd/handover/drain"
)

// What is used here of RFC 6455: an opcode (5.2), the longest payload whose
// length fits in the second byte, the GUID of the handshake (1.3), and the close
// code of a service that restarts (the registry of 11.7).
const (
	opClose        = 8
	longest        = 125
	guid           = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
	serviceRestart = 1012
)

// writeLimit bounds the write of a frame.
const writeLimit = 5 * time.Second

// echo is a WebSocket that sends each message back. It names the process that
// answers in X-Generation.
type echo struct{ streams *drain.Streams }

func (e echo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + guid))
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Generation: "+
		strconv.Itoa(os.Getpid())+"\r\nSec-WebSocket-Accept: "+base64.StdEncoding.EncodeToString(sum[:])+"\r\n\r\n")
	if err != nil {
		_ = conn.Close() // the client has gone
		return
	}
	out := &frames{conn: conn}
	done, err := e.streams.Add(r.RemoteAddr, out.goodbye, conn.Close)
	if err != nil {
		_ = conn.Close() // the drain is over
		return
	}
	// Before done, which lets the program exit: it shall not close the connection
	// in place of this.
	defer func() { _ = conn.Close(); done() }()
	for {
		opcode, payload, err := readFrame(rw.Reader)
		if err != nil {
			return // whoever ended it: the client counts that
		}
		// A close frame is answered by one, unless the goodbye was it.
		if err := out.send(opcode, payload); err != nil || opcode == opClose {
			return
		}
	}
}

// errFrame is what no client of this server sends.
var errFrame = errors.New("a frame that is in parts, not masked, or long")

// readFrame reads one frame of a client, which is masked (RFC 6455, 5.3).
func readFrame(r *bufio.Reader) (opcode byte, payload []byte, err error) {
	var head [6]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	if head[0]&0x80 == 0 || head[1]&0x80 == 0 || head[1]&0x7f > longest {
		return 0, nil, errFrame
	}
	payload = make([]byte, head[1]&0x7f)
	if _, err := io.ReadFull(r, payload); err != nil {
		return 0, nil, err
	}
	for i := range payload {
		payload[i] ^= head[2+i%4]
	}
	return head[0] & 0xf, payload, nil
}

// frames is the writing half of a WebSocket.
type frames struct {
	conn   net.Conn
	mu     sync.Mutex
	closed bool // a close frame has been sent
}

// goodbye asks the client to leave; its close frame, the answer, ends the reader.
func (f *frames) goodbye(drain.Reason) {
	// Where it fails the client has gone.
	_ = f.send(opClose, binary.BigEndian.AppendUint16(nil, serviceRestart))
}

// send writes one frame, but nothing after a close frame (RFC 6455, 5.5.1).
func (f *frames) send(opcode byte, payload []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	f.closed = opcode == opClose
	if err := f.conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	_, err := f.conn.Write(append([]byte{0x80 | opcode, byte(len(payload))}, payload...))
	return err
}
