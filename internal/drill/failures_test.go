package drill_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/handoverd/handover/internal/drill"
)

// TestKilledReusedConnection is the generator's own proof: a connection that is killed after it has carried answers, in each
// way, is reported, every time, as reused; nothing is sent again.
func TestKilledReusedConnection(t *testing.T) {
	const requests, answers = 40, 3 // every fourth request meets the kill
	tests := []struct {
		name  string
		pause time.Duration
		kill  func(p *peer)
		want  drill.Kind
	}{
		{"closed while idle", 20 * time.Millisecond, func(*peer) {}, drill.KindEOF},
		{"reset while idle", 20 * time.Millisecond, (*peer).reset, drill.KindReset},
		{"closed with the request read", 0, func(p *peer) { p.next() }, drill.KindEOF},
		{"reset with the request read", 0, func(p *peer) { p.next(); p.reset() }, drill.KindReset},
	}
	for _, mode := range []drill.Mode{drill.ModeKeepAlive, drill.ModePost} {
		for _, tt := range tests {
			t.Run(string(mode)+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				var seen atomic.Int64
				addr := breakable(t, func(p *peer) {
					for range answers {
						req := p.next()
						if req == nil {
							return
						}
						seen.Add(1)
						p.write(answerAny(req))
					}
					tt.kill(p)
				})
				rep := run(t, drill.Load{Address: addr, Mode: mode, Clients: 1, Requests: requests, Pause: tt.pause})
				want := map[drill.Kind]int{tt.want: requests / (answers + 1)}
				if d := cmp.Diff(want, rep.Failures); d != "" {
					t.Errorf("failures (-want +got):\n%s\n%s", d, rep.String())
				}
				if d := cmp.Diff(want, rep.ReusedFailures); d != "" {
					t.Errorf("on reused connections (-want +got):\n%s", d)
				}
				if rep.Sent != requests || rep.OK != requests-requests/(answers+1) || int(seen.Load()) != rep.OK {
					t.Errorf("sent %d, ok %d, server answered %d", rep.Sent, rep.OK, seen.Load())
				}
				for _, f := range rep.Samples {
					if !f.Reused || f.Number%(answers+1) != 0 {
						t.Errorf("sample %v: want a reused connection and every fourth number", f)
					}
				}
			})
		}
	}
}

// answerAny is a right answer to GET /fast and POST /upload.
func answerAny(req *http.Request) string {
	if req.Method != http.MethodPost {
		return good(req)
	}
	b := make([]byte, req.ContentLength)
	for n := 0; n < len(b); {
		m, err := req.Body.Read(b[n:])
		n += m
		if err != nil {
			break
		}
	}
	number := req.URL.Query().Get("n")
	s := "generation=1 n=" + number + " bytes=" + strconv.Itoa(len(b)) + " upload=" + string(b[len(b)-9:len(b)-1])
	return reply(200, 1, number, sum(s), "")
}

