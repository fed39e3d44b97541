package drill

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// wsPath is where a server that keeps the contract has its WebSocket.
const wsPath = "/ws"

// errNoNumber is wrapped by what is said of a message that answers none.
var errNoNumber = errors.New("message has no number n=")

// message sends one message and waits for its answer, on the sender's connection. One that the server has closed in the
// meantime was counted then; another is opened, as a client does that was told to come again.
func (s *sender) message(o *outcome, deadline time.Time) *failure {
	s.sent = AppendDatagram(s.sent[:0], o.number, s.run.load.Payload)
	for moves := 0; ; moves++ {
		standBack(moves, deadline)
		if s.ws == nil {
			w, f := s.run.openWebSocket(deadline)
			if f != nil {
				return f
			}
			s.ws = w
		}
		m, open := s.ws.send(o.number, s.sent, deadline)
		if !open {
			s.ws = nil // its reader ends by itself
			continue
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-m.done:
		case <-timer.C:
			s.ws.abandon()
			<-m.done
		}
		timer.Stop()
		o.reused, o.end, o.generation = m.reused, m.end, m.generation
		return m.fail
	}
}

// openWebSocket connects, and starts the connection's reader. Waited for by watch, through clients; the sender that calls
// counts there still.
func (r *Run) openWebSocket(deadline time.Time) (*wsConn, *failure) {
	c, f := r.dialer.open(deadline)
	if f != nil {
		return nil, f
	}
	w := &wsConn{run: r, k: newClient(c, r.load.GenerationHeader), done: make(chan struct{})}
	if f := w.handshake(deadline); f != nil {
		w.k.close()
		return nil, f
	}
	r.clients.Add(1)
	go w.read(r.clients.Done)
	return w, nil
}

// handshake is the opening one (RFC 6455, 4.1).
func (w *wsConn) handshake(deadline time.Time) *failure {
	path, host := wsPath, w.run.load.Host
	if p := w.run.load.Plain; p != nil {
		path = p.Path
	}
	setDefault(&path, "/")
	setDefault(&host, "drill")
	key, accept := wsKey()
	request := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: handoverd-drill\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %s\r\n\r\n", path, host, key)
	if err := w.k.c.SetDeadline(deadline); err != nil {
		return streamFailure(err, false)
	}
	_, sendErr := w.k.c.Write(request)
	// Also after an error the server may have answered, before it stopped reading.
	a, err := w.k.readHead()
	for err == nil && a.status < 200 && a.status != 101 {
		a, err = w.k.readHead()
	}
	var malformed malformedError
	switch {
	case errors.As(err, &malformed):
		return &failure{kind: KindBadStatus, err: err}
	case err != nil && sendErr != nil && !w.k.begun:
		return streamFailure(sendErr, false)
	case err != nil:
		return streamFailure(err, w.k.begun)
	case a.status != 101:
		return &failure{kind: KindBadStatus, err: fmt.Errorf("status %d to the WebSocket's handshake, want 101", a.status)}
	case a.accept != accept:
		return &failure{kind: KindWrongBody, err: malformedError(fmt.Sprintf("Sec-WebSocket-Accept %.60q", a.accept))}
	}
	if w.generation, err = w.run.handshakeGeneration(&a); err != nil {
		return &failure{kind: KindWrongBody, err: err}
	}
	// The reader waits without a limit: each message has its own.
	if err := w.k.c.SetReadDeadline(time.Time{}); err != nil {
		return streamFailure(err, false)
	}
	return nil
}

// handshakeGeneration is the one that the handshake's answer tells, 0 where it tells none.
func (r *Run) handshakeGeneration(a *response) (int, error) {
	if name := r.load.GenerationHeader; name != "" {
		n, err := strconv.Atoi(a.proxy)
		if err != nil {
			return 0, fmt.Errorf("header %s: %w", name, err)
		}
		return n, nil
	}
	if n, err := strconv.Atoi(a.generation); err == nil && n > 0 {
		return n, nil
	}
	return 0, nil
}

// verifyMessage checks the answer to a message: it is the message itself, as an echo sends it, or what the contract answers
// to a datagram, which also tells the generation. A server without the contract may put the number among other words.
func (r *Run) verifyMessage(m *wsMessage, text []byte) (generation int, err error) {
	plain := r.load.Plain != nil
	if bytes.Equal(text, m.sent) || plain && bytes.Contains(text, bytes.TrimSpace(m.sent)) {
		return 0, nil
	}
	number, generation, err := VerifyDatagram(text)
	if err != nil && plain {
		if number, generation, err = plainDatagram(text); err != nil {
			return 0, fmt.Errorf("%.40q: %w", text, errNoNumber)
		}
		if bytes.Contains(text, []byte(" crc32=")) {
			return 0, fmt.Errorf("message of %d bytes is not as it was sent", len(text))
		}
	}
	switch {
	case err != nil:
		return 0, err
	case number != m.number:
		return 0, fmt.Errorf("message answers number %d, sent %d", number, m.number)
	case r.load.GenerationHeader != "":
		return 0, nil // the handshake's counts
	}
	return generation, nil
}
