package drain_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/handoverd/handover/drain"
	"github.com/handoverd/handover/internal/until"
)

var errNotice = errors.New("short notice")

// The times of these tests: a window of 20 s in a drain of 2 minutes, which after 5
// s has 6 s left. So a quarter is told as planned, and the rest within 3 s.
const (
	planned  = 20 * time.Second
	noticeAt = 5 * time.Second
	noticed  = 6 * time.Second
)

// shortened is a context as a supervisor gives it, and is shortened in the test.
func shortened(t *testing.T) (ctx context.Context, cancel func()) {
	c := until.New(t.Context(), time.Now().Add(2*time.Minute), errNotice)
	notice := time.AfterFunc(noticeAt, func() { c.Shorten(time.Now().Add(noticed)) })
	derived, release := context.WithCancel(c) // as programs do it
	return derived, func() { notice.Stop(); release(); c.Cancel(context.Canceled) }
}

// moments are when something was told.
type moments struct {
	begin time.Time
	mu    sync.Mutex
	at    []time.Duration
}

func (m *moments) note() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = append(m.at, time.Since(m.begin))
}

// want checks that n were told by the plans before and after the notice, each step
// being seen after slack at the latest.
func (m *moments) want(t *testing.T, n int, slack time.Duration) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(m.at)
	if len(m.at) != n {
		t.Fatalf("%d were told, want %d", len(m.at), n)
	}
	const half = noticed / 2
	before, _ := slices.BinarySearch(m.at, noticeAt)
	if before < n/16 || before > n/2 {
		t.Errorf("%d of %d were told before the notice", before, n)
	}
	rest := m.at[before:]
	if last := rest[len(rest)-1]; last > noticeAt+half+slack || last < noticeAt+half/2 {
		t.Errorf("the last one was told after %v", last)
	}
	early, _ := slices.BinarySearch(rest, noticeAt+half/2)
	if early < len(rest)/5 || early > len(rest)*4/5 {
		t.Errorf("%d of %d were told in the first half of what was left: they were to be spread", early, len(rest))
	}
}

func TestStreamsPlanAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		s := &drain.Streams{Window: planned}
		m := moments{begin: time.Now()}
		add := func() {
			added := make(chan func(), 1)
			done, err := s.Add("ws", func(drain.Reason) { m.note(); (<-added)() }, nil)
			if err != nil {
				t.Error(err)
			}
			added <- done
		}
		for range n {
			add()
		}
		// One that comes after the notice has its place in what is left.
		time.AfterFunc(noticeAt+time.Second, add)
		ctx, cancel := shortened(t)
		defer cancel()
		if err := drain.All(ctx, s); err != nil {
			t.Errorf("All = %v", err)
		}
		m.want(t, n+1, 0)
	})
}

func TestKeepAlivePlansAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, pause = 120, 250 * time.Millisecond
		l := newPipeListener()
		s := drain.HTTP(&http.Server{Handler: http.HandlerFunc(hello)})
		s.Window = planned
		go s.Serve(l)
		m := moments{begin: time.Now()}
		var wg sync.WaitGroup
		for range n {
			c := dialPipe(t, l)
			wg.Go(func() {
				for closes := false; !closes; time.Sleep(pause) {
					c.send(get)
					_, closes = c.answer()
				}
				m.note()
			})
		}
		synctest.Wait()
		ctx, cancel := shortened(t)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown = %v", err)
		}
		wg.Wait()
		m.want(t, n, 2*pause)
	})
}

func TestGoAwaysPlanAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 160
		l := newPipeListener()
		s := drain.HTTP(&http.Server{Handler: http.HandlerFunc(hello), Protocols: h2c()})
		s.Window = planned
		go s.Serve(l)
		m := moments{begin: time.Now()}
		var wg sync.WaitGroup
		for range n {
			c := frameClient{t, l.dial()}
			wg.Go(func() {
				defer c.Close()
				go io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"+
					"\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01x")
				for c.next().Type != 0x7 {
				}
				m.note()
			})
		}
		synctest.Wait()
		ctx, cancel := shortened(t)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown = %v", err)
		}
		wg.Wait()
		m.want(t, n, 0)
	})
}

// The contexts of requests and jobs end before the new deadline, in time to answer
// and to give back.
func TestContextsEndBeforeTheNewDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := drain.HTTP(&http.Server{Handler: slowMux()})
		go s.Serve(l)
		c := dialPipe(t, l)
		c.send("GET /slow/7 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		returned := make(chan time.Time, 1)
		w := &drain.Workers{Claim: func(context.Context) (*drain.Work, error) {
			return &drain.Work{
				Name:   "long",
				Run:    func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
				Return: func(context.Context) error { returned <- time.Now(); return nil },
			}, nil
		}}
		go w.Run()
		synctest.Wait()
		begin := time.Now()
		ctx, cancel := shortened(t)
		defer cancel()
		done := make(chan error)
		go func() { done <- drain.All(ctx, s, w) }()
		body, _ := c.answer()
		if took := time.Since(begin); took != noticeAt+noticed-time.Second || body != drain.ErrEnding.Error() {
			t.Errorf("got %q after %v", body, took)
		}
		if took := (<-returned).Sub(begin); took != noticeAt+noticed-time.Second {
			t.Errorf("the job was given back after %v", took)
		}
		if err := <-done; err != nil {
			t.Errorf("All = %v", err)
		}
	})
}

// A hasty is a supervisor that gives short notice.
type hasty struct {
	*supervisor
	ctx *until.Context
}

func (s *hasty) DrainContext(context.Context) (context.Context, context.CancelFunc) {
	return s.ctx, func() { s.ctx.Cancel(context.Canceled) }
}

// A Sequence keeps the closers' share of a deadline that was shortened, in the drain
// and when it is closing already.
func TestSequenceKeepsTheReserveAtShortNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{begin: time.Now()}
		super := &hasty{newSupervisor(0), until.New(t.Context(), time.Now().Add(15*time.Minute), errNotice)}
		s := &drain.Sequence{Supervisor: super, OnPhase: r.onPhase}
		s.Add("slow", &slow{takes: time.Hour})
		hang := make(chan struct{})
		defer close(hang)
		s.OnClose("hangs", func(context.Context) error { <-hang; return nil })
		time.AfterFunc(time.Minute, func() { super.ctx.Shorten(time.Now().Add(10 * time.Second)) })
		time.AfterFunc(68500*time.Millisecond, func() { super.ctx.Shorten(time.Now().Add(500 * time.Millisecond)) })
		close(super.draining)
		err := s.Run(t.Context())
		if cut, ok := errors.AsType[*drain.CutError](err); !ok || len(cut.Stragglers) != 2 || !errors.Is(err, drain.ErrDeadline) {
			t.Errorf("Run = %v", err)
		}
		r.want(t, "0s serving → draining: handover", "1m8s draining → closing: drain: the deadline is reached", "1m9.1s closing → done: cut")
	})
}
