package drill_test

import (
	"bytes"
	"crypto/sha1"
	"encoding/base64"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/handoverd/handover/internal/drill"
)

// TestWindowHasWhatWaited: requests that were due in a window, and were begun after its end because every client waited for
// the server, were held up in it. Else a reload that stalls everybody would look steady, and the time around it bad.
func TestWindowHasWhatWaited(t *testing.T) {
	const stall = 300 * time.Millisecond
	windows := make(chan *drill.Window, 1)
	var once sync.Once
	addr := breakable(t, func(p *peer) {
		for req := p.next(); req != nil; req = p.next() {
			once.Do(func() {
				w := <-windows
				<-time.After(stall)
				w.End()
			})
			p.write(good(req))
		}
	})
	r, err := drill.Start(t.Context(), drill.Load{
		Network: "tcp", Address: addr, Mode: drill.ModeKeepAlive, Clients: 1, Rate: 100, Requests: 60,
	})
	if err != nil {
		t.Fatal(err)
	}
	windows <- r.Mark("stall")
	<-r.Done()
	rep := r.Stop()
	all, inside, _ := rep.Latencies()
	w := rep.Windows[0]
	if all.Count != 60 || inside.Count < 25 || w.Requests != int(inside.Count) || w.OK != w.Requests {
		t.Errorf("%d of %d requests in the window, which has %d and %d good answers: want those of the first %v", inside.Count, all.Count, w.Requests, w.OK, stall)
	}
}

// TestConnectionOptions: Connection is a list, and close counts wherever it stands.
func TestConnectionOptions(t *testing.T) {
	for _, field := range []string{"Connection: TE, close\r\n", "Connection: close\r\nConnection: keep-alive\r\n", "connection: Close , x\r\n"} {
		addr := breakable(t, func(p *peer) {
			if req := p.next(); req != nil {
				p.write(strings.Replace(good(req), "\r\n\r\n", "\r\n"+field+"\r\n", 1))
			}
		})
		if rep := run(t, drill.Load{Address: addr, Mode: drill.ModeKeepAlive, Clients: 2, Requests: 20}); rep.OK != 20 {
			t.Errorf("%q: %s", field, rep.String())
		}
	}
}

// TestStatusOutOfRange: what is no status is not waited behind as an interim answer is.
func TestStatusOutOfRange(t *testing.T) {
	for _, line := range []string{"HTTP/1.1 099 X", "HTTP/1.1 -20 X", "HTTP/1.1 +20 X"} {
		addr := breakable(t, func(p *peer) {
			if p.next() != nil {
				p.write(line + "\r\nContent-Length: 0\r\n\r\n")
				p.next()
			}
		})
		if rep := run(t, drill.Load{Address: addr, Mode: drill.ModeKeepAlive, Clients: 1, Requests: 2}); rep.Failures[drill.KindBadStatus] != 2 {
			t.Errorf("%s: %s", line, rep.String())
		}
	}
}

// TestServerEndsEachConnection: a server that ends each connection before it has taken a request is not asked as fast as it
// can answer, and the request is lost when its time is over.
func TestServerEndsEachConnection(t *testing.T) {
	var conns atomic.Int64
	h2 := func(p *h2peer) {
		conns.Add(1)
		_ = p.f.WriteGoAway(0, http2.ErrCodeNo, nil)
		p.drain()
	}
	webSocket := func(p *peer) {
		conns.Add(1)
		if req := p.next(); req != nil {
			sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) // RFC 6455, 1.3
			p.write("HTTP/1.1 101 X\r\nSec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n\x88\x02\x03\xf4")
			p.next()
		}
	}
	for mode, addr := range map[drill.Mode]string{
		drill.ModeH2C: broken2(t, nil, h2), drill.ModeWebSocket: breakable(t, webSocket),
	} {
		conns.Store(0)
		rep := run(t, drill.Load{Address: addr, Mode: mode, Clients: 1, Requests: 1, Timeout: time.Second})
		if n := conns.Load(); n == 0 || n > 20 || rep.Sent != 1 || rep.OK != 0 {
			t.Errorf("%s: %d connections in a second: %s", mode, n, rep.String())
		}
	}
}

// TestHTTP2TooLong: a stream whose body is not read any more is given up, so that no server waits for it.
func TestHTTP2TooLong(t *testing.T) {
	given := make(chan http2.ErrCode, 1)
	addr := broken2(t, nil, func(p *h2peer) {
		id, number := p.next()
		p.head(id, 200, number, 5<<20, false)
		piece := bytes.Repeat([]byte("x"), 16<<10)
		for sent := 0; sent < 5<<20-len(piece); sent += len(piece) {
			_ = p.f.WriteData(id, false, piece)
		}
		for {
			frame, err := p.f.ReadFrame()
			if err != nil {
				close(given)
				return
			}
			if reset, ok := frame.(*http2.RSTStreamFrame); ok {
				given <- reset.ErrCode
				p.drain()
				return
			}
		}
	})
	rep := run(t, drill.Load{Address: addr, Mode: drill.ModeH2C, Clients: 1, Requests: 1})
	if code, ok := <-given; !ok || code != http2.ErrCodeCancel || rep.Failures[drill.KindWrongBody] != 1 {
		t.Errorf("reset with %v, %v: %s", code, ok, rep.String())
	}
}
