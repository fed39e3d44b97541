package drill

import (
	"errors"
	"sync"
	"time"
)

// h2slot is a place for one HTTP/2 connection, which Load.Streams senders share. A connection that takes no new streams is
// replaced; it ends with its last stream.
type h2slot struct {
	run *Run

	mu      sync.Mutex // guards conn, and is held while one connects for all
	conn    *h2conn
	senders int // that have not left
}

// get is the connection of the slot, opened where there is none that takes streams.
func (s *h2slot) get(deadline time.Time) (*h2conn, *failure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		select {
		case <-s.conn.gone:
			s.conn = nil
		default:
			return s.conn, nil
		}
	}
	c, f := s.run.dialer.open(deadline)
	if f != nil {
		return nil, f
	}
	h, f := newH2conn(c, s.run.load.GenerationHeader, s.run.load.Streams, deadline)
	if f != nil {
		return nil, f
	}
	s.conn = h
	s.run.clients.Add(1)
	// Waited for by watch, through clients; the sender that is here counts there still.
	go h.read(s.run.clients.Done)
	return h, nil
}

// leave is called by each sender at its end; the last one retires the connection.
func (s *h2slot) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.senders--; s.senders == 0 && s.conn != nil {
		s.conn.retire()
	}
}

// stream has one exchange in a stream of the slot's connection.
//
// A request that the server refused, by REFUSED_STREAM or by a GOAWAY with a lower last stream, was not processed, and the
// server has said so: every HTTP/2 client sends it again on a new connection (RFC 9113, 6.8 and 8.7), whatever its method,
// and its user notices the time only. So does this one, once; it is counted, and latency counts from when the request was
// due first. Refused a second time it is lost. Nothing else is sent again.
func (s *sender) stream(o *outcome, deadline time.Time) *failure {
	q := s.run.load.query(o.number)
	get := s.run.load.h2get(q)
	for moves := 0; ; moves++ {
		standBack(moves, deadline)
		h, f := s.slot.get(deadline)
		if f != nil {
			return f
		}
		st, err := h.open(get, deadline)
		switch {
		case errors.Is(err, errRetired):
			continue // nothing was sent
		case err != nil:
			return streamFailure(err, false)
		}
		timer := time.NewTimer(time.Until(deadline))
		select {
		case <-st.done:
		case <-timer.C:
			h.cancel(st)
			<-st.done
		}
		timer.Stop()
		o.reused, o.end = st.reused, st.end
		if st.refused {
			h.retire()
			if !o.resent {
				o.resent = true
				s.run.book.refusedStream()
				continue
			}
		}
		if st.fail != nil {
			return s.judgeStatus(st.a, st.fail)
		}
		return s.verify(q, st.a, o)
	}
}

// h2get is the request that this load sends for q.
func (l *Load) h2get(q Query) h2get {
	get := h2get{scheme: "http", host: l.Host, path: string(q.appendTarget(nil))}
	setDefault(&get.host, "drill")
	if l.TLS != nil {
		get.scheme = "https"
	}
	if l.Plain != nil {
		get.path = l.Plain.Path
		setDefault(&get.path, "/")
	}
	return get
}
