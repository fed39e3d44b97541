//go:build unix

package drain_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/handoverd/handover/drain"
)

// An h2Swarm asks over real clients of net/http. These move a request to another
// connection if they read a GOAWAY before they have written it (and fail if its
// body has no GetBody: "cannot rewind body", although nothing was read of it);
// repeated counts those that they have written more than once.
type h2Swarm struct {
	t        *testing.T
	url      string
	stop     atomic.Bool
	asked    atomic.Int64
	repeated atomic.Int64
	wg       sync.WaitGroup
	mu       sync.Mutex
	lost     []string
}

// run asks until stopped. A path of /stream answers slowly, in parts.
func (s *h2Swarm) run(client *http.Client, path string) {
	defer s.wg.Done()
	for n := 0; !s.stop.Load(); n++ {
		want := strconv.Itoa(n)
		conns := 0
		trace := &httptrace.ClientTrace{WroteHeaders: func() { conns++ }}
		r, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace),
			http.MethodPost, s.url+path, strings.NewReader(want))
		if err != nil {
			s.t.Error(err)
			return
		}
		s.asked.Add(1)
		resp, err := client.Do(r)
		var b []byte
		if err == nil {
			b, err = io.ReadAll(resp.Body)
			resp.Body.Close()
		}
		if err == nil && (string(b) != want || resp.ProtoMajor != 2) {
			err = fmt.Errorf("%s: got %q, want %q", resp.Proto, b, want)
		}
		if conns > 1 {
			s.repeated.Add(1)
		}
		if err != nil {
			s.mu.Lock()
			s.lost = append(s.lost, fmt.Sprintf("%s %d: %v", path, n, err))
			s.mu.Unlock()
		}
	}
}

// echoParts answers a body, on /stream byte by byte with flushes between.
func echoParts(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if r.URL.Path != "/stream" {
		w.Write(b)
		return
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := range b {
		w.Write(b[i : i+1])
		http.NewResponseController(w).Flush()
		<-tick.C
	}
}

// A way to retire a generation: it serves l, and returns how it leaves.
type way func(t *testing.T, srv *http.Server, l net.Listener, secure bool) (leave func())

// byDrain is this package's.
func byDrain(t *testing.T, srv *http.Server, l net.Listener, secure bool) func() {
	s := drain.HTTP(srv)
	s.Window = 20 * time.Millisecond
	served := make(chan error, 1)
	go func() {
		if secure {
			served <- s.ServeTLS(l, "", "")
			return
		}
		served <- s.Serve(l)
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := drain.All(ctx, s); err != nil {
			t.Errorf("leave: %v", err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve = %v", err)
		}
	}
}

// byShutdown is net/http's own, to see what the test sees.
func byShutdown(t *testing.T, srv *http.Server, l net.Listener, secure bool) func() {
	if secure {
		go srv.ServeTLS(l, "", "")
	} else {
		go srv.Serve(l)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	}
}

// retire retires many generations of one socket, each under load, and returns
// the account.
func retire(t *testing.T, by way, secure bool, leaves int) (s *h2Swarm, executed int64) {
	t.Helper()
	ts := httptest.NewTLSServer(nil)
	defer ts.Close()
	roots := ts.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	base, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	var count atomic.Int64
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		count.Add(1)
		if (r.TLS != nil) != secure {
			t.Errorf("Request.TLS is %v", r.TLS)
		}
		echoParts(w, r)
	})
	serve := func() (leave func()) {
		config := &tls.Config{Certificates: ts.TLS.Certificates}
		return by(t, &http.Server{Protocols: h2c(), TLSConfig: config, Handler: handler}, share(t, base), secure)
	}
	s = &h2Swarm{t: t, url: map[bool]string{false: "http://", true: "https://"}[secure] + base.Addr().String()}
	old := serve()
	var client *http.Client
	for i := range 12 {
		p := new(http.Protocols)
		p.SetUnencryptedHTTP2(!secure)
		p.SetHTTP2(secure)
		if i%3 == 0 { // three share a client, and so its connection
			client = &http.Client{Transport: &http.Transport{Protocols: p, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com"}}}
		}
		s.wg.Add(1)
		go s.run(client, []string{"/", "/", "/stream"}[i%3])
	}
	var leaving sync.WaitGroup
	for range leaves {
		next := serve()
		want := s.asked.Load() + 60
		leaving.Go(old)
		for s.asked.Load() < want {
			<-time.After(time.Millisecond) // paced by work done
		}
		old = next
	}
	s.stop.Store(true)
	s.wg.Wait()
	leaving.Wait()
	old()
	t.Logf("%d requests, %d leaves, %d lost, %d written twice", s.asked.Load(), leaves+1, len(s.lost), s.repeated.Load())
	return s, count.Load()
}

// Under load by HTTP/2 clients with streams in flight, nothing is lost, nothing
// that was written has to be written again, and nothing is executed twice.
func TestHTTP2LeavesLoseNothing(t *testing.T) {
	t.Parallel() // waits for seconds that are net/http's and ours
	leaves := 60
	if testing.Short() {
		leaves = 10
	}
	for _, secure := range []bool{false, true} {
		t.Run(map[bool]string{false: "h2c", true: "TLS"}[secure], func(t *testing.T) {
			s, executed := retire(t, byDrain, secure, leaves)
			if len(s.lost) > 0 {
				t.Errorf("lost %d of %d, first: %s", len(s.lost), s.asked.Load(), s.lost[0])
			}
			if s.repeated.Load() > 0 {
				t.Errorf("%d were written twice: a client whose body is gone would have lost them", s.repeated.Load())
			}
			if executed != s.asked.Load() {
				t.Errorf("asked %d times, executed %d times", s.asked.Load(), executed)
			}
		})
	}
	t.Run("by http.Server.Shutdown it is seen", func(t *testing.T) {
		s, _ := retire(t, byShutdown, false, leaves)
		if s.repeated.Load()+int64(len(s.lost)) == 0 {
			t.Error("nothing was refused: either net/http has two GOAWAYs now, or this test sees nothing")
		}
	})
}
