package drill

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// secondAnswers is how long the sockets are read after the last datagram's answer, for answers that come twice.
const secondAnswers = 200 * time.Millisecond

// maxPast bounds the datagrams of one socket of which it is known that they were answered, or given up: a run may last for hours.
// An answer to an older one is like an answer to none.
const maxPast = 1 << 16

// datagrams is one socket of ModeUDP. It is not connected: a connected one learns of ICMP errors, but not for which of its
// datagrams, so what is refused and what is lost are both counted as unanswered (KindTimeout).
type datagrams struct {
	run  *Run
	conn *net.UDPConn

	mu      sync.Mutex
	pending map[uint64]*datagram // not answered yet
	order   []*datagram          // in the order sent; the first to time out is first
	past    map[uint64]bool      // true: answered; false: timed out; the latest maxPast
	oldest  []uint64             // of them, in the order settled
	last    bool                 // nothing more is sent
	wake    time.Time            // the read deadline that is set
}

type datagram struct {
	number     uint64
	due, start time.Time
}

// startDatagrams opens the sockets, starts their readers, and one pacer that sends through all of them in turn.
func (r *Run) startDatagrams() error {
	var all []*datagrams
	for range r.load.Clients {
		src := r.dialer.source()
		var local *net.UDPAddr
		if src.IsValid() {
			local = net.UDPAddrFromAddrPort(src)
		}
		c, err := net.ListenUDP(r.dialer.target.network, local)
		if err != nil {
			for _, d := range all {
				d.conn.Close()
			}
			return fmt.Errorf("datagram socket: %w", err)
		}
		all = append(all, &datagrams{run: r, conn: c, pending: map[uint64]*datagram{}, past: map[uint64]bool{}})
	}
	next := 0
	var scratch []byte
	send := func(due time.Time) {
		scratch = all[next].send(due, scratch)
		next = (next + 1) % len(all)
	}
	// All waited for by watch, through clients.
	r.clients.Add(1 + len(all))
	for _, d := range all {
		go d.read()
	}
	go r.pace(send, func() {
		for _, d := range all {
			d.finish()
		}
	})
	return nil
}

// send sends one datagram. scratch is returned for the next call.
func (d *datagrams) send(due time.Time, scratch []byte) []byte {
	g := &datagram{number: d.run.numbers.Add(1), due: due}
	scratch = AppendDatagram(scratch[:0], g.number, 0)
	d.mu.Lock()
	g.start = d.run.book.begin(due)
	d.pending[g.number] = g
	d.order = append(d.order, g)
	d.rearm()
	d.mu.Unlock()
	// Not under the lock: the reader must be able to empty the socket while this waits for room.
	if _, err := d.conn.WriteToUDPAddrPort(scratch, d.run.dialer.target.addr); err != nil {
		d.fail(g, streamFailure(err, false))
	}
	return scratch
}

// finish says that nothing more is sent.
func (d *datagrams) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = true
	d.rearm()
}

// rearm sets the read deadline to when the oldest datagram times out, or, after the last one is settled, to the end of the
// wait for second answers. Called with the lock held.
func (d *datagrams) rearm() {
	at := time.Time{}
	switch {
	case len(d.order) > 0:
		at = d.order[0].start.Add(d.run.load.Timeout)
	case d.last:
		at = time.Now().Add(secondAnswers)
	}
	if len(d.order) > 0 && at.Equal(d.wake) {
		return
	}
	d.wake = at
	// It fails only on a closed socket, and only read closes it.
	_ = d.conn.SetReadDeadline(at)
}

// read counts answers until the last datagram is settled and no second answer came any more.
func (d *datagrams) read() {
	defer d.run.clients.Done()
	defer d.conn.Close()
	buf := make([]byte, 2048)
	for {
		n, _, err := d.conn.ReadFromUDPAddrPort(buf)
		now := time.Now()
		switch {
		case err == nil:
			d.answer(buf[:n], now)
		case isTimeout(err):
			if d.expire(now) {
				return
			}
		default:
			d.run.book.fault("udp receive: " + err.Error())
		}
	}
}

// answer counts one datagram that came.
func (d *datagrams) answer(p []byte, now time.Time) {
	verify := VerifyDatagram
	if d.run.load.Plain != nil {
		verify = plainDatagram
	}
	number, generation, err := verify(p)
	d.mu.Lock()
	defer d.mu.Unlock()
	g, waiting := d.pending[number]
	answered, known := d.past[number]
	o := outcome{number: number, start: now, due: now, end: now, generation: generation}
	switch {
	case err != nil:
		// Whose answer it is cannot be believed: the datagram it belongs to stays unanswered as well.
		o.fail = &failure{kind: KindWrongBody, err: err}
		d.run.book.extra(o)
	case waiting:
		o.start, o.due = g.start, g.due
		d.settle(g, true)
		d.run.book.end(o)
	case known && answered:
		o.fail = &failure{kind: KindDuplicate, err: fmt.Errorf("answered again, by generation %d", generation)}
		d.run.book.extra(o)
	case known:
		d.past[number] = true
		d.run.book.lateAnswer()
	default:
		o.fail = &failure{kind: KindWrongBody, err: fmt.Errorf("answer to a datagram that was not sent from here")}
		d.run.book.extra(o)
	}
}

// settle takes a datagram off the pending ones. Called with the lock held.
func (d *datagrams) settle(g *datagram, answered bool) {
	delete(d.pending, g.number)
	d.past[g.number] = answered
	if d.oldest = append(d.oldest, g.number); len(d.oldest) > maxPast {
		delete(d.past, d.oldest[0])
		d.oldest = d.oldest[1:]
	}
	for len(d.order) > 0 && d.pending[d.order[0].number] == nil {
		d.order = d.order[1:]
	}
	d.rearm()
}

// fail counts a datagram that could not be sent.
func (d *datagrams) fail(g *datagram, f *failure) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending[g.number] == nil {
		return
	}
	d.settle(g, false)
	d.run.book.end(outcome{number: g.number, due: g.due, start: g.start, end: time.Now(), fail: f})
}

// expire counts the datagrams whose time is over, and reports whether the socket has done its work.
func (d *datagrams) expire(now time.Time) (done bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.order) == 0 && d.last && !now.Before(d.wake) {
		return true
	}
	for len(d.order) > 0 && !now.Before(d.order[0].start.Add(d.run.load.Timeout)) {
		g := d.order[0]
		d.settle(g, false)
		err := fmt.Errorf("no answer in %v", d.run.load.Timeout)
		d.run.book.end(outcome{number: g.number, due: g.due, start: g.start, end: now, fail: &failure{kind: KindTimeout, err: err}})
	}
	if len(d.order) == 0 && !d.last {
		d.rearm()
	}
	return false
}
