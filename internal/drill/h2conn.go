package drill

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// h2Window is what the server may send before it is given more, in bytes: more than the largest body that is kept, so
	// that no stream ever waits for it (RFC 9113, 5.2).
	h2Window = maxBody + 1<<20
	// h2LastStream is the highest number of a stream (RFC 9113, 5.1.1).
	h2LastStream = 1<<31 - 1
)

// h2conn is one HTTP/2 connection with several streams at a time. A reader of its own sees GOAWAY and the end of the
// connection at once, as that of every HTTP/2 client does, which has to answer PING and SETTINGS at all times.
type h2conn struct {
	c          net.Conn
	framer     *http2.Framer
	proxyField string // header field of a proxy's generation, or empty

	tokens chan struct{} // holds one for each open stream
	gone   chan struct{} // closed when no further stream may be opened

	received int // bytes of DATA since the last WINDOW_UPDATE; the reader's

	wmu     sync.Mutex // guards what follows: the writing half
	out     *bufio.Writer
	encoder *hpack.Encoder
	block   bytes.Buffer
	sendErr error // the first error of writing; what was read before the end is still believed

	mu      sync.Mutex // guards what follows; taken after wmu
	streams map[uint32]*h2stream
	next    uint32 // number of the next stream
	retired bool   // gone is closed
	carried bool   // an answer has come
}

// h2stream is one request. Its fields are the reader's until done is closed.
type h2stream struct {
	id      uint32
	reused  bool // the connection had carried an answer when it was opened
	a       response
	begun   bool // header fields have come
	refused bool // the server said that it has not processed it and will not (RFC 9113, 8.7)
	fail    *failure
	end     time.Time
	done    chan struct{}
}

// newH2conn does the handshake on c: prefaces and settings go both ways (RFC 9113, 3.4). limit is the number of streams
// wanted at a time; the server's may be lower. After an error c is closed. The caller starts read.
func newH2conn(c net.Conn, proxyField string, limit int, deadline time.Time) (*h2conn, *failure) {
	h := &h2conn{
		c: c, proxyField: proxyField, out: bufio.NewWriter(c),
		gone: make(chan struct{}), streams: map[uint32]*h2stream{}, next: 1,
	}
	in := bufio.NewReader(c)
	h.framer = http2.NewFramer(h.out, in)
	h.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	h.encoder = hpack.NewEncoder(&h.block)
	allowed, f := h.handshake(in, deadline)
	if f != nil {
		_ = c.Close() // nothing of it is used
		return nil, f
	}
	h.tokens = make(chan struct{}, max(1, min(limit, allowed)))
	return h, nil
}

// handshake returns the number of streams that the server allows at a time.
func (h *h2conn) handshake(in *bufio.Reader, deadline time.Time) (allowed int, f *failure) {
	if err := h.c.SetDeadline(deadline); err != nil {
		return 0, streamFailure(err, false)
	}
	err := h.write(deadline, func() error {
		if _, err := h.out.WriteString(http2.ClientPreface); err != nil {
			return err
		}
		if err := h.framer.WriteSettings(
			http2.Setting{ID: http2.SettingEnablePush, Val: 0},
			http2.Setting{ID: http2.SettingInitialWindowSize, Val: h2Window},
		); err != nil {
			return err
		}
		return h.framer.WriteWindowUpdate(0, h2Window)
	})
	// Also after an error the server may have said why. What it says in HTTP/1.1 is that it does not know the preface.
	if text, _ := in.Peek(len("HTTP/1")); string(text) == "HTTP/1" {
		return 0, &failure{kind: KindBadStatus, err: errors.New("the server does not speak HTTP/2: it answers in HTTP/1")}
	}
	frame, readErr := h.framer.ReadFrame()
	settings, ok := frame.(*http2.SettingsFrame)
	switch {
	case readErr != nil && notHTTP2(readErr):
		return 0, &failure{kind: KindBadStatus, err: fmt.Errorf("the server does not speak HTTP/2: %w", readErr)}
	case err != nil && readErr != nil:
		return 0, streamFailure(err, false)
	case readErr != nil:
		return 0, streamFailure(readErr, false)
	case !ok || settings.IsAck():
		return 0, &failure{kind: KindBadStatus, err: fmt.Errorf("the server's first frame is %v, want SETTINGS", frame.Header().Type)}
	}
	allowed = h2LastStream
	if v, ok := settings.Value(http2.SettingMaxConcurrentStreams); ok {
		allowed = int(min(v, h2LastStream))
	}
	if err := h.write(deadline, h.framer.WriteSettingsAck); err != nil {
		return 0, streamFailure(err, false)
	}
	// The reader waits without a limit: each request has its own.
	if err := h.c.SetReadDeadline(time.Time{}); err != nil {
		return 0, streamFailure(err, false)
	}
	return allowed, nil
}

