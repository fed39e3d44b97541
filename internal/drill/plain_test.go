package drill_test

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/drill"
)

// TestPlain: of a server without the contract, what can be proved is checked, with the exact count of each kind.
func TestPlain(t *testing.T) {
	const requests, every = 60, 6
	tests := []struct {
		name  string
		plain drill.Plain
		bad   string // each sixth answer; "" closes
		want  drill.Kind
	}{
		{"status", drill.Plain{}, "HTTP/1.1 503 X\r\nContent-Length: 2\r\n\r\nok", drill.KindBadStatus},
		{"another good status", drill.Plain{Status: []int{200}}, "HTTP/1.1 204 X\r\n\r\n", drill.KindBadStatus},
		{"class", drill.Plain{}, "HTTP/1.1 301 X\r\nContent-Length: 0\r\n\r\n", ""},
		{"cut", drill.Plain{}, "HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\nok", drill.KindTruncated},
		{"cut between chunks", drill.Plain{}, "HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", drill.KindTruncated},
		{"no answer", drill.Plain{}, "", drill.KindEOF},
		{"text", drill.Plain{Body: "ok"}, "HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nno", drill.KindWrongBody},
		{"another body", drill.Plain{SameBody: true}, "HTTP/1.1 200 X\r\nContent-Length: 3\r\n\r\nok!", drill.KindWrongBody},
		{"any body", drill.Plain{}, "HTTP/1.1 200 X\r\nContent-Length: 3\r\n\r\nok!", ""},
	}
	for _, tt := range tests {
		tt.plain.Path = "/a?b=c"
		for _, mode := range []drill.Mode{drill.ModeFresh, drill.ModePost} {
			t.Run(tt.name+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				var n atomic.Int64
				addr := breakable(t, func(p *peer) {
					for req := p.next(); req != nil; req = p.next() {
						if req.URL.RequestURI() != "/a?b=c" || (req.Method == http.MethodPost) != (mode == drill.ModePost) {
							t.Errorf("%s %s", req.Method, req.URL)
						}
						discard(req)
						if n.Add(1)%every != 0 {
							p.write("HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nok")
							continue
						}
						p.write(tt.bad)
						if tt.want == drill.KindTruncated || tt.bad == "" {
							return
						}
					}
				})
				rep := run(t, drill.Load{Address: addr, Mode: mode, Clients: 1, Requests: requests, Plain: &tt.plain})
				want := map[drill.Kind]int{}
				if tt.want != "" {
					want[tt.want] = requests / every
				}
				if d := cmp.Diff(want, rep.Failures); d != "" || rep.Sent != requests {
					t.Errorf("failures (-want +got):\n%s\n%s", d, rep.String())
				}
			})
		}
	}
}

// discard reads a request's body.
func discard(req *http.Request) {
	b := make([]byte, 4096)
	for {
		if _, err := req.Body.Read(b); err != nil {
			return
		}
	}
}

func TestPlainDatagrams(t *testing.T) {
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var echo sync.WaitGroup
	echo.Go(func() {
		buf := make([]byte, 2048)
		for i := 1; ; i++ {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			if i%10 != 0 {
				_, _ = pc.WriteTo(buf[:n], from)
			}
		}
	})
	t.Cleanup(func() { pc.Close(); echo.Wait() })
	rep := run(t, drill.Load{
		Network: "udp", Address: pc.LocalAddr().String(), Mode: drill.ModeUDP, Rate: 500, Requests: 100,
		Timeout: time.Second, Plain: &drill.Plain{},
	})
	if rep.OK != 90 || rep.Failures[drill.KindTimeout] != 10 {
		t.Errorf("want 90 answered, 10 not: %s", rep.String())
	}
}

func TestProbe(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	serveSite(t, ln, 1)
	if ok, err := drill.Probe(drill.Load{Network: "tcp", Address: ln.Addr().String()}); !ok || err != nil {
		t.Errorf("a server that keeps the contract: %v, %v", ok, err)
	}
	addr := breakable(t, func(p *peer) {
		p.next()
		p.write("HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n")
	})
	if ok, err := drill.Probe(drill.Load{Network: "tcp", Address: addr}); ok || err != nil {
		t.Errorf("a server that does not: %v, %v", ok, err)
	}
	closed := breakable(t, func(p *peer) { p.next() })
	if ok, err := drill.Probe(drill.Load{Network: "tcp", Address: closed}); ok || err == nil || !strings.Contains(err.Error(), "eof") {
		t.Errorf("a server that does not answer: %v, %v", ok, err)
	}
}

// TestRemote: an address of another host is refused unless it is allowed.
func TestRemote(t *testing.T) {
	l := drill.Load{Network: "tcp", Address: "192.0.2.1:80", Mode: drill.ModeTCP}
	if _, err := drill.Start(t.Context(), l); err == nil || !strings.Contains(err.Error(), "loopback") {
		t.Errorf("got %v, want a refusal", err)
	}
}

// TestSeries: every end is in exactly one point, and failures have their time.
func TestSeries(t *testing.T) {
	var n atomic.Int64
	addr := breakable(t, func(p *peer) {
		for req := p.next(); req != nil; req = p.next() {
			if n.Add(1)%50 == 0 {
				p.write("HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n")
				continue
			}
			p.write(good(req))
		}
	})
	rep := run(t, drill.Load{Address: addr, Mode: drill.ModeKeepAlive, Rate: 500, Requests: 500, Clients: 8})
	ok, failed := 0, 0
	for i, p := range rep.Series {
		ok, failed = ok+p.OK, failed+p.Failed
		if p.P99 > p.Max || p.OK > 0 && p.P99 == 0 || i > 0 && p.At <= rep.Series[i-1].At {
			t.Errorf("point %d: %+v", i, p)
		}
	}
	if ok != rep.OK || failed != 10 || len(rep.FailurePoints) != 10 || rep.SeriesWidth != 100*time.Millisecond || len(rep.Series) < 8 {
		t.Errorf("series has %d + %d in %d points of %v, %d failures: %s", ok, failed, len(rep.Series), rep.SeriesWidth, len(rep.FailurePoints), rep.String())
	}
	if s := rep.Spans[1]; s.Last < 500*time.Millisecond || s.First > s.Last {
		t.Errorf("generation 1 answered %s", fmt.Sprint(s))
	}
}
