package drain_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/drain"
)

// dialPipe connects inside a synctest bubble.
func dialPipe(t *testing.T, l *pipeListener) *client {
	c := &client{t: t, conn: l.dial()}
	c.br = bufio.NewReader(c.conn)
	return c
}

// slowMux answers /slow/{id} only when its context ends, /ws by hijacking.
func slowMux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /slow/{id}", func(w http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		io.WriteString(w, context.Cause(r.Context()).Error())
	})
	mux.HandleFunc("GET /ended", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Context().Err()) })
	mux.HandleFunc("/ws", hijack)
	mux.HandleFunc("GET /{$}", hello)
	return mux
}

// Shortly before the deadline a handler is told, and can still answer; a request
// that comes after that is not told at once.
func TestRequestContextsEndBeforeTheDeadline(t *testing.T) {
	tests := []struct{ answer, limit, want time.Duration }{
		{0, 20 * time.Second, 19 * time.Second},
		{4 * time.Second, 20 * time.Second, 16 * time.Second},
		{time.Minute, 20 * time.Second, 10 * time.Second}, // at most half
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			l := newPipeListener()
			s := drain.HTTP(&http.Server{Handler: slowMux()})
			s.Answer = tt.answer
			go s.Serve(l)
			c, idle := dialPipe(t, l), dialPipe(t, l)
			c.send("GET /slow/7 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
			synctest.Wait()
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
			defer cancel()
			done := make(chan error)
			go func() { done <- s.Shutdown(ctx) }()
			body, _ := c.answer()
			if took := time.Since(begin); took != tt.want || body != drain.ErrEnding.Error() {
				t.Errorf("answer %v: got %q after %v, want after %v", tt.answer, body, took, tt.want)
			}
			idle.send("GET /ended HTTP/1.1\r\nHost: x\r\n\r\n")
			if body, closes := idle.answer(); body != "<nil>" || !closes {
				t.Errorf("the context of a late request: %q, closes %v", body, closes)
			}
			if err := <-done; err != nil {
				t.Errorf("Shutdown = %v", err)
			}
		})
	}
}

func TestStragglersAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := drain.HTTP(&http.Server{Handler: slowMux()})
		s.Answer = -1
		go s.Serve(l)
		ws := dialPipe(t, l)
		ws.send(strings.Replace(upgrade, "GET /", "GET /ws", 1))
		http.ReadResponse(ws.br, nil)
		time.Sleep(time.Second)
		c := dialPipe(t, l)
		c.send("GET /slow/7 HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		err := s.Shutdown(ctx)
		inc, ok := errors.AsType[*drain.IncompleteError](err)
		if !ok {
			t.Fatalf("Shutdown = %v", err)
		}
		want := []drain.Straggler{
			{Kind: drain.Connection, Label: "GET /ws", Age: 21 * time.Second},
			{Kind: drain.Request, Label: "GET /slow/{id}", Age: 20 * time.Second},
		}
		if d := cmp.Diff(want, inc.Stragglers); d != "" {
			t.Errorf("stragglers (-want +got):\n%s", d)
		}
		if !strings.HasSuffix(err.Error(), "connection GET /ws (21s), request GET /slow/{id} (20s)") {
			t.Errorf("error: %v", err)
		}
		s.Close()
	})
}

func TestLabel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := drain.HTTP(&http.Server{Handler: slowMux()})
		s.Answer, s.Label = -1, func(r *http.Request) string { return "mine " + r.Header.Get("Host") + r.URL.Path[:5] }
		go s.Serve(l)
		c := dialPipe(t, l)
		c.send("GET /slow/7 HTTP/1.1\r\nHost: x\r\n\r\n")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		inc, ok := errors.AsType[*drain.IncompleteError](s.Shutdown(ctx))
		if !ok || len(inc.Stragglers) != 1 || inc.Stragglers[0].Label != "mine /slow" {
			t.Errorf("%+v", inc)
		}
		s.Close()
	})
}

// Keep-alive connections are asked one after another over the window.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const conns, window = 200, 10 * time.Second
		l := newPipeListener()
		s := drain.HTTP(&http.Server{Handler: http.HandlerFunc(hello)})
		s.Window = window
		go s.Serve(l)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var seconds [11]int
		var begin time.Time
		for range conns {
			c := dialPipe(t, l)
			wg.Go(func() {
				for closes := false; !closes; {
					c.send(get)
					_, closes = c.answer()
					if !closes {
						time.Sleep(500 * time.Millisecond)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				seconds[time.Since(begin)/time.Second]++
			})
		}
		time.Sleep(1250 * time.Millisecond) // between two requests: three quarters of the first second are seen in it
		mu.Lock()
		begin = time.Now()
		mu.Unlock()
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		for i, n := range seconds[:10] {
			if n < conns/10/4 || n > 3*conns/10 {
				t.Errorf("%d connections were asked in second %d: %v", n, i, seconds)
			}
		}
	})
}

