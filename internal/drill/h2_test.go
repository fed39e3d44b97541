package drill_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/internal/site"
)

// serveHTTP2 serves the site over HTTP/2 without TLS, by net/http, and counts requests and connections.
func serveHTTP2(t *testing.T, ln net.Listener, h http.Handler) (conns *atomic.Int64) {
	t.Helper()
	conns = new(atomic.Int64)
	srv := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	srv.Protocols.SetUnencryptedHTTP2(true)
	srv.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			conns.Add(1)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln)
	}()
	t.Cleanup(func() { srv.Close(); <-done })
	return conns
}

// TestHTTP2 against net/http's server: nothing fails, every number comes back, and streams share connections.
func TestHTTP2(t *testing.T) {
	for _, nw := range []string{"tcp", "unix"} {
		address := "127.0.0.1:0"
		if nw == "unix" {
			address = tempSocket(t)
		}
		ln := listen(t, nw, address)
		var open, most atomic.Int64
		pages := site.Handler(7)
		conns := serveHTTP2(t, ln, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n := open.Add(1)
			defer open.Add(-1)
			for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
			}
			if r.ProtoMajor != 2 {
				t.Errorf("%s", r.Proto)
			}
			pages.ServeHTTP(w, r)
		}))
		for _, l := range []drill.Load{
			{Clients: 8, Streams: 4, Requests: 400},
			{Clients: 8, Streams: 4, Requests: 40, Delay: 50 * time.Millisecond},
			{Clients: 64, Rate: 1000, Requests: 300, Plain: &drill.Plain{Path: "/fast?n=1", Body: "n=1"}},
		} {
			before := conns.Load()
			most.Store(0)
			l.Mode, l.Network, l.Address = drill.ModeH2C, nw, ln.Addr().String()
			rep := run(t, l)
			if rep.Sent != l.Requests || rep.OK != l.Requests || rep.Failed()+rep.Faults() != 0 || rep.Generations[7] != l.Requests || rep.RefusedStreams != 0 {
				t.Errorf("%s", rep.String())
			}
			used := int(conns.Load() - before)
			if want := (l.Clients + rep.Load.Streams - 1) / rep.Load.Streams; used > want {
				t.Errorf("%d connections, want at most %d", used, want)
			}
			if l.Delay > 0 && most.Load() < 5 {
				t.Errorf("%d requests at once on two connections, want more than streams that wait for each other", most.Load())
			}
		}
	}
}

// serveTLS serves pages over TLS as HTTP/1.1 and HTTP/2, and returns the address and a client's settings.
func serveTLS(t *testing.T, h http.Handler) (address string, config *tls.Config) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // connections without a handshake are part of the tests
	srv.StartTLS()
	t.Cleanup(srv.Close)
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	return srv.Listener.Addr().String(), &tls.Config{RootCAs: pool, ServerName: "example.com"}
}

// TestTLS: all modes over TLS, the HTTP/1.1 ones as such and ModeH2 by ALPN.
func TestTLS(t *testing.T) {
	var protocols sync.Map
	pages := site.Handler(3)
	addr, config := serveTLS(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protocols.Store(r.Proto, true)
		pages.ServeHTTP(w, r)
	}))
	for _, l := range []drill.Load{
		{Mode: drill.ModeFresh, Requests: 40},
		{Mode: drill.ModeKeepAlive, Requests: 200},
		{Mode: drill.ModePost, Requests: 100, Payload: 40 << 10},
		{Mode: drill.ModeStream, Requests: 8, Delay: 100 * time.Millisecond},
		{Mode: drill.ModeH2, Requests: 200},
		{Mode: drill.ModeTCP, Requests: 20},
	} {
		protocols.Clear()
		l.TLS, l.Address = config, addr
		rep := run(t, l)
		if rep.OK != l.Requests || rep.Failed()+rep.Faults() != 0 {
			t.Errorf("%s", rep.String())
		}
		want := "HTTP/1.1"
		if l.Mode == drill.ModeH2 {
			want = "HTTP/2.0"
		}
		if _, ok := protocols.Load(want); !ok && l.Mode != drill.ModeTCP {
			t.Errorf("%s was not spoken as %s", l.Mode, want)
		}
	}
	if ok, err := drill.Probe(drill.Load{Network: "tcp", Address: addr, TLS: config}); !ok || err != nil {
		t.Errorf("probe: %v, %v", ok, err)
	}
	strange := &tls.Config{ServerName: "other.example", RootCAs: config.RootCAs}
	rep := run(t, drill.Load{Address: addr, TLS: strange, Mode: drill.ModeFresh, Requests: 3, Clients: 1})
	if rep.Failures[drill.KindOther] != 3 || !strings.Contains(rep.String(), "certificate is valid for example.com") {
		t.Errorf("want three certificates refused: %s", rep.String())
	}
}

