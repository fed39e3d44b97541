package drain_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
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

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/drain"
)

// A frame of HTTP/2, as a client that knows nothing but frames sees it.
type frame struct {
	Type, Flags byte
	Stream      uint32
	Payload     string
}

// A frameClient is one raw HTTP/2 connection.
type frameClient struct {
	t *testing.T
	net.Conn
}

func (c frameClient) send(f frame) {
	c.t.Helper()
	n := len(f.Payload)
	b := []byte{byte(n >> 16), byte(n >> 8), byte(n), f.Type, f.Flags}
	b = binary.BigEndian.AppendUint32(b, f.Stream)
	if _, err := c.Write(append(b, f.Payload...)); err != nil {
		c.t.Fatal(err)
	}
}

// next returns the next frame that is not connection housekeeping.
func (c frameClient) next() frame {
	c.t.Helper()
	for {
		var head [9]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			c.t.Fatalf("no frame: %v", err)
		}
		b := make([]byte, int(head[0])<<16|int(head[1])<<8|int(head[2]))
		if _, err := io.ReadFull(c, b); err != nil {
			c.t.Fatal(err)
		}
		f := frame{head[3], head[4], binary.BigEndian.Uint32(head[5:]), string(b)}
		if f.Type != 0x4 && f.Type != 0x8 { // SETTINGS, WINDOW_UPDATE
			return f
		}
	}
}

// ask sends a GET on a stream: :method GET, :scheme http, :path /, and
// :authority x, all but the last from the static table of RFC 7541.
func (c frameClient) ask(stream uint32) {
	c.send(frame{0x1, 0x5, stream, "\x82\x86\x84\x41\x01x"})
}

// answer reads a whole response and returns its body.
func (c frameClient) answer(stream uint32) string {
	c.t.Helper()
	body := ""
	for {
		f := c.next()
		if f.Stream != stream || f.Type > 1 {
			c.t.Fatalf("%+v, want the answer on stream %d", f, stream)
		}
		if f.Type == 0 {
			body += f.Payload
		}
		if f.Flags&1 != 0 { // END_STREAM
			return body
		}
	}
}

func goAway(last uint32) frame {
	return frame{Type: 0x7, Payload: string(binary.BigEndian.AppendUint32(nil, last)) + "\x00\x00\x00\x00"}
}

func h2c() *http.Protocols {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return &p
}

// dialFrames connects and has one request answered.
func (r *rig) dialFrames() frameClient {
	r.t.Helper()
	c := frameClient{r.t, r.dial().conn}
	io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	c.send(frame{Type: 0x4})
	c.ask(1)
	if body := c.answer(1); body != "hello" {
		r.t.Fatalf("got %q", body)
	}
	return c
}

// A request that is on its way while the server says GOAWAY is answered: the
// first GOAWAY refuses nothing, and the second comes after the round trip.
func TestRequestCrossesGoAway(t *testing.T) {
	r := newRig(t, &http.Server{Handler: http.HandlerFunc(hello), Protocols: h2c()})
	c := r.dialFrames()
	done := r.shutdown(t.Context())
	if d := cmp.Diff(goAway(1<<31-1), c.next()); d != "" {
		t.Fatalf("first GOAWAY (-want +got):\n%s", d)
	}
	ping := c.next()
	if ping.Type != 0x6 || ping.Flags != 0 {
		t.Fatalf("%+v, want a PING", ping)
	}
	c.ask(3) // crosses it
	if body := c.answer(3); body != "hello" {
		t.Errorf("got %q", body)
	}
	ping.Flags = 1
	c.send(ping)
	c.ask(5) // decided on before the GOAWAY was read, and written behind the answer
	if body := c.answer(5); body != "hello" {
		t.Errorf("got %q", body)
	}
	if ping = c.next(); ping.Type != 0x6 || ping.Flags != 0 {
		t.Fatalf("%+v, want the second PING", ping)
	}
	ping.Flags = 1
	c.send(ping)
	if d := cmp.Diff(goAway(5), c.next()); d != "" {
		t.Errorf("second GOAWAY (-want +got):\n%s", d)
	}
	if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
		t.Errorf("at the end: %q, %v", b, err)
	}
	if err := <-done; err != nil {
		t.Errorf("Shutdown = %v", err)
	}
}

// A client that connects, and asks, after the drain has begun is answered
// before it is told to go.
func TestHTTP2BeginsWhileDraining(t *testing.T) {
	r := newRig(t, &http.Server{Handler: http.HandlerFunc(hello), Protocols: h2c()})
	early := r.dial() // holds the drain open
	late := frameClient{t, r.dial().conn}
	r.dialFrames().Close() // proves that the earlier ones have been accepted
	done := r.shutdown(t.Context())
	io.WriteString(late, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	late.send(frame{Type: 0x4})
	late.ask(1)
	var got []frame
	for len(got) < 4 { // in an order that the scheduler decides: HEADERS, DATA, GOAWAY, PING
		got = append(got, late.next())
	}
	body, told := "", false
	for _, f := range got {
		if f.Type == 0 {
			body = f.Payload
		}
		told = told || f == goAway(1<<31-1)
	}
	if body != "hello" || !told {
		t.Errorf("got %+v", got)
	}
	late.Close()
	early.conn.Close()
	if err := <-done; err != nil {
		t.Errorf("Shutdown = %v", err)
	}
}

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
