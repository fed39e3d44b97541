package drill

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// errRetired says that the connection takes no new stream; nothing was sent.
var errRetired = errors.New("the connection takes no new streams")

// h2get is one GET.
type h2get struct{ scheme, host, path string }

// open sends a request in a stream of its own. It waits while as many are open as the server allows. errRetired: nothing
// was sent, and another connection is needed.
func (h *h2conn) open(get h2get, deadline time.Time) (*h2stream, error) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case h.tokens <- struct{}{}:
	case <-h.gone:
		return nil, errRetired
	case <-timer.C:
		return nil, fmt.Errorf("wait for a free stream: %w", os.ErrDeadlineExceeded)
	}
	// Numbers go up in the order of sending (RFC 9113, 5.1.1), hence one lock about both.
	h.wmu.Lock()
	defer h.wmu.Unlock()
	h.mu.Lock()
	if h.retired || h.next > h2LastStream {
		h.retireLocked()
		h.mu.Unlock()
		<-h.tokens
		return nil, errRetired
	}
	s := &h2stream{id: h.next, reused: h.carried, a: response{length: -1, proxyField: h.proxyField}, done: make(chan struct{})}
	h.next += 2
	h.streams[s.id] = s
	h.mu.Unlock()
	// An error ends the connection by its reader, and this stream with it.
	_ = h.writeLocked(deadline, func() error { return h.writeGet(s.id, get) })
	return s, nil
}

func (h *h2conn) writeGet(id uint32, get h2get) error {
	h.block.Reset()
	for _, f := range []hpack.HeaderField{
		{Name: ":method", Value: "GET"},
		{Name: ":scheme", Value: get.scheme},
		{Name: ":authority", Value: get.host},
		// Different for each request: it would only push the others out of the table.
		{Name: ":path", Value: get.path, Sensitive: true},
		{Name: "user-agent", Value: "handoverd-drill"},
		{Name: "accept", Value: "*/*"},
	} {
		if err := h.encoder.WriteField(f); err != nil {
			return err
		}
	}
	return h.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: h.block.Bytes(), EndStream: true, EndHeaders: true,
	})
}

// with calls f with an open stream and the lock held, and reports that it is open; f returns true when it is over.
func (h *h2conn) with(id uint32, f func(s *h2stream) (over bool)) (open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.streams[id]
	if s == nil {
		return false // frames of a stream that was given up are still on their way
	}
	if f(s) {
		h.finishLocked(s)
	}
	return true
}

// settle ends a stream as f says, and reports that it was open.
func (h *h2conn) settle(id uint32, f func(s *h2stream)) (open bool) {
	return h.with(id, func(s *h2stream) bool { f(s); return true })
}

// finishLocked takes a stream that is over off the connection.
func (h *h2conn) finishLocked(s *h2stream) {
	s.end = time.Now()
	s.check()
	if s.fail == nil && !s.refused {
		h.carried = true
	}
	delete(h.streams, s.id)
	<-h.tokens
	close(s.done)
	h.restLocked()
}

// restLocked lets the reader end, which closes the connection, when nothing more is to come: a server that drains waits for it.
func (h *h2conn) restLocked() {
	if h.retired && len(h.streams) == 0 {
		// It fails on a closed connection only, where the reader has ended.
		_ = h.c.SetReadDeadline(time.Now())
	}
}

// check compares a whole body with the length that was announced (RFC 9113, 8.1.1).
func (s *h2stream) check() {
	n := int64(len(s.a.body))
	switch {
	case s.fail != nil || s.refused:
	case !s.begun:
		s.fail = &failure{kind: KindWrongBody, err: malformedError("the stream ended without an answer")}
	case s.a.length > n:
		s.fail = &failure{kind: KindTruncated, err: fmt.Errorf("stream ended after %d of %d bytes", n, s.a.length)}
	case s.a.length >= 0 && s.a.length < n:
		s.fail = &failure{kind: KindWrongBody, err: malformedError(fmt.Sprintf("%d bytes, announced %d", n, s.a.length))}
	}
}

// reset is RST_STREAM: before any answer, REFUSED_STREAM says that nothing was processed (RFC 9113, 8.7).
func (s *h2stream) reset(code http2.ErrCode) {
	err := fmt.Errorf("RST_STREAM %v", code)
	switch {
	case s.begun:
		s.fail = &failure{kind: KindTruncated, err: err}
	case code == http2.ErrCodeRefusedStream:
		s.refuse(err)
	default:
		s.fail = &failure{kind: KindReset, err: err}
	}
}

func (s *h2stream) refuse(err error) {
	s.refused = true
	s.fail = &failure{kind: KindRefusedStream, err: err}
}

// goAway retires the connection. Streams above last were not processed and will not be (RFC 9113, 6.8); the others go on.
func (h *h2conn) goAway(last uint32, code http2.ErrCode) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retireLocked()
	err := fmt.Errorf("GOAWAY %v, last stream %d", code, last)
	for id, s := range h.streams {
		if id <= last {
			continue
		}
		if s.begun {
			s.fail = &failure{kind: KindTruncated, err: err}
		} else {
			s.refuse(err)
		}
		h.finishLocked(s)
	}
	h.restLocked()
}

// retire makes the connection end after its open streams.
func (h *h2conn) retire() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retireLocked()
	h.restLocked()
}

func (h *h2conn) retireLocked() {
	if !h.retired {
		h.retired = true
		close(h.gone)
	}
}

// end fails what is open as the connection ended.
func (h *h2conn) end(err error) {
	h.wmu.Lock()
	sendErr := h.sendErr
	h.wmu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retireLocked()
	for _, s := range h.streams {
		switch {
		case notHTTP2(err):
			s.fail = &failure{kind: KindWrongBody, err: err}
		case sendErr != nil && !s.begun && isTimeout(err):
			s.fail = streamFailure(sendErr, false)
		default:
			s.fail = streamFailure(err, s.begun)
		}
		h.finishLocked(s)
	}
}

// cancel gives up a stream that has not ended in time; it may have ended just now.
func (h *h2conn) cancel(s *h2stream) {
	open := h.settle(s.id, func(s *h2stream) {
		s.fail = &failure{kind: KindTimeout, err: fmt.Errorf("stream %d: %w", s.id, os.ErrDeadlineExceeded)}
	})
	if open {
		// Where it fails the connection is over, and the reader says so.
		_ = h.write(time.Now().Add(lingerTime), func() error { return h.framer.WriteRSTStream(s.id, http2.ErrCodeCancel) })
	}
}