// TestKinds has every kind made by a broken server, one connection in five, with the exact count.
func TestKinds(t *testing.T) {
	const requests, every = 50, 5
	chunked := "HTTP/1.1 200 OK\r\nX-Generation: 1\r\nX-Request-Number: 1\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n0123456789abcdef\r\n"
	wrong := func(change func(n string) string) func(p *peer, req *http.Request) {
		return func(p *peer, req *http.Request) { p.write(change(req.URL.Query().Get("n"))) }
	}
	tests := []struct {
		name string
		want drill.Kind
		do   func(p *peer, req *http.Request)
	}{
		{"reset", drill.KindReset, func(p *peer, _ *http.Request) { p.reset() }},
		{"eof", drill.KindEOF, func(*peer, *http.Request) {}},
		{"cut in the head", drill.KindTruncated, func(p *peer, _ *http.Request) { p.write("HTTP/1.1 20") }},
		{"cut in the body", drill.KindTruncated, func(p *peer, req *http.Request) { s := good(req); p.write(s[:len(s)-1]) }},
		{"cut between chunks", drill.KindTruncated, func(p *peer, _ *http.Request) { p.write(chunked) }},
		{"reset in the body", drill.KindTruncated, func(p *peer, req *http.Request) {
			s := good(req)
			p.write(s[:len(s)-1])
			p.reset()
		}},
		{"cut without a length", drill.KindTruncated, wrong(func(n string) string {
			s := body(1, n)
			return "HTTP/1.1 200 OK\r\nX-Generation: 1\r\nX-Request-Number: " + n + "\r\n\r\n" + s[:len(s)-3]
		})},
		{"timeout", drill.KindTimeout, func(p *peer, _ *http.Request) { p.next() }},
		{"timeout in the body", drill.KindTimeout, func(p *peer, req *http.Request) { s := good(req); p.write(s[:len(s)-1]); p.next() }},
		{"status", drill.KindBadStatus, wrong(func(n string) string { return reply(503, 1, n, body(1, n), "") })},
		{"cut after a bad status", drill.KindBadStatus, func(p *peer, _ *http.Request) {
			p.write("HTTP/1.1 503 X\r\nContent-Length: 5\r\n\r\nab")
		}},
		{"no status line", drill.KindBadStatus, wrong(func(string) string { return "hello\r\n\r\n" })},
		{"checksum", drill.KindWrongBody, wrong(func(n string) string {
			return reply(200, 1, n, strings.Replace(body(1, n), "generation=1", "generation=2", 1), "")
		})},
		{"number in the body", drill.KindWrongBody, wrong(func(n string) string { return reply(200, 1, n, body(1, n+"0"), "") })},
		{"number in the header", drill.KindWrongBody, wrong(func(n string) string { return reply(200, 1, n+"0", body(1, n), "") })},
		{"generation in the header", drill.KindWrongBody, wrong(func(n string) string { return reply(200, 2, n, body(1, n), "") })},
		{"longer than its length", drill.KindWrongBody, wrong(func(n string) string { return reply(200, 1, n, body(1, n), "Connection: close\r\n") + "x" })},
		{"empty", drill.KindWrongBody, wrong(func(n string) string { return reply(200, 1, n, "", "") })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			addr := breakable(t, func(p *peer) {
				req := p.next()
				switch {
				case req == nil:
				case p.conn%every == 0:
					tt.do(p, req)
				default:
					p.write(strings.Replace(good(req), "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
				}
			})
			// Short only where it is waited for: a busy machine stalls for a quarter of a second.
			timeout := 10 * time.Second
			if tt.want == drill.KindTimeout {
				timeout = time.Second
			}
			rep := run(t, drill.Load{Address: addr, Mode: drill.ModeFresh, Clients: 8, Requests: requests, Timeout: timeout})
			if d := cmp.Diff(map[drill.Kind]int{tt.want: requests / every}, rep.Failures); d != "" {
				t.Errorf("failures (-want +got):\n%s\n%s", d, rep.String())
			}
			if rep.Sent != requests || rep.OK != requests-requests/every || rep.Faults() != 0 || len(rep.ReusedFailures) != 0 {
				t.Errorf("counts: %s", rep.String())
			}
		})
	}
}

// TestUnsent: what the clients cannot send in time is the generator's fault, apart from the failures.
func TestUnsent(t *testing.T) {
	t.Parallel()
	addr := breakable(t, func(p *peer) { p.next(); p.next() })
	rep := run(t, drill.Load{
		Address: addr, Mode: drill.ModeFresh, Clients: 1, Rate: 1000, Requests: 300, Timeout: 50 * time.Millisecond,
	})
	if rep.Failures[drill.KindTimeout] != rep.Sent || rep.Sent == 0 || rep.Sent+rep.GeneratorFaults["unsent"] != 300 {
		t.Errorf("want every request timed out or unsent: %s", rep.String())
	}
}