// TestTLSCut: an end without close_notify is a cut, also where nothing else says how long the body is.
func TestTLSCut(t *testing.T) {
	_, config := serveTLS(t, http.NotFoundHandler())
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	certificates := server.TLS.Certificates
	tests := []struct {
		name string
		want drill.Kind
		do   func(c *tls.Conn, raw net.Conn)
	}{
		{"in the handshake", drill.KindEOF, nil},
		{"before the answer", drill.KindEOF, func(_ *tls.Conn, raw net.Conn) { raw.Close() }},
		{"no length, no close_notify", drill.KindTruncated, func(c *tls.Conn, raw net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 X\r\n\r\nab")
			raw.Close()
		}},
		{"no length, close_notify", "", func(c *tls.Conn, _ net.Conn) {
			_, _ = io.WriteString(c, "HTTP/1.1 200 X\r\n\r\nab")
			c.Close()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr := breakable(t, func(p *peer) {
				if tt.do == nil {
					_, _ = p.in.Peek(1)
					for p.in.Buffered() > 0 { // unread bytes would make it a reset
						_, _ = p.in.Discard(p.in.Buffered())
					}
					return
				}
				c := tls.Server(p.c, &tls.Config{Certificates: certificates})
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					tt.do(c, p.c)
				}
			})
			rep := run(t, drill.Load{Address: addr, TLS: config, Mode: drill.ModeFresh, Clients: 2, Requests: 10, Plain: &drill.Plain{}})
			want := map[drill.Kind]int{}
			if tt.want != "" {
				want[tt.want] = 10
			}
			if d := cmp.Diff(want, rep.Failures); d != "" {
				t.Errorf("failures (-want +got):\n%s\n%s", d, rep.String())
			}
		})
	}
}

// h2peer is the broken server's view of one HTTP/2 connection.
type h2peer struct {
	*peer
	f     *http2.Framer
	block bytes.Buffer
	enc   *hpack.Encoder
}

// broken2 serves each connection over HTTP/2 with serve, which returns to close it.
func broken2(t *testing.T, settings []http2.Setting, serve func(p *h2peer)) (address string) {
	t.Helper()
	return breakable(t, func(p *peer) {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(p.in, preface); err != nil || string(preface) != http2.ClientPreface {
			t.Errorf("preface %q, %v", preface, err)
			return
		}
		h := &h2peer{peer: p, f: http2.NewFramer(p.c, p.in)}
		h.f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
		h.enc = hpack.NewEncoder(&h.block)
		_ = h.f.WriteSettings(settings...)
		serve(h)
	})
}

// next is the next request's stream and number; 0: the client has gone.
func (p *h2peer) next() (id uint32, number string) {
	for {
		frame, err := p.f.ReadFrame()
		if err != nil {
			return 0, ""
		}
		if m, ok := frame.(*http2.MetaHeadersFrame); ok {
			_, number, _ = strings.Cut(m.PseudoValue("path"), "n=")
			return m.StreamID, number
		}
	}
}

func (p *h2peer) head(id uint32, status int, number string, length int, end bool) {
	p.block.Reset()
	for _, f := range [][2]string{
		{":status", fmt.Sprint(status)}, {"x-generation", "1"}, {"x-request-number", number}, {"content-length", fmt.Sprint(length)},
	} {
		_ = p.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	_ = p.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block.Bytes(), EndHeaders: true, EndStream: end})
}

func (p *h2peer) good(id uint32, number string) {
	b := body(1, number)
	p.head(id, 200, number, len(b), false)
	_ = p.f.WriteData(id, true, []byte(b))
}

// drain reads until the client has closed, so that nothing unread turns the close into a reset.
func (p *h2peer) drain() {
	for {
		if id, _ := p.next(); id == 0 {
			return
		}
	}
}