// A connection that has reached its age is asked to leave by its next response,
// and closed after its grace if it has not gone.
func TestConnectionAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := drain.HTTP(&http.Server{Handler: http.HandlerFunc(hello)})
		s.Age = drain.Age{Max: time.Hour, Jitter: -1, Grace: time.Minute}
		go s.Serve(l)
		c, silent := dialPipe(t, l), dialPipe(t, l)
		for _, one := range []*client{c, silent} {
			one.send(get)
			if _, closes := one.answer(); closes {
				t.Fatal("asked to leave when new")
			}
		}
		time.Sleep(time.Hour - time.Second)
		c.send(get)
		if _, closes := c.answer(); closes {
			t.Error("asked to leave before its age")
		}
		time.Sleep(2 * time.Second)
		c.send(get)
		if body, closes := c.answer(); body != "hello" || !closes {
			t.Errorf("got %q, closes %v", body, closes)
		}
		begin := time.Now()
		if _, err := silent.br.ReadByte(); !errors.Is(err, io.EOF) || time.Since(begin) != 59*time.Second {
			t.Errorf("a connection that says nothing: %v after %v", err, time.Since(begin))
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A hijacked connection has no next response: to cut it at its grace would be to
// cut it without a word.
func TestConnectionAgeOfHijacked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		goodbye := make(chan struct{})
		s := drain.HTTP(&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			<-goodbye
			_, _ = io.WriteString(conn, "bye")
			_ = conn.Close()
		})})
		s.Age = drain.Age{Max: time.Hour, Jitter: -1, Grace: time.Minute}
		go s.Serve(l)
		young, old := dialPipe(t, l), dialPipe(t, l)
		young.send(get) // hijacked before its age
		time.Sleep(time.Hour + time.Second)
		old.send(get) // and between age and grace
		time.Sleep(24 * time.Hour)
		close(goodbye)
		for _, c := range []*client{young, old} {
			if b, err := io.ReadAll(c.br); string(b) != "bye" || err != nil {
				t.Errorf("got %q, %v", b, err)
			}
		}
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// On HTTP/2 an aged connection is told at once, with a GOAWAY.
func TestConnectionAgeHTTP2(t *testing.T) {
	r := newRigOf(t, &http.Server{Handler: http.HandlerFunc(hello), Protocols: h2c()}, func(s *drain.Server) {
		s.Age = drain.Age{Max: 200 * time.Millisecond}
	})
	c := r.dialFrames()
	if d := cmp.Diff(goAway(1<<31-1), c.next()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	c.Close()
}

// A metrics keeps what it is told.
type metrics struct {
	mu      sync.Mutex
	flying  map[drain.Kind]int
	phases  []drain.Phase
	exit    time.Duration
	cut     bool
	longest []drain.Seen
	over    []bool
}

func (m *metrics) AddInFlight(k drain.Kind, delta int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.flying == nil {
		m.flying = map[drain.Kind]int{}
	}
	m.flying[k] += delta
}
func (m *metrics) SetPhase(p drain.Phase) { m.phases = append(m.phases, p) }
func (m *metrics) ObserveExit(took time.Duration, cut bool) {
	m.exit, m.cut = took, cut
}

func (m *metrics) ObserveLongest(s drain.Seen, over bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.longest, m.over = append(m.longest, s), append(m.over, over)
}

// The longest request and job are kept, and one that a drain would cut is told
// of before there is a drain.
func TestLongestIsReportedBeforeTheNextStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &metrics{}
		var long []drain.Seen
		s := &drain.Sequence{Deadline: 30 * time.Second, Closing: 5 * time.Second, LameDuck: drain.Timer(5 * time.Second), Metrics: m, OnLong: func(s drain.Seen) { long = append(long, s) }}
		mux := http.NewServeMux()
		mux.HandleFunc("GET /report/{year}", func(w http.ResponseWriter, r *http.Request) {
			d, err := time.ParseDuration(r.URL.Query().Get("takes"))
			if err != nil {
				t.Error(err)
			}
			<-time.After(d)
		})
		mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			<-time.After(time.Hour)
		})
		server, jobs := drain.HTTP(&http.Server{Handler: mux}), &drain.Group{}
		s.Add("http", server)
		s.Add("jobs", jobs)
		l := newPipeListener()
		go server.Serve(l)
		ask := func(path string) {
			c := dialPipe(t, l)
			defer c.conn.Close()
			c.send("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")
			c.answer()
		}
		ask("/report/2026?takes=3s")
		ask("/events")
		if _, fit := s.Longest(); !fit || len(long) > 0 {
			t.Errorf("%v: 3 s fit into a drain of 20 s", long)
		}
		ask("/report/2026?takes=21s")
		ask("/report/2026?takes=2s")
		done, err := jobs.StartNamed("invoice")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		done()
		seen, fit := s.Longest()
		want := []drain.Seen{{Kind: drain.Request, Label: "GET /report/{year}", Took: 21 * time.Second}, {Kind: drain.Job, Label: "invoice", Took: 2 * time.Second}}
		if d := cmp.Diff(want, seen); d != "" || fit {
			t.Errorf("longest, fit %v (-want +got):\n%s", fit, d)
		}
		if d := cmp.Diff(want[:1], long); d != "" {
			t.Errorf("told (-want +got):\n%s", d)
		}
		if d := cmp.Diff([]bool{false, true, false}, m.over); d != "" {
			t.Errorf("metrics %v (-want +got):\n%s", m.longest, d)
		}
		if _, err := jobs.StartNamed("stuck"); err != nil {
			t.Fatal(err)
		}
		if m.flying[drain.Job] != 1 || m.flying[drain.Request] != 0 {
			t.Errorf("in flight: %v", m.flying)
		}
		s.Begin("")
		if err := s.Run(t.Context()); err == nil || m.exit != 25*time.Second || !m.cut {
			t.Errorf("Run = %v; metrics: exit %v, cut %v", err, m.exit, m.cut)
		}
		if d := cmp.Diff([]drain.Phase{drain.LameDuck, drain.Draining, drain.Closing, drain.Done}, m.phases); d != "" {
			t.Errorf("phases (-want +got):\n%s", d)
		}
	})
}
