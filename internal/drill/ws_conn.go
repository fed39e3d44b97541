package drill

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"
)

// wsConn is one WebSocket. A reader of its own takes in what comes at any time: a close frame, which has to be answered at
// once, and the end of the connection, which no message need wait for to be noticed.
type wsConn struct {
	run        *Run
	k          *client // its reading half is the reader's
	generation int     // that answered the handshake; 0 where it did not tell
	done       chan struct{}

	wmu sync.Mutex // held while a frame is written
	out []byte

	mu      sync.Mutex // guards what follows; taken after wmu
	pending *wsMessage // sent and not answered
	over    bool       // no further message may be sent
	ours    bool       // this side ends it: how it ends says nothing of the server
	carried bool       // a message has been answered
	last    []byte     // the last answer
}

// wsMessage is one message under way. Its other fields are the reader's until done is closed.
type wsMessage struct {
	number     uint64
	sent       []byte
	reused     bool
	generation int
	fail       *failure
	end        time.Time
	done       chan struct{}
}

// send sends a message. false: the connection is over, and nothing was sent.
func (w *wsConn) send(number uint64, text []byte, deadline time.Time) (*wsMessage, bool) {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	w.mu.Lock()
	if w.over {
		w.mu.Unlock()
		return nil, false
	}
	m := &wsMessage{number: number, sent: text, reused: w.carried, done: make(chan struct{})}
	w.pending = m
	w.mu.Unlock()
	if err := w.writeLocked(wsText, text, deadline); err != nil {
		// The server may have said why before: what has come is still read. It fails on a closed connection only.
		_ = w.k.c.SetReadDeadline(time.Now().Add(lingerTime))
	}
	return m, true
}

func (w *wsConn) writeLocked(opcode byte, payload []byte, deadline time.Time) error {
	w.out = appendFrame(w.out[:0], opcode, payload)
	if err := w.k.c.SetWriteDeadline(deadline); err != nil {
		return err
	}
	_, err := w.k.c.Write(w.out)
	return err
}

// control writes a control frame.
func (w *wsConn) control(opcode byte, payload []byte) {
	w.wmu.Lock()
	defer w.wmu.Unlock()
	// Where it fails the connection is over, and the reader says so.
	_ = w.writeLocked(opcode, payload, time.Now().Add(lingerTime))
}

// read takes in messages until the connection ends. done is called at last.
func (w *wsConn) read(done func()) {
	defer done()
	defer close(w.done)
	defer w.k.close()
	var message, scratch []byte
	inside := false // a message's first part has come
	for {
		opcode, final, payload, err := w.k.readFrame(scratch[:0])
		scratch = payload
		if err != nil {
			w.broken(err, inside)
			return
		}
		switch opcode {
		case wsText, wsBinary, wsContinuation:
			if inside != (opcode == wsContinuation) || len(message)+len(payload) > maxBody {
				w.broken(malformedError("message in parts that do not fit, or too long"), inside)
				return
			}
			message, inside = append(message, payload...), !final
			if final {
				w.answer(message)
				message = message[:0]
			}
		case wsPing:
			w.control(wsPong, payload)
		case wsPong:
		case wsClose:
			w.closed(payload)
			return
		default:
			w.broken(malformedError(fmt.Sprintf("opcode %d", opcode)), inside)
			return
		}
	}
}

// answer takes in one whole message.
func (w *wsConn) answer(text []byte) {
	now := time.Now()
	w.mu.Lock()
	m := w.pending
	if m == nil {
		twice := string(text) == string(w.last)
		w.mu.Unlock()
		w.unasked(text, twice, now)
		return
	}
	defer w.mu.Unlock()
	generation, err := w.run.verifyMessage(m, text)
	if errors.Is(err, errNoNumber) && w.run.load.Plain != nil {
		return // a greeting, or something that the server tells everybody
	}
	m.generation = generation
	if m.generation == 0 {
		m.generation = w.generation
	}
	if err != nil {
		m.fail = &failure{kind: KindWrongBody, err: err}
	}
	w.carried, w.last = true, append(w.last[:0], text...)
	w.finishLocked(m, now)
}

// finishLocked hands the pending message back to its sender.
func (w *wsConn) finishLocked(m *wsMessage, now time.Time) {
	m.end = now
	w.pending = nil
	close(m.done)
}

// unasked counts a message that nobody waits for.
func (w *wsConn) unasked(text []byte, twice bool, now time.Time) {
	switch {
	case twice:
		w.run.extraFailure(now, w.carried, &failure{kind: KindDuplicate, err: errors.New("message answered a second time")})
	case w.run.load.Plain == nil:
		w.run.extraFailure(now, w.carried, &failure{kind: KindWrongBody, err: fmt.Errorf("message that answers nothing: %.40q", text)})
	}
}

// closed is the server's close frame: it is answered (RFC 6455, 5.5.1), and then the server is the first to close. After it
// the server sends nothing more, so that what is not answered will not be.
func (w *wsConn) closed(payload []byte) {
	now := time.Now()
	code, reason, err := closeCode(payload)
	if err != nil {
		w.broken(err, false)
		return
	}
	w.wmu.Lock() // a message is sent wholly before this, or not at all
	w.mu.Lock()
	m, ours := w.pending, w.ours
	w.over = true
	f := &failure{kind: KindClosed, err: fmt.Errorf("closed with code %d %q", code, reason)}
	if m != nil {
		f.err = fmt.Errorf("%w before the answer", f.err)
		m.fail = f
		w.finishLocked(m, now)
	}
	w.mu.Unlock()
	if !ours {
		// Where it fails the server has closed already.
		_ = w.writeLocked(wsClose, payload, now.Add(lingerTime))
	}
	w.wmu.Unlock()
	if !ours {
		w.run.book.closeCode(code)
		if m == nil && !politeClose(code) {
			w.run.extraFailure(now, w.carried, f)
		}
		_, _ = w.k.lingerEOF()
	}
}

// broken is an end without a close frame, code 1006 as programs are told. Each is a loss: of the message that waits, or of
// the connection.
func (w *wsConn) broken(err error, inside bool) {
	now := time.Now()
	w.mu.Lock()
	m, ours := w.pending, w.ours
	w.over = true
	f := streamFailure(err, w.k.begun || inside)
	if _, ok := errors.AsType[malformedError](err); ok {
		f.kind = KindWrongBody
	}
	if m != nil {
		m.fail = f
		w.finishLocked(m, now)
	}
	w.mu.Unlock()
	if ours {
		return
	}
	w.run.book.closeCode(wsAbnormal)
	if m == nil {
		w.run.extraFailure(now, w.carried, f)
	}
}

// abandon ends the connection after a failure, where it has not ended by itself; the reader closes it.
func (w *wsConn) abandon() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		return
	}
	w.over, w.ours = true, true
	if m := w.pending; m != nil {
		m.fail = &failure{kind: KindTimeout, err: fmt.Errorf("message %d was not answered in time", m.number)}
		w.finishLocked(m, time.Now())
	}
	// It fails on a closed connection only, where the reader has ended.
	_ = w.k.c.SetReadDeadline(time.Now())
}

// leave closes the connection from this side, as a client does that has what it wanted.
func (w *wsConn) leave() {
	w.mu.Lock()
	over := w.over
	w.over, w.ours = true, true
	w.mu.Unlock()
	if !over {
		w.control(wsClose, binary.BigEndian.AppendUint16(nil, wsNormal))
		// It fails on a closed connection only, where the reader has ended.
		_ = w.k.c.SetReadDeadline(time.Now().Add(lingerTime))
	}
	<-w.done
}