// TestHTTP2Kinds has every kind made by a broken server, the fifth request of each connection, with the exact count.
func TestHTTP2Kinds(t *testing.T) {
	const requests, every = 50, 5
	tests := []struct {
		name   string
		want   drill.Kind
		reused bool // the connection goes down with it
		do     func(p *h2peer, id uint32, number string) (closes bool)
	}{
		{"eof", drill.KindEOF, true, func(*h2peer, uint32, string) bool { return true }},
		{"reset", drill.KindReset, true, func(p *h2peer, _ uint32, _ string) bool { p.reset(); return true }},
		{"cut after the head", drill.KindTruncated, true, func(p *h2peer, id uint32, n string) bool { p.head(id, 200, n, 9, false); return true }},
		{"cut in a frame", drill.KindTruncated, true, func(p *h2peer, id uint32, n string) bool {
			p.head(id, 200, n, 9, false)
			p.write("\x00\x00\x09\x00\x01\x00\x00\x00")
			return true
		}},
		{"ended early", drill.KindTruncated, true, func(p *h2peer, id uint32, n string) bool {
			p.head(id, 200, n, 9, false)
			_ = p.f.WriteData(id, true, []byte("ab"))
			return false
		}},
		{"stream reset", drill.KindReset, true, func(p *h2peer, id uint32, _ string) bool {
			_ = p.f.WriteRSTStream(id, http2.ErrCodeInternal)
			return false
		}},
		{"stream reset in the body", drill.KindTruncated, true, func(p *h2peer, id uint32, n string) bool {
			p.head(id, 200, n, 9, false)
			_ = p.f.WriteRSTStream(id, http2.ErrCodeRefusedStream) // too late to be believed
			return false
		}},
		{"GOAWAY that covers the stream, then the end", drill.KindEOF, true, func(p *h2peer, id uint32, _ string) bool {
			_ = p.f.WriteGoAway(id, http2.ErrCodeNo, nil)
			return true
		}},
		{"status", drill.KindBadStatus, true, func(p *h2peer, id uint32, n string) bool { p.head(id, 503, n, 0, true); return false }},
		{"number", drill.KindWrongBody, true, func(p *h2peer, id uint32, n string) bool {
			b := body(1, n+"0")
			p.head(id, 200, n, len(b), false)
			_ = p.f.WriteData(id, true, []byte(b))
			return false
		}},
		{"no answer", drill.KindWrongBody, true, func(p *h2peer, id uint32, _ string) bool {
			_ = p.f.WriteData(id, true, []byte("ab"))
			return false
		}},
		{"timeout", drill.KindTimeout, true, func(*h2peer, uint32, string) bool { return false }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var seen atomic.Int64
			addr := broken2(t, nil, func(p *h2peer) {
				for i := 1; ; i++ {
					id, number := p.next()
					if id == 0 {
						return
					}
					seen.Add(1)
					if i%every != 0 {
						p.good(id, number)
					} else if tt.do(p, id, number) {
						return
					}
				}
			})
			l := drill.Load{Address: addr, Mode: drill.ModeH2C, Clients: 1, Requests: requests, Timeout: 10 * time.Second}
			if tt.want == drill.KindTimeout {
				l.Timeout = 200 * time.Millisecond
			}
			rep := run(t, l)
			want := map[drill.Kind]int{tt.want: requests / every}
			if d := cmp.Diff(want, rep.Failures); d != "" {
				t.Errorf("failures (-want +got):\n%s\n%s", d, rep.String())
			}
			if d := cmp.Diff(want, rep.ReusedFailures); tt.reused && d != "" {
				t.Errorf("on reused connections (-want +got):\n%s", d)
			}
			// Nothing was sent twice.
			if rep.Sent != requests || int(seen.Load()) != requests || rep.RefusedStreams != 0 {
				t.Errorf("the server saw %d requests: %s", seen.Load(), rep.String())
			}
		})
	}
}

