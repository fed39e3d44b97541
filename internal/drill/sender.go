package drill

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// afterFailure is waited by a closed-loop client after a failure: without it clients of a closed port would take the
// processor from the server that is about to open it.
const afterFailure = time.Millisecond

// sender is one client: a goroutine with at most one connection and at most one request at a time.
type sender struct {
	run   *Run
	index int
	conn  *client // kept between requests, or nil
	ws    *wsConn // ModeWebSocket: the same
	slot  *h2slot // of the connection that it shares over HTTP/2, or nil

	request, sent, body []byte // scratch
}

// openLoop sends what is due, and returns after all of it when the run stops.
func (s *sender) openLoop() {
	defer s.run.clients.Done()
	defer s.leave()
	for due := range s.run.work {
		if time.Since(due) > s.run.load.Timeout {
			s.run.book.fault(faultUnsent)
			continue
		}
		s.one(due)
	}
}

// closedLoop sends one request after the other until the run stops.
func (s *sender) closedLoop() {
	defer s.run.clients.Done()
	defer s.leave()
	pause := s.run.load.Pause
	// Spread over the pause, so that clients that pause do not come in one crowd.
	if !s.sleep(pause * time.Duration(s.index) / time.Duration(s.run.load.Clients)) {
		return
	}
	for {
		if s.run.taken.Add(1) > int64(s.run.load.Requests) {
			s.run.halt()
			return
		}
		wait := pause
		if !s.one(time.Time{}) {
			wait = max(wait, afterFailure)
		}
		if !s.sleep(wait) {
			return
		}
	}
}

// sleep reports false when the run stops.
func (s *sender) sleep(d time.Duration) bool {
	if d <= 0 {
		select {
		case <-s.run.stopping:
			return false
		default:
			return true
		}
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.run.stopping:
		return false
	}
}

// drop closes the kept connection, if any, after a failure. One that is shared goes on.
func (s *sender) drop() {
	if s.conn != nil {
		s.conn.close()
		s.conn = nil
	}
	if s.ws != nil {
		s.ws.abandon()
		s.ws = nil
	}
}

// leave ends what the client has, after its last request.
func (s *sender) leave() {
	if s.ws != nil {
		s.ws.leave()
		s.ws = nil
	}
	if s.slot != nil {
		s.slot.leave()
	}
	s.drop()
}

// one sends one request, counts it, and reports whether it was answered. due is zero in the closed loop.
func (s *sender) one(due time.Time) bool {
	o := outcome{due: due, number: s.run.numbers.Add(1)}
	o.start = s.run.book.begin(due)
	if due.IsZero() {
		o.due = o.start
	}
	o.fail = s.do(&o)
	if o.fail != nil {
		if o.end.IsZero() {
			o.end = time.Now()
		}
		s.drop()
	}
	s.run.book.end(o)
	return o.fail == nil
}

// do opens a connection if there is none and has one exchange on it.
func (s *sender) do(o *outcome) *failure {
	deadline := o.start.Add(s.run.load.Timeout)
	switch s.run.load.Mode {
	case ModeWebSocket:
		return s.message(o, deadline)
	case ModeH2C, ModeH2:
		return s.stream(o, deadline)
	}
	if s.conn == nil {
		c, f := s.run.dialer.open(deadline)
		if f != nil {
			return f
		}
		s.conn = newClient(c, s.run.load.GenerationHeader)
	}
	if s.run.load.Mode == ModeTCP {
		o.end = time.Now()
		s.drop()
		return nil
	}
	o.reused = s.conn.reused
	q := s.run.load.query(o.number)
	if plain := s.run.load.Plain; plain != nil {
		s.request, s.sent = plain.appendRequest(s.request[:0], s.sent, &s.run.load, o.number)
	} else {
		s.request, s.sent = q.AppendRequest(s.request[:0], s.sent)
	}
	a, f := s.conn.exchange(s.request, deadline, s.body[:0])
	o.end = time.Now()
	s.body = a.body
	if f != nil {
		return s.judgeStatus(a, f)
	}
	if f := s.verify(q, a, o); f != nil {
		return f
	}
	return s.settle(a, o)
}

// judgeStatus is the failure of an answer that did not come wholly: an unexpected status is what is wrong, also when the
// rest of that answer is cut.
func (s *sender) judgeStatus(a response, f *failure) *failure {
	if a.status != 0 && !s.run.load.accepts(a.status) {
		f.kind, f.fault = KindBadStatus, ""
	}
	return f
}

// verify checks an answer that came wholly.
func (s *sender) verify(q Query, a response, o *outcome) *failure {
	if s.run.load.Plain != nil {
		generation, f := s.run.verifyPlain(&a)
		o.generation = generation
		return f
	}
	generation, err := q.Verify(Answer{Status: a.status, Generation: a.generation, Number: a.number, Body: a.body}, s.sent)
	if name := s.run.load.GenerationHeader; err == nil && name != "" {
		if generation, err = strconv.Atoi(a.proxy); err != nil {
			err = fmt.Errorf("header %s: %w", name, err)
		}
	}
	o.generation = generation
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errStatus):
		return &failure{kind: KindBadStatus, err: err}
	case a.untilEOF:
		// Without a length the checksum is all that tells a cut.
		return &failure{kind: KindTruncated, err: err}
	}
	return &failure{kind: KindWrongBody, err: err}
}

// settle keeps the connection, or closes it after the server.
func (s *sender) settle(a response, o *outcome) *failure {
	if a.keep && (s.run.load.Plain == nil || s.run.load.Mode != ModeFresh) {
		s.conn.reused = true
		return nil
	}
	defer s.drop()
	if a.untilEOF || a.keep {
		// Kept: a server that was asked to close and does not would be waited for in vain.
		return nil
	}
	reset, err := s.conn.lingerEOF()
	if err != nil {
		return &failure{kind: KindWrongBody, err: err}
	}
	o.lateReset = reset
	return nil
}

// query is the request that this load sends under that number.
func (l *Load) query(number uint64) Query {
	q := Query{Resource: Fast, Number: number, Host: l.Host, Close: l.Mode == ModeFresh}
	switch {
	case l.Mode == ModePost:
		q.Resource, q.Payload = Upload, l.Payload
	case l.Mode == ModeStream:
		q.Resource = Stream
	case l.Delay+l.Spread > 0:
		q.Resource = Slow
	}
	// Eleven steps over the spread: prime to the usual numbers of clients, so that each client has all of them.
	q.Wait = l.Delay + l.Spread*time.Duration(number%11)/10
	return q
}

// accepts says whether an answer may have that status.
func (l *Load) accepts(status int) bool {
	if l.Plain != nil {
		return l.Plain.accepts(status)
	}
	return status == 200
}