// notHTTP2 says whether the bytes that came were no frames.
func notHTTP2(err error) bool {
	var connection http2.ConnectionError
	return errors.Is(err, http2.ErrFrameTooLarge) || errors.As(err, &connection)
}

// write writes frames and sends them at once.
func (h *h2conn) write(deadline time.Time, frames func() error) error {
	h.wmu.Lock()
	defer h.wmu.Unlock()
	return h.writeLocked(deadline, frames)
}

// writeLocked does so with wmu held. After an error the reader takes in what has come, a GOAWAY for example, and ends.
func (h *h2conn) writeLocked(deadline time.Time, frames func() error) error {
	if h.sendErr != nil {
		return h.sendErr
	}
	err := h.c.SetWriteDeadline(deadline)
	if err == nil {
		err = frames()
	}
	if err == nil {
		err = h.out.Flush()
	}
	if err != nil {
		h.sendErr = err
		// On a closed connection the reader has ended already.
		_ = h.c.SetReadDeadline(time.Now().Add(lingerTime))
	}
	return err
}

// read takes in frames until the connection ends, and then settles what was open.
func (h *h2conn) read(done func()) {
	defer done()
	defer h.c.Close()
	for {
		frame, err := h.framer.ReadFrame()
		var bad http2.StreamError
		switch {
		case err == nil:
			err = h.take(frame)
		case errors.As(err, &bad):
			h.settle(bad.StreamID, func(s *h2stream) { s.fail = &failure{kind: KindWrongBody, err: err} })
			continue
		}
		if err != nil {
			h.end(err)
			return
		}
	}
}

// take takes in one frame; an error ends the connection.
func (h *h2conn) take(frame http2.Frame) error {
	soon := time.Now().Add(lingerTime)
	id := frame.Header().StreamID
	switch frame := frame.(type) {
	case *http2.MetaHeadersFrame:
		h.head(frame)
	case *http2.DataFrame:
		return h.data(frame, soon)
	case *http2.RSTStreamFrame:
		h.settle(id, func(s *h2stream) { s.reset(frame.ErrCode) })
	case *http2.GoAwayFrame:
		h.goAway(frame.LastStreamID, frame.ErrCode)
	case *http2.PingFrame:
		if !frame.IsAck() {
			return h.write(soon, func() error { return h.framer.WritePing(true, frame.Data) })
		}
	case *http2.SettingsFrame:
		// A later limit of streams is not taken over: a server that enforces one refuses what is above it.
		if !frame.IsAck() {
			return h.write(soon, h.framer.WriteSettingsAck)
		}
	}
	return nil
}

// head takes in a header section: an interim answer, the answer's, or a trailer.
func (h *h2conn) head(frame *http2.MetaHeadersFrame) {
	h.with(frame.StreamID, func(s *h2stream) (over bool) {
		if s.begun { // a trailer
			return frame.StreamEnded()
		}
		status := 0
		if _, err := fmt.Sscanf(frame.PseudoValue("status"), "%3d", &status); err != nil {
			s.fail = &failure{kind: KindBadStatus, err: malformedError("no :status")}
			return true
		}
		if status < 200 {
			return false
		}
		s.begun, s.a.status = true, status
		for _, field := range frame.RegularFields() {
			if err := s.a.field([]byte(field.Name), []byte(field.Value)); err != nil {
				s.fail = &failure{kind: KindWrongBody, err: err}
				return true
			}
		}
		return frame.StreamEnded()
	})
}

// data takes in a piece of a body and gives the server as much room again.
func (h *h2conn) data(frame *http2.DataFrame, deadline time.Time) error {
	cut := false
	h.with(frame.StreamID, func(s *h2stream) (over bool) {
		switch cut = true; {
		case !s.begun:
			s.fail = &failure{kind: KindWrongBody, err: malformedError("DATA before HEADERS")}
			return true
		case len(s.a.body)+len(frame.Data()) > maxBody:
			s.fail = &failure{kind: KindWrongBody, err: malformedError(fmt.Sprintf("body longer than %d bytes", maxBody))}
			return true
		}
		cut = false
		s.a.body = append(s.a.body, frame.Data()...)
		return frame.StreamEnded()
	})
	if cut { // else the server would wait for ever to send the rest, and its drain for that
		if err := h.write(deadline, func() error { return h.framer.WriteRSTStream(frame.StreamID, http2.ErrCodeCancel) }); err != nil {
			return err
		}
	}
	h.received += int(frame.Length)
	if h.received < h2Window/2 {
		return nil
	}
	n := uint32(h.received)
	h.received = 0
	return h.write(deadline, func() error { return h.framer.WriteWindowUpdate(0, n) })
}