// TestHTTP2Refused: what the server says it has not processed is sent again, once, on a new connection, and counted; what is
// refused again is lost; what it may have processed is never sent again.
func TestHTTP2Refused(t *testing.T) {
	tests := []struct {
		name  string
		twice bool
		do    func(p *h2peer, id uint32)
	}{
		{"REFUSED_STREAM", false, func(p *h2peer, id uint32) { _ = p.f.WriteRSTStream(id, http2.ErrCodeRefusedStream) }},
		{"GOAWAY below", false, func(p *h2peer, id uint32) { _ = p.f.WriteGoAway(id-2, http2.ErrCodeNo, nil) }},
		{"REFUSED_STREAM twice", true, func(p *h2peer, id uint32) { _ = p.f.WriteRSTStream(id, http2.ErrCodeRefusedStream) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const requests = 40
			var refused, conns atomic.Int64
			var mu sync.Mutex
			again := map[string]int{}
			addr := broken2(t, nil, func(p *h2peer) {
				conns.Add(1)
				for {
					id, number := p.next()
					if id == 0 {
						return
					}
					mu.Lock()
					again[number]++
					first := again[number] == 1
					mu.Unlock()
					// Every fourth number, the first time, or both times.
					if strings.HasSuffix(number, "4") && (first || tt.twice) {
						refused.Add(1)
						tt.do(p, id)
						continue
					}
					p.good(id, number)
				}
			})
			rep := run(t, drill.Load{Address: addr, Mode: drill.ModeH2C, Clients: 1, Requests: requests})
			want := map[drill.Kind]int{}
			if tt.twice {
				want[drill.KindRefusedStream] = requests / 10
			}
			if d := cmp.Diff(want, rep.Failures); d != "" {
				t.Errorf("failures (-want +got):\n%s\n%s", d, rep.String())
			}
			if rep.RefusedStreams != requests/10 || int(refused.Load()) != rep.RefusedStreams+rep.Failed() || rep.Sent != requests {
				t.Errorf("the server refused %d: %s", refused.Load(), rep.String())
			}
			if want := 1 + refused.Load(); conns.Load() != want {
				t.Errorf("%d connections, want a new one for each refusal: %d", conns.Load(), want)
			}
			for number, n := range again {
				if n > 2 || n == 2 && !strings.HasSuffix(number, "4") {
					t.Errorf("request %s was sent %d times", number, n)
				}
			}
		})
	}
}

// TestHTTP2GoAway: streams at and below the last one are answered, on the old connection, those above on a new one; nothing is lost.
func TestHTTP2GoAway(t *testing.T) {
	const streams = 8
	addr := broken2(t, nil, func(p *h2peer) {
		if p.conn > 0 {
			for id, number := p.next(); id != 0; id, number = p.next() {
				p.good(id, number)
			}
			return
		}
		numbers := map[uint32]string{}
		var last uint32
		for len(numbers) < streams {
			id, number := p.next()
			numbers[id], last = number, id
		}
		covered := last - 6 // three streams are above it
		_ = p.f.WriteGoAway(covered, http2.ErrCodeNo, nil)
		for id, number := range numbers {
			if id <= covered {
				p.good(id, number)
			}
		}
		p.drain()
	})
	rep := run(t, drill.Load{Address: addr, Mode: drill.ModeH2C, Clients: streams, Streams: streams, Requests: 100})
	if rep.OK != 100 || rep.RefusedStreams != 3 || rep.Failed() != 0 {
		t.Errorf("want 3 refused and answered: %s", rep.String())
	}
}

// TestHTTP2Limit: a server that allows two streams at a time is never sent a third.
func TestHTTP2Limit(t *testing.T) {
	addr := broken2(t, []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 2}}, func(p *h2peer) {
		for {
			first, n1 := p.next()
			if first == 0 {
				return
			}
			second, n2 := p.next()
			if second == 0 { // the last of an odd number
				return
			}
			_ = p.c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			if b, err := p.in.Peek(9); err == nil && b[3] == byte(http2.FrameHeaders) {
				t.Error("a third stream was opened")
			}
			_ = p.c.SetReadDeadline(time.Time{})
			p.good(second, n2)
			p.good(first, n1)
		}
	})
	rep := run(t, drill.Load{Address: addr, Mode: drill.ModeH2C, Clients: 6, Streams: 6, Requests: 60, Timeout: 5 * time.Second})
	if rep.OK != 60 || rep.Failed() != 0 {
		t.Error(rep.String())
	}
}

// TestHTTP2Unspoken: a server of HTTP/1.1 is told from one that loses requests.
func TestHTTP2Unspoken(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	serveSite(t, ln, 1)
	_, err := drill.Probe(drill.Load{Network: "tcp", Address: ln.Addr().String(), Mode: drill.ModeH2C})
	if err == nil || !strings.Contains(err.Error(), "does not speak HTTP/2") {
		t.Errorf("probe: %v", err)
	}
	two := listen(t, "tcp", "127.0.0.1:0")
	serveHTTP2(t, two, site.Handler(1))
	if ok, err := drill.Probe(drill.Load{Network: "tcp", Address: two.Addr().String(), Mode: drill.ModeH2C}); !ok || err != nil {
		t.Errorf("probe of a server that does: %v, %v", ok, err)
	}
}
