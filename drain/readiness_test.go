package drain_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/handoverd/handover/drain"
)

// probe asks for readiness as from an address.
func probe(s *drain.Sequence, from string) {
	r := httptest.NewRequest(http.MethodGet, "/ready", nil)
	r.RemoteAddr = from
	s.ReadyHandler().ServeHTTP(httptest.NewRecorder(), r)
}

// startProber asks every period until the lame duck phase is over, and begins
// after offset. Called inside a synctest bubble.
func startProber(t *testing.T, s *drain.Sequence, from string, offset, period time.Duration) {
	var wg sync.WaitGroup
	wg.Go(func() {
		time.Sleep(offset)
		for s.Phase() < drain.Draining {
			probe(s, from)
			time.Sleep(period)
		}
	})
	t.Cleanup(wg.Wait)
}

func TestLoops(t *testing.T) {
	const sec = time.Second
	fails := errors.New("balancer does not answer")
	tests := []struct {
		name    string
		loop    drain.Loop
		probers map[string]time.Duration // period by address
		want    drain.WaitResult
	}{
		{"timer", drain.Timer(7 * sec), nil, drain.WaitResult{By: "timer", After: 7 * sec}},
		{"no wait at all", drain.Timer(0), nil, drain.WaitResult{}},
		{
			"probes of two, the slower one decides",
			drain.ProbesSeen{Count: 3, Then: 4 * sec, Max: 60 * sec},
			map[string]time.Duration{"10.0.0.1:1": sec, "10.0.0.2:1": 5 * sec},
			drain.WaitResult{By: "probes", After: 19 * sec},
		},
		{
			"three by default, 30 s at most",
			drain.ProbesSeen{},
			map[string]time.Duration{"10.0.0.1:1": 2 * sec},
			drain.WaitResult{By: "probes", After: 6 * sec},
		},
		{"nobody probes", drain.ProbesSeen{}, nil, drain.WaitResult{By: "max", After: 30 * sec}},
		{
			"then runs into the limit",
			drain.ProbesSeen{Count: 1, Then: 8 * sec, Max: 5 * sec},
			map[string]time.Duration{"10.0.0.1:1": sec},
			drain.WaitResult{By: "max", After: 5 * sec},
		},
		{"acknowledged", drain.Acknowledged{By: func(context.Context) error {
			<-time.After(3 * sec)
			return nil
		}, Max: 20 * sec}, nil, drain.WaitResult{By: "acknowledged", After: 3 * sec}},
		{
			"not acknowledged: waits the longest",
			drain.Acknowledged{By: func(context.Context) error { return fails }, Max: 20 * sec},
			nil,
			drain.WaitResult{By: "max", After: 20 * sec, Err: fails},
		},
		{"never acknowledged, 30 s by default", drain.Acknowledged{By: func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		}}, nil, drain.WaitResult{By: "max", After: 30 * sec}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &drain.Sequence{Deadline: 2 * time.Minute, LameDuck: tt.loop}
				for from, period := range tt.probers {
					startProber(t, s, from, period/2, period)
				}
				time.Sleep(10 * sec)
				s.Begin("")
				if err := s.Run(t.Context()); err != nil {
					t.Fatal(err)
				}
				got := s.Report().LameDuck
				if tt.want.By == "max" && tt.want.Err == nil {
					got.Err = nil // the end of the context
				}
				if got.By != tt.want.By || !errors.Is(got.Err, tt.want.Err) {
					t.Errorf("ended by %q, %v; want %q, %v", got.By, got.Err, tt.want.By, tt.want.Err)
				}
				// A prober's phase shifts the end by less than its period.
				if d := got.After - tt.want.After; d > 0 || d < -5*sec || len(tt.probers) == 0 && d != 0 {
					t.Errorf("after %v, want %v", got.After, tt.want.After)
				}
			})
		})
	}
}

// A prober that has gone long ago is not waited for; one that asked lately is.
func TestProbesWithin(t *testing.T) {
	tests := []struct {
		within, silent time.Duration
		want           string
	}{
		{0, 59 * time.Second, "max"},
		{0, 61 * time.Second, "probes"},
		{10 * time.Second, 11 * time.Second, "probes"},
		{2 * time.Minute, 61 * time.Second, "max"},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			s := &drain.Sequence{Deadline: time.Minute, LameDuck: drain.ProbesSeen{Within: tt.within, Count: 1}}
			s.Add("nothing", &drain.Group{})
			probe(s, "10.0.0.9:1")
			time.Sleep(tt.silent)
			startProber(t, s, "10.0.0.1:1", 0, time.Second)
			s.Begin("")
			if err := s.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := s.Report().LameDuck.By; got != tt.want {
				t.Errorf("within %v, silent for %v: ended by %q, want %q", tt.within, tt.silent, got, tt.want)
			}
		})
	}
}

func TestProbesPer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &drain.Sequence{Deadline: time.Minute, LameDuck: drain.ProbesSeen{
			Count: 2, Per: func(r *http.Request) string { return r.RemoteAddr },
		}}
		s.Add("nothing", &drain.Group{})
		startProber(t, s, "10.0.0.1:1", time.Second, time.Second)
		startProber(t, s, "10.0.0.1:2", time.Second, 4*time.Second)
		time.Sleep(1500 * time.Millisecond)
		s.Begin("")
		if err := s.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := s.Report().LameDuck; r.By != "probes" || r.After != 7500*time.Millisecond {
			t.Errorf("%+v: two ports of one address are two probers here", r)
		}
	})
}

// The deadline cuts a lame duck that would leave no time to drain: the phase
// ends by what its loop allows, and a Budget refuses more.
func TestPropagationTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		mux := http.NewServeMux()
		mux.HandleFunc("GET /work", hello)
		server := drain.HTTP(&http.Server{Handler: mux})
		s := &drain.Sequence{Deadline: time.Minute, LameDuck: drain.Timer(20 * time.Second)}
		mux.Handle("GET /ready", s.ReadyHandler())
		s.Add("http", server)
		go server.Serve(l)
		ask := func(path string) {
			c := l.dial()
			defer c.Close()
			io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			io.Copy(io.Discard, c)
		}
		ask("/work") // before: does not count
		s.Begin("")
		done := make(chan error)
		go func() { done <- s.Run(t.Context()) }()
		time.Sleep(3 * time.Second)
		ask("/work")
		time.Sleep(4 * time.Second)
		ask("/work")
		time.Sleep(9 * time.Second)
		ask("/ready") // a probe is no client
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if r := s.Report().LameDuck; r.Arrived != 2 || r.LastArrival != 7*time.Second {
			t.Errorf("%+v, want 2 arrived, the last after 7 s", r)
		}
	})
}

// Raw TCP counts as well.
func TestPropagationTailOfAGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g drain.Group
		l := newPipeListener()
		tracked := g.Listener(l)
		go func() {
			for {
				c, err := tracked.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				c.Close()
			}
		}()
		s := &drain.Sequence{LameDuck: drain.Timer(5 * time.Second)}
		s.Add("tcp", &g)
		s.Begin("")
		time.AfterFunc(2*time.Second, func() { l.dial() })
		if err := s.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := s.Report().LameDuck; r.Arrived != 1 || r.LastArrival != 2*time.Second {
			t.Errorf("%+v", r)
		}
	})
}
