package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// swarm is clients that each do one thing after the other, on their own.
type swarm struct {
	ctx      context.Context // ends everything
	stopping chan struct{}
	wg       sync.WaitGroup
	close    func()

	mu    sync.Mutex
	begun int
	tally // of what has ended
}

// A visit is one request or stream, from its begin to its end. It returns its loss. Where quit is closed
// a visit without an end of its own leaves; counts is false then, because it says nothing of the server.
type visit func(ctx context.Context, quit <-chan struct{}, n int) (lost loss, counts bool)

// A loss is its kind, "" for none, and what it was.
type loss struct {
	kind string
	err  error // may be nil
}

// none is no loss.
var none loss

// startSwarm starts n clients, whose begins are spread over a time. finish waits for them.
func startSwarm(ctx context.Context, n int, spread time.Duration, one visit) *swarm {
	s := &swarm{ctx: ctx, stopping: make(chan struct{}), close: func() {}, tally: newTally()}
	s.wg.Add(n)
	for i := range n {
		go s.visitor(spread*time.Duration(i)/time.Duration(n), one)
	}
	return s
}

// afterLoss is waited after a loss, so that a server that is not there is not asked without a pause.
const afterLoss = 20 * time.Millisecond

// visitor is one client. finish waits for it.
func (s *swarm) visitor(first time.Duration, one visit) {
	defer s.wg.Done()
	wait := first
	for s.sleep(wait) {
		wait = 0
		n := s.begin()
		lost, counts := one(s.ctx, s.stopping, n)
		s.mu.Lock()
		if counts {
			s.Total++
		}
		if counts && lost.kind != "" {
			s.lose(lost.kind)
			if lost.kind == string(drill.KindOther) {
				s.sample(lost.err)
			}
			wait = afterLoss
		}
		s.mu.Unlock()
	}
}

// sleep reports false when it is time to go.
func (s *swarm) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-s.stopping:
		return false
	case <-timer.C:
	}
	select {
	case <-s.stopping:
		return false
	default:
		return true
	}
}

// begin gives out the numbers.
func (s *swarm) begin() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	return s.begun
}

func (s *swarm) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Total
}

func (s *swarm) finish() tally {
	close(s.stopping)
	s.wg.Wait()
	s.close()
	return s.tally
}

// lossOf names an error of a connection as the load generator does; begun says whether an answer had begun.
func lossOf(err error, begun bool) loss { return loss{kindOf(err, begun), err} }

func kindOf(err error, begun bool) string {
	var timeout net.Error
	reset := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	// net/http closes a connection on which it still writes when it has read its end.
	ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return string(drill.KindRefused)
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return string(drill.KindTimeout)
	case begun && (ended || reset):
		return string(drill.KindTruncated)
	case ended:
		return string(drill.KindEOF)
	case reset:
		return string(drill.KindReset)
	}
	// net/http has no type for this one: what was open, and told that it would be finished, was cut.
	if strings.Contains(err.Error(), "server sent GOAWAY and closed the connection") {
		return "cut after GOAWAY"
	}
	return string(drill.KindOther)
}

// freshClient has a connection for each request and repeats nothing.
func freshClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}
}
