package drill_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/internal/site"
)

// TestModes runs every mode against the real site, over every network: nothing fails, every number comes back.
func TestModes(t *testing.T) {
	modes := []drill.Load{
		{Mode: drill.ModeFresh, Requests: 300},
		{Mode: drill.ModeFresh, Requests: 20, Delay: 10 * time.Millisecond, Spread: 20 * time.Millisecond},
		{Mode: drill.ModeFresh, Requests: 100, Rate: 1000},
		{Mode: drill.ModeKeepAlive, Requests: 300},
		{Mode: drill.ModeKeepAlive, Requests: 60, Pause: 10 * time.Millisecond, Clients: 20},
		{Mode: drill.ModeKeepAlive, Requests: 100, Rate: 1000, Clients: 4},
		{Mode: drill.ModePost, Requests: 300, Clients: 64},
		{Mode: drill.ModePost, Requests: 40, Payload: 100 << 10},
		{Mode: drill.ModeStream, Requests: 40, Delay: 100 * time.Millisecond, Spread: 200 * time.Millisecond},
		{Mode: drill.ModeTCP, Requests: 300},
	}
	networks := []struct{ network, listen string }{{"tcp", "127.0.0.1:0"}, {"tcp", "[::1]:0"}, {"unix", ""}}
	for _, nw := range networks {
		t.Run(nw.network+nw.listen, func(t *testing.T) {
			t.Parallel()
			if nw.network == "unix" {
				nw.listen = tempSocket(t)
			}
			ln := listen(t, nw.network, nw.listen)
			serveSite(t, ln, 7)
			for _, l := range modes {
				l.Network, l.Address = nw.network, ln.Addr().String()
				rep := run(t, l)
				gen := rep.Generations[7]
				if l.Mode == drill.ModeTCP {
					gen = rep.OK
				}
				if rep.Sent != l.Requests || rep.OK != l.Requests || gen != l.Requests || rep.Failed()+rep.Faults() != 0 {
					t.Errorf("%+v:\n%s", l, rep.String())
				}
				if n := rep.All.TotalCount(); n != int64(l.Requests) {
					t.Errorf("%s: %d latencies for %d requests", l.Mode, n, l.Requests)
				}
			}
		})
	}
}

// TestServerClosesPolitely: an answer with Connection: close is no failure in any mode, and the next request has a new connection.
func TestServerClosesPolitely(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	srv := serveSite(t, ln, 1)
	srv.SetKeepAlivesEnabled(false)
	relay := newRelay(t, ln.Addr().String())
	conns := 0
	for _, mode := range []drill.Mode{drill.ModeKeepAlive, drill.ModePost} {
		rep := run(t, drill.Load{Address: relay.Addr(), Mode: mode, Clients: 4, Requests: 100})
		conns += 100
		if got := relay.Stats().Accepted; rep.OK != 100 || rep.Failed() != 0 || got != conns {
			t.Errorf("%d connections, want %d: %s", got, conns, rep.String())
		}
	}
}

func TestOpenLoopKeepsItsRate(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	serveSite(t, ln, 1)
	rep := run(t, drill.Load{Address: ln.Addr().String(), Mode: drill.ModeFresh, Rate: 1000, Duration: 2 * time.Second})
	t.Log(rep.String())
	if rep.Failed()+rep.Faults() != 0 || rep.Due < 1900 || rep.Ratio() < 0.95 || rep.Rate < 950 || rep.Rate > 1050 {
		t.Errorf("want 1,000/s within 5 %%, got %.1f/s, %d due in %v", rep.Rate, rep.Due, rep.Sending)
	}
}

// TestLatencyCountsFromWhenDue: one stall of a server is seen by every request that was due meanwhile.
func TestLatencyCountsFromWhenDue(t *testing.T) {
	const stall = 300 * time.Millisecond
	var once sync.Once
	addr := breakable(t, func(p *peer) {
		for req := p.next(); req != nil; req = p.next() {
			once.Do(func() { <-time.After(stall) })
			p.write(good(req))
		}
	})
	rep := run(t, drill.Load{Address: addr, Mode: drill.ModeKeepAlive, Clients: 1, Rate: 100, Requests: 60})
	late := 0
	for _, bar := range rep.All.Distribution() {
		if bar.From >= 100_000 {
			late += int(bar.Count)
		}
	}
	// Due every 10 ms: those of the first 200 ms waited for at least 100 ms.
	if rep.OK != 60 || late < 20 {
		t.Errorf("%d of %d requests later than 100 ms, want at least 20:\n%s", late, rep.OK, rep.String())
	}
}

