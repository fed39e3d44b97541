package drain

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"time"
)

// http2Preface is what a client sends first (RFC 9113 section 3.4).
const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// Frame types and flags of RFC 9113 section 6.
const (
	frameHeaders      = 0x1
	framePushPromise  = 0x5
	framePing         = 0x6
	frameGoAway       = 0x7
	frameContinuation = 0x9

	flagAck        = 0x1
	flagEndHeaders = 0x4

	frameHeaderLen = 9
)

// linger is how long a client that has read a GOAWAY may still write a request
// that it had decided on before.
const linger = time.Second

// pingData marks the PING behind the first GOAWAY, and the one a linger later.
var pingData = [2][8]byte{{'h', 'a', 'n', 'd', 'o', 'v', 'e', '1'}, {'h', 'a', 'n', 'd', 'o', 'v', 'e', '2'}}

// goAwayFrame is a GOAWAY without error.
func goAwayFrame(lastStream uint32) []byte {
	b := []byte{0, 0, 8, frameGoAway, 0, 0, 0, 0, 0}
	b = binary.BigEndian.AppendUint32(b, lastStream)
	return binary.BigEndian.AppendUint32(b, 0) // NO_ERROR
}

// pingFrame is a PING.
func pingFrame(data [8]byte) []byte {
	return append([]byte{0, 0, 8, framePing, 0, 0, 0, 0, 0}, data[:]...)
}

// An h2conn carries HTTP/2 and can put frames of its own between those of the
// two ends. See h2.go for what for.
type h2conn struct {
	net.Conn
	once sync.Once

	out     sync.Mutex // guards sent and pending, and holds writers apart
	sent    frameScan
	pending []byte // to be written between two frames

	// What follows belongs to the reader; net/http has one.
	preface  int // bytes of the client's preface still to be read
	received frameScan
	injected []byte // to be read between two frames
	answered int    // how many of our PINGs have been
}

func newH2conn(c net.Conn) *h2conn { return &h2conn{Conn: c} }

func (c *h2conn) original() net.Conn { return c.Conn }

func (c *h2conn) tracked() *member { return memberOf(c.Conn) }

// goAway asks the client to use another connection. It returns once that is
// written, or will be behind a frame that is being written.
func (c *h2conn) goAway() { c.once.Do(c.sendGoAway) }

func (c *h2conn) sendGoAway() {
	c.out.Lock()
	defer c.out.Unlock()
	c.pending = append(goAwayFrame(1<<31-1), pingFrame(pingData[0])...)
	// A connection that fails here fails for net/http as well, which ends it.
	_ = c.flush()
}

// pingAgain sends the second PING.
func (c *h2conn) pingAgain() {
	c.out.Lock()
	defer c.out.Unlock()
	c.pending = append(c.pending, pingFrame(pingData[1])...)
	_ = c.flush() // as above
}

// flush writes what is pending if no frame is under way. out is held.
func (c *h2conn) flush() error {
	if len(c.pending) == 0 || !c.sent.between() {
		return nil
	}
	_, err := c.Conn.Write(c.pending)
	c.pending = nil
	return err
}

// Write writes p, with what is pending at the first end of a frame.
func (c *h2conn) Write(p []byte) (n int, err error) {
	c.out.Lock()
	defer c.out.Unlock()
	for len(p) > 0 {
		part := p
		if len(c.pending) > 0 {
			part = p[:c.sent.next(p)]
		} else {
			c.sent.all(p)
		}
		k, err := c.Conn.Write(part)
		n += k
		if err != nil {
			return n, err
		}
		if err := c.flush(); err != nil {
			return n, err
		}
		p = p[len(part):]
	}
	return n, nil
}

// errPreface is a client that does not speak HTTP/2.
var errPreface = errors.New("drain: the client did not begin with the HTTP/2 preface")

// Read reads, and puts what is injected between two frames. net/http reads a
// frame's head and its payload apart, so it asks at every end of a frame.
func (c *h2conn) Read(p []byte) (int, error) {
	if err := c.skipPreface(); err != nil {
		return 0, err
	}
	if len(c.injected) > 0 && c.received.between() {
		n := copy(p, c.injected)
		c.injected = c.injected[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	for rest := p[:n]; len(rest) > 0; {
		rest = rest[c.received.next(rest):]
		if c.answered < len(pingData) && c.received.pong(pingData[c.answered]) {
			c.answered++
			if c.answered == 1 {
				time.AfterFunc(linger, c.pingAgain)
			} else {
				c.injected = goAwayFrame(0)
			}
		}
	}
	return n, err
}

// skipPreface reads the preface if net/http has not.
func (c *h2conn) skipPreface() error {
	for c.preface > 0 {
		var b [len(http2Preface)]byte
		n, err := c.Conn.Read(b[:c.preface])
		at := len(http2Preface) - c.preface
		if !bytes.Equal(b[:n], []byte(http2Preface[at:at+n])) {
			return errPreface
		}
		c.preface -= n
		if err != nil {
			return err
		}
	}
	return nil
}

// A frameScan follows a stream of frames.
type frameScan struct {
	head    [frameHeaderLen]byte
	have    int    // bytes of head
	left    int    // bytes of the payload still to come
	block   bool   // within a header block, which nothing may interrupt (RFC 9113 section 4.3)
	begun   bool   // the first frame, which must be SETTINGS, is over
	payload []byte // of a PING
}

// between tells whether another frame may be put here.
func (f *frameScan) between() bool { return f.begun && f.have == 0 && !f.block }

// pong tells whether the frame that has just ended answers a PING.
func (f *frameScan) pong(data [8]byte) bool {
	return f.have == 0 && f.head[3] == framePing && f.head[4]&flagAck != 0 && bytes.Equal(f.payload, data[:])
}

// all follows p to its end.
func (f *frameScan) all(p []byte) {
	for len(p) > 0 {
		p = p[f.next(p):]
	}
}

// next follows p to the end of the frame under way, and returns how many bytes
// of p that takes; all of p if the frame does not end in it.
func (f *frameScan) next(p []byte) int {
	n := 0
	if f.have < frameHeaderLen {
		n = copy(f.head[f.have:], p)
		f.have += n
		if f.have < frameHeaderLen {
			return n
		}
		f.left = int(f.head[0])<<16 | int(f.head[1])<<8 | int(f.head[2])
		f.payload = f.payload[:0]
	}
	k := min(f.left, len(p)-n)
	if f.head[3] == framePing && bytes.Equal(f.head[:3], []byte{0, 0, byte(len(pingData[0]))}) {
		f.payload = append(f.payload, p[n:n+k]...)
	}
	f.left -= k
	if f.left == 0 {
		f.have, f.begun = 0, true
		switch f.head[3] {
		case frameHeaders, framePushPromise, frameContinuation:
			f.block = f.head[4]&flagEndHeaders == 0
		}
	}
	return n + k
}
