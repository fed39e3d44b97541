package drill

import (
	"fmt"
	"time"
)

// Probe sends one request for the contract's page /fast to the load's address and says whether the answer keeps the contract.
// It asks as ModeFresh does, or over HTTP/2 where that is the load's mode. An error says that no whole answer came at all.
func Probe(l Load) (contract bool, err error) {
	if !l.overHTTP2() {
		l.Mode = ModeFresh
	}
	l, t, err := l.withDefaults()
	if err != nil {
		return false, fmt.Errorf("probe: %w", err)
	}
	deadline := time.Now().Add(l.Timeout)
	d := dialer{target: t, tls: l.tlsConfig()}
	const number = 1
	q := l.query(number)
	ask := d.askHTTP1
	if l.overHTTP2() {
		ask = d.askHTTP2
	}
	a, sent, f := ask(&l, q, deadline)
	if f != nil {
		return false, fmt.Errorf("probe of %s: %s: %w", l.Address, f.kind, f.err)
	}
	_, err = q.Verify(Answer{Status: a.status, Generation: a.generation, Number: a.number, Body: a.body}, sent)
	return err == nil, nil
}

// askHTTP1 has one exchange on a connection of its own.
func (d *dialer) askHTTP1(_ *Load, q Query, deadline time.Time) (a response, sent []byte, f *failure) {
	c, f := d.open(deadline)
	if f != nil {
		return a, nil, f
	}
	k := newClient(c, "")
	defer k.close()
	request, sent := q.AppendRequest(nil, nil)
	a, f = k.exchange(request, deadline, nil)
	return a, sent, f
}

// askHTTP2 does the same in the only stream of a connection. It waits for the connection's reader.
func (d *dialer) askHTTP2(l *Load, q Query, deadline time.Time) (a response, sent []byte, f *failure) {
	c, f := d.open(deadline)
	if f != nil {
		return a, nil, f
	}
	h, f := newH2conn(c, "", 1, deadline)
	if f != nil {
		return a, nil, f
	}
	over := make(chan struct{})
	go h.read(func() { close(over) })
	defer func() { h.retire(); <-over }()
	s, err := h.open(l.h2get(q), deadline)
	if err != nil {
		return a, nil, streamFailure(err, false)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-s.done:
	case <-timer.C:
		h.cancel(s)
		<-s.done
	}
	return s.a, nil, s.fail
}
