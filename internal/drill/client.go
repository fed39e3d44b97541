package drill

import (
	"errors"
	"net"
	"sync"
	"time"
)

// headSize is the size of a connection's buffer, in bytes: an answer's header fields have to fit in it.
const headSize = 8 << 10

var headPool = sync.Pool{New: func() any { return new([headSize]byte) }}

// lingerTime bounds the wait for the server to close first, after an answer with Connection: close.
const lingerTime = time.Second

// client is one connection and its buffer. It is used by one goroutine at a time.
type client struct {
	c      net.Conn
	buf    *[headSize]byte
	r, w   int  // unread bytes are buf[r:w]
	begun  bool // a byte of the present answer has come
	reused bool // an answer has come on this connection before

	proxyField string // header field of a proxy's generation, or empty
}

func newClient(c net.Conn, proxyField string) *client {
	return &client{c: c, buf: headPool.Get().(*[headSize]byte), proxyField: proxyField}
}

// close closes the connection. Where unread bytes are left the kernel resets it: that is done to failed connections only.
func (k *client) close() {
	// Nothing depends on it: whatever was sent has been answered or counted as failed.
	_ = k.c.Close()
	headPool.Put(k.buf)
	k.buf = nil
}

// fill reads more bytes into the buffer.
func (k *client) fill() error {
	if k.r == k.w {
		k.r, k.w = 0, 0
	} else if k.w == len(k.buf) {
		if k.r == 0 {
			return malformedError("header fields longer than the buffer")
		}
		k.w = copy(k.buf[:], k.buf[k.r:k.w])
		k.r = 0
	}
	n, err := k.c.Read(k.buf[k.w:])
	k.w += n
	if n > 0 {
		k.begun = true
		return nil
	}
	return err
}

// exchange sends one request and reads its answer, whose body is appended to scratch. The connection's deadline is set to
// deadline. keep says whether the connection may carry another request; after a failure it never may.
func (k *client) exchange(request []byte, deadline time.Time, scratch []byte) (a response, f *failure) {
	k.begun = k.r != k.w
	if k.begun {
		return a, &failure{kind: KindWrongBody, err: malformedError("bytes after the end of the answer before")}
	}
	if err := k.c.SetDeadline(deadline); err != nil {
		return a, streamFailure(err, false)
	}
	_, sendErr := k.c.Write(request)
	// Also after an error the server may have answered, before it stopped reading.
	a, err := k.readResponse(scratch)
	if err == nil {
		return a, nil
	}
	var malformed malformedError
	switch {
	case errors.As(err, &malformed) && a.status == 0:
		return a, &failure{kind: KindBadStatus, err: err}
	case errors.As(err, &malformed):
		return a, &failure{kind: KindWrongBody, err: err}
	case sendErr != nil && !k.begun:
		return a, streamFailure(sendErr, false)
	}
	return a, streamFailure(err, k.begun)
}

// lingerEOF waits until the server has closed, so that TIME_WAIT is on its side. It reports whether the connection was
// reset instead, and an error when there were more bytes.
func (k *client) lingerEOF() (reset bool, err error) {
	if k.r != k.w {
		return false, malformedError("bytes after the end of the answer")
	}
	if err := k.c.SetReadDeadline(time.Now().Add(lingerTime)); err != nil {
		return false, nil
	}
	n, err := k.c.Read(k.buf[:])
	if n > 0 {
		return false, malformedError("bytes after the end of the answer")
	}
	if f := streamFailure(err, false); f.kind == KindReset {
		return true, nil
	}
	return false, nil
}