// TestWindow: a request belongs to each window that its life touches.
func TestWindow(t *testing.T) {
	release := make(chan struct{})
	ln := listen(t, "tcp", "127.0.0.1:0")
	var in atomic.Int64
	all := make(chan struct{})
	h := site.Handler(3)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if in.Add(1) == 5 {
			close(all)
		}
		<-release
		h.ServeHTTP(w, r)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	defer func() { srv.Close(); <-done }()

	r, err := drill.Start(t.Context(), drill.Load{
		Network: "tcp", Address: ln.Addr().String(), Mode: drill.ModeKeepAlive, Clients: 5, Requests: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	<-all
	held := r.Mark("held")
	held.End()
	open := r.Mark("open")
	close(release)
	if err := open.Wait(t.Context(), 105); err != nil {
		t.Error(err)
	}
	open.End()
	<-r.Done()
	rep := r.Stop()
	if len(rep.Windows) != 2 || rep.OK != 1000 {
		t.Fatalf("%d windows: %s", len(rep.Windows), rep.String())
	}
	a, b := rep.Windows[0], rep.Windows[1]
	if a.Name != "held" || a.Requests != 5 || a.InFlight != 5 || a.OK != 5 || len(a.Generations) != 0 || a.Max <= 0 {
		t.Errorf("held: %+v", a)
	}
	if b.InFlight != 5 || b.Requests < 105 || b.OK != b.Requests || b.Generations[3] != b.OK-5 {
		t.Errorf("open: %+v", b)
	}
	// The five are in both windows and count once.
	if n := rep.Inside.TotalCount(); n != int64(b.OK) || rep.Outside.TotalCount() != 1000-n {
		t.Errorf("inside %d, outside %d, window had %d", n, rep.Outside.TotalCount(), b.OK)
	}
}

func TestWaitGeneration(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	var gen atomic.Int64
	gen.Store(1)
	sites := []http.Handler{nil, site.Handler(1), site.Handler(2)}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { sites[gen.Load()].ServeHTTP(w, r) })}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	defer func() { srv.Close(); <-done }()
	r, err := drill.Start(t.Context(), drill.Load{Network: "tcp", Address: ln.Addr().String(), Mode: drill.ModeFresh, Rate: 200})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WaitGeneration(t.Context(), 1); err != nil {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := r.WaitGeneration(short, 2); err == nil {
		t.Error("generation 2 was seen before it served")
	}
	gen.Store(2)
	if err := r.WaitGeneration(t.Context(), 2); err != nil || r.Newest() != 2 {
		t.Errorf("newest %d: %v", r.Newest(), err)
	}
	if rep := r.Stop(); rep.Failed() != 0 || rep.Generations[1] == 0 || rep.Generations[2] == 0 {
		t.Error(rep.String())
	}
	if err := r.WaitGeneration(t.Context(), 3); err == nil {
		t.Error("waited for a generation after the end")
	}
}

// TestStopFinishesStreams: what is in flight at Stop is read to its end.
func TestStopFinishesStreams(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	serveSite(t, ln, 1)
	r, err := drill.Start(t.Context(), drill.Load{Network: "tcp", Address: ln.Addr().String(), Mode: drill.ModeStream, Clients: 8, Delay: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Mark("begin").Wait(t.Context(), 8); err != nil {
		t.Error(err)
	}
	if rep := r.Stop(); rep.Sent < 8 || rep.OK != rep.Sent || rep.Failed() != 0 {
		t.Error(rep.String())
	}
}

func TestStartRefuses(t *testing.T) {
	for _, l := range []drill.Load{
		{Network: "tcp", Address: "192.0.2.1:80", Mode: drill.ModeFresh},
		{Network: "tcp", Address: "0.0.0.0:80", Mode: drill.ModeFresh},
		{Network: "tcp", Address: "[::ffff:192.0.2.1]:80", Mode: drill.ModeFresh},
		{Network: "tcp", Address: "example.com:80", Mode: drill.ModeFresh},
		{Network: "tcp", Address: "127.0.0.1:0", Mode: drill.ModeFresh},
		{Network: "udp", Address: "127.0.0.1:80", Mode: drill.ModeFresh},
		{Network: "tcp", Address: "127.0.0.1:80", Mode: drill.ModeUDP, Rate: 1},
		{Network: "udp", Address: "127.0.0.1:80", Mode: drill.ModeUDP},
		{Network: "tcp", Address: "127.0.0.1:80", Mode: "other"},
		{Network: "tcp", Address: "127.0.0.1:80", Mode: drill.ModeFresh, Rate: 1, Pause: time.Second},
		{Network: "tcp", Address: "127.0.0.1:80", Mode: drill.ModeFresh, Rate: 1e9},
		{Network: "tcp", Address: "127.0.0.1:80", Mode: drill.ModeStream, Timeout: time.Second},
	} {
		if r, err := drill.Start(t.Context(), l); err == nil {
			r.Stop()
			t.Errorf("%+v was started", l)
		}
	}
}

// TestDatagrams drops and doubles some answers, and expects exactly those counts.
func TestDatagrams(t *testing.T) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	const requests = 210
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			number := 0
			if _, err := fmt.Sscanf(string(buf[:n]), "n=%d", &number); err != nil {
				continue
			}
			out := []byte(body(1+number%2, fmt.Sprint(number)))
			switch {
			case number%10 == 0: // lost
			case number%7 == 0:
				_, _ = pc.WriteTo(out, from)
				_, _ = pc.WriteTo(out, from)
			default:
				_, _ = pc.WriteTo(out, from)
			}
		}
	}()
	rep := run(t, drill.Load{
		Network: "udp", Address: pc.LocalAddr().String(), Mode: drill.ModeUDP, Rate: 500, Requests: requests, Timeout: time.Second, Clients: 3,
	})
	lost, twice := requests/10, requests/7-requests/70
	if rep.Sent != requests || rep.Failures[drill.KindTimeout] != lost || rep.Failures[drill.KindDuplicate] != twice ||
		rep.Failed() != lost+twice || rep.OK != requests-lost || rep.Faults() != 0 {
		t.Errorf("want %d lost, %d twice: %s", lost, twice, rep.String())
	}
	pc.Close()
	<-done
}

// TestDatagramsOfSite: the real site answers each once.
func TestDatagramsOfSite(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		pc, err := net.ListenPacket("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- site.ServePacket(pc, 4) }()
		rep := run(t, drill.Load{Network: "udp", Address: pc.LocalAddr().String(), Mode: drill.ModeUDP, Rate: 1000, Requests: 300})
		if rep.Sent != 300 || rep.OK != 300 || rep.Failed()+rep.Faults() != 0 || rep.Generations[4] != 300 {
			t.Error(rep.String())
		}
		pc.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
