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

// Many generations on one socket, each retired under load by HTTP/2 clients
// whose requests cannot be repeated, streams in flight among them.
func TestHTTP2LeavesLoseNothing(t *testing.T) {
	t.Parallel() // waits for seconds that are net/http's and ours
	leaves := 60
	if testing.Short() {
		leaves = 10
	}
	ts := httptest.NewTLSServer(nil)
	defer ts.Close()
	config := &tls.Config{Certificates: ts.TLS.Certificates}
	roots := ts.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	for _, secure := range []bool{false, true} {
		name := map[bool]string{false: "h2c", true: "TLS"}[secure]
		t.Run(name, func(t *testing.T) {
			base, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer base.Close()
			var executed atomic.Int64
			serve := func() (*drain.Server, chan error) {
				l := share(t, base)
				srv := drain.HTTP(&http.Server{Protocols: h2c(), TLSConfig: config.Clone(), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					executed.Add(1)
					if (r.TLS != nil) != secure {
						t.Errorf("Request.TLS is %v", r.TLS)
					}
					echoParts(w, r)
				})})
				srv.Window = 20 * time.Millisecond
				served := make(chan error, 1)
				go func() {
					if secure {
						served <- srv.ServeTLS(l, "", "")
						return
					}
					served <- srv.Serve(l)
				}()
				return srv, served
			}
			s := &h2Swarm{t: t, url: map[bool]string{false: "http://", true: "https://"}[secure] + base.Addr().String()}
			var leaving sync.WaitGroup
			old, oldServed := serve()
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
			for range leaves {
				next, nextServed := serve()
				want := s.asked.Load() + 60
				leaving.Go(func() { leaveBehind(t, old, oldServed) })
				for s.asked.Load() < want {
					<-time.After(time.Millisecond) // paced by work done
				}
				old, oldServed = next, nextServed
			}
			s.stop.Store(true)
			s.wg.Wait()
			leaving.Wait()
			leaveBehind(t, old, oldServed)
			t.Logf("%d requests, %d leaves, %d lost, %d repeated", s.asked.Load(), leaves+1, len(s.lost), s.repeated.Load())
			if len(s.lost) > 0 {
				t.Errorf("lost %d of %d, first: %s", len(s.lost), s.asked.Load(), s.lost[0])
			}
			if s.repeated.Load() > 0 {
				t.Errorf("%d were written twice: a client whose body is gone would have lost them", s.repeated.Load())
			}
			if executed.Load() != s.asked.Load() {
				t.Errorf("asked %d times, executed %d times", s.asked.Load(), executed.Load())
			}
		})
	}
}

// leaveBehind retires one generation.
func leaveBehind(t *testing.T, srv *drain.Server, served chan error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := drain.All(ctx, srv); err != nil {
		t.Errorf("leave: %v", err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("Serve = %v", err)
	}
}
