package drill_test

import (
	"bufio"
	"context"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/drill"
)

// echoServer is a server of another hand: each message comes back, and after as many as each says, its connection is closed
// with a code. It counts messages, connections, and the codes that clients closed with.
type echoServer struct {
	t        *testing.T
	each     int // messages of a connection; 0: no end
	code     websocket.StatusCode
	header   string // X-Generation of the handshake
	messages atomic.Int64
	conns    atomic.Int64
	handlers sync.WaitGroup

	mu     sync.Mutex
	closed map[websocket.StatusCode]int
}

func (s *echoServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.handlers.Add(1)
	defer s.handlers.Done()
	if s.header != "" {
		w.Header().Set("X-Generation", s.header)
	}
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		s.t.Errorf("%s: %v", r.URL, err)
		return
	}
	defer c.CloseNow()
	s.conns.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for n := 1; ; n++ {
		kind, b, err := c.Read(ctx)
		if err != nil {
			s.mu.Lock()
			s.closed[websocket.CloseStatus(err)]++
			s.mu.Unlock()
			return
		}
		s.messages.Add(1)
		if n%7 == 0 {
			// The pong is read by the loop's next Read, hence no wait.
			s.handlers.Go(func() { _ = c.Ping(ctx) })
		}
		if err := c.Write(ctx, kind, b); err != nil {
			s.t.Errorf("echo: %v", err)
			return
		}
		if n == s.each {
			if err := c.Close(s.code, "restart"); err != nil {
				s.t.Errorf("the close was not answered: %v", err)
			}
			return
		}
	}
}

func startEcho(t *testing.T, s *echoServer) (address string) {
	t.Helper()
	s.t, s.closed = t, map[websocket.StatusCode]int{}
	srv := httptest.NewServer(s)
	t.Cleanup(func() { srv.Close(); s.handlers.Wait() })
	return srv.Listener.Addr().String()
}

// TestWebSocket against a server of another hand: every message is answered, and the client says goodbye.
func TestWebSocket(t *testing.T) {
	s := &echoServer{header: "4"}
	addr := startEcho(t, s)
	for _, l := range []drill.Load{
		{Clients: 8, Requests: 400},
		{Clients: 2, Requests: 40, Payload: 100},
		{Clients: 2, Requests: 20, Payload: 20 << 10},
		{Clients: 16, Rate: 500, Requests: 200, Plain: &drill.Plain{Path: "/chat"}},
	} {
		s.messages.Store(0)
		s.conns.Store(0)
		l.Mode, l.Address = drill.ModeWebSocket, addr
		rep := run(t, l)
		if rep.OK != l.Requests || rep.Sent != l.Requests || rep.Failed()+rep.Faults() != 0 || int(s.messages.Load()) != l.Requests {
			t.Errorf("the server had %d messages: %s", s.messages.Load(), rep.String())
		}
		if rep.Generations[4] != l.Requests || len(rep.Closes) != 0 || int(s.conns.Load()) > l.Clients {
			t.Errorf("%d connections: %s", s.conns.Load(), rep.String())
		}
	}
	s.handlers.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.closed) != 1 || s.closed[websocket.StatusNormalClosure] == 0 {
		t.Errorf("clients closed with %v, want 1000 only", s.closed)
	}
}

// TestWebSocketClosed: a connection that is closed after an answer, by a code that says to come again, costs nothing, and is
// counted; one closed with a code of an error is a loss of its own.
func TestWebSocketClosed(t *testing.T) {
	const requests, each = 61, 3 // one more, so that the last close comes before the client's own
	for code, lost := range map[websocket.StatusCode]int{
		websocket.StatusGoingAway: 0, websocket.StatusServiceRestart: 0, websocket.StatusNormalClosure: 0,
		websocket.StatusInternalError: requests / each, websocket.StatusPolicyViolation: requests / each,
	} {
		t.Run(fmt.Sprint(int(code)), func(t *testing.T) {
			t.Parallel()
			s := &echoServer{each: each, code: code}
			addr := startEcho(t, s)
			// A pause, so that the close frame does not cross a message on its way.
			rep := run(t, drill.Load{Address: addr, Mode: drill.ModeWebSocket, Clients: 1, Requests: requests, Pause: 20 * time.Millisecond})
			want, closes := map[drill.Kind]int{}, map[int]int{int(code): requests / each}
			if lost > 0 {
				want[drill.KindClosed] = lost
			}
			if d := cmp.Diff(want, rep.Failures); d != "" {
				t.Errorf("failures (-want +got):\n%s\n%s", d, rep.String())
			}
			if d := cmp.Diff(closes, rep.Closes); d != "" {
				t.Errorf("closes (-want +got):\n%s", d)
			}
			if rep.OK != requests || int(s.messages.Load()) != requests || rep.Sent != rep.OK+rep.Failed() {
				t.Errorf("the server had %d messages: %s", s.messages.Load(), rep.String())
			}
		})
	}
}

// wsPeer is the broken server's view of one WebSocket.
type wsPeer struct{ *peer }

// accept does the handshake.
func (p *wsPeer) accept() bool {
	req := p.peer.next()
	if req == nil {
		return false
	}
	sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	p.write("HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n")
	return true
}

// frame reads one short frame.
func (p *wsPeer) frame() (opcode byte, payload []byte, ok bool) {
	var head [2]byte
	if _, err := io.ReadFull(p.in, head[:]); err != nil {
		return 0, nil, false
	}
	n := int(head[1] & 0x7f)
	if n == 126 {
		var long [2]byte
		_, _ = io.ReadFull(p.in, long[:])
		n = int(binary.BigEndian.Uint16(long[:]))
	}
	b := make([]byte, 4+n)
	if _, err := io.ReadFull(p.in, b); err != nil || head[1]&0x80 == 0 {
		return 0, nil, false
	}
	for i := range n {
		b[4+i] ^= b[i%4]
	}
	return head[0] & 0x0f, b[4:], true
}

// out writes one frame; head is its first byte.
func (p *wsPeer) out(head byte, payload string) {
	p.write(string([]byte{head, 126, byte(len(payload) >> 8), byte(len(payload))}) + payload)
}

// close writes a close frame and waits for the client's.
func (p *wsPeer) close(code uint16) {
	p.write(string([]byte{0x88, 2, byte(code >> 8), byte(code)}))
	for {
		if opcode, _, ok := p.frame(); !ok || opcode == 8 {
			return
		}
	}
}

// TestWebSocketKinds has every way of going wrong made by a broken server, at the fifth message of each connection, with the exact
// count. What goes wrong with no message under way counts as a request of its own.
func TestWebSocketKinds(t *testing.T) {
	const requests, every = 50, 5
	tests := []struct {
		name  string
		want  drill.Kind
		extra bool // the message before it was answered
		code  int  // counted close code
		do    func(p *wsPeer, text string) (closes bool)
	}{
		{"eof", drill.KindEOF, false, 1006, func(*wsPeer, string) bool { return true }},
		{"reset", drill.KindReset, false, 1006, func(p *wsPeer, _ string) bool { p.reset(); return true }},
		{"cut in a frame", drill.KindTruncated, false, 1006, func(p *wsPeer, text string) bool { p.write("\x81\x20" + text[:3]); return true }},
		{"cut between parts", drill.KindTruncated, false, 1006, func(p *wsPeer, text string) bool { p.out(0x01, text[:3]); return true }},
		{"closed before the answer", drill.KindClosed, false, 1012, func(p *wsPeer, _ string) bool { p.close(1012); return true }},
		{"eof while idle", drill.KindEOF, true, 1006, func(p *wsPeer, text string) bool { p.out(0x81, text); return true }},
		{"reset after the answer", drill.KindReset, true, 1006, func(p *wsPeer, text string) bool {
			p.out(0x81, text)
			_, _ = p.in.Peek(1) // no client sends before it has paused: this is its next message, and what it says is that the answer came
			p.reset()
			return true
		}},
		{"answered twice", drill.KindDuplicate, true, 0, func(p *wsPeer, text string) bool {
			p.out(0x81, text)
			p.out(0x81, text)
			return false
		}},
		{"another number", drill.KindWrongBody, false, 0, func(p *wsPeer, _ string) bool { p.out(0x81, body(1, "77777")); return false }},
		{"checksum", drill.KindWrongBody, false, 0, func(p *wsPeer, text string) bool {
			p.out(0x81, strings.Replace(text, "crc32=", "crc32=0", 1))
			return false
		}},
		{"masked", drill.KindWrongBody, false, 1006, func(p *wsPeer, _ string) bool { p.write("\x81\x82abcdef"); return false }},
		{"no answer", drill.KindTimeout, false, 0, func(*wsPeer, string) bool { return false }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var seen atomic.Int64
			addr := breakable(t, func(p *peer) {
				w := &wsPeer{p}
				if !w.accept() {
					return
				}
				for i := 1; ; i++ {
					opcode, text, ok := w.frame()
					switch {
					case !ok:
						return
					case opcode == 8:
						w.write("\x88\x00")
						return
					}
					seen.Add(1)
					if i%every != 0 {
						w.out(0x01, string(text[:5])) // in two parts, with a ping between
						w.write("\x89\x01p")
						w.out(0x80, string(text[5:]))
						if opcode, text, ok := w.frame(); !ok || opcode != 10 || string(text) != "p" {
							t.Errorf("want a pong: %d %q", opcode, text)
							return
						}
					} else if tt.do(w, string(text)) {
						return
					}
				}
			})
			l := drill.Load{Address: addr, Mode: drill.ModeWebSocket, Clients: 1, Requests: requests, Timeout: 10 * time.Second}
			if tt.want == drill.KindTimeout {
				l.Timeout = 200 * time.Millisecond
			}
			if tt.extra {
				l.Pause = 20 * time.Millisecond
			}
			if tt.name == "reset after the answer" {
				// The peek needs the next message, which is then the one that is lost.
				tt.extra, l.Requests = false, requests+requests/every
			}
			rep := run(t, l)
			want := map[drill.Kind]int{tt.want: requests / every}
			if d := cmp.Diff(want, rep.Failures); d != "" {
				t.Errorf("failures (-want +got):\n%s\n%s", d, rep.String())
			}
			if d := cmp.Diff(want, rep.ReusedFailures); d != "" {
				t.Errorf("on reused connections (-want +got):\n%s", d)
			}
			closes := map[int]int{}
			if tt.code != 0 {
				closes[tt.code] = requests / every
			}
			if d := cmp.Diff(closes, rep.Closes); d != "" {
				t.Errorf("closes (-want +got):\n%s", d)
			}
			ok := l.Requests - requests/every
			if tt.extra {
				ok = requests
			}
			if rep.OK != ok || rep.Sent != rep.OK+rep.Failed() {
				t.Errorf("want %d answered: %s", ok, rep.String())
			}
		})
	}
}

// TestWebSocketHandshake: what is no handshake.
func TestWebSocketHandshake(t *testing.T) {
	tests := []struct {
		name, answer string
		want         drill.Kind
	}{
		{"status", "HTTP/1.1 503 X\r\nContent-Length: 0\r\n\r\n", drill.KindBadStatus},
		{"a page", "HTTP/1.1 200 X\r\nContent-Length: 0\r\n\r\n", drill.KindBadStatus},
		{"no HTTP", "hello\r\n\r\n", drill.KindBadStatus},
		{"another key's", "HTTP/1.1 101 X\r\nSec-WebSocket-Accept: abc\r\n\r\n", drill.KindWrongBody},
		{"cut", "HTTP/1.1 10", drill.KindTruncated},
		{"nothing", "", drill.KindEOF},
	}
	for _, tt := range tests {
		addr := breakable(t, func(p *peer) {
			if req := p.next(); req == nil || req.Header.Get("Sec-WebSocket-Version") != "13" || req.URL.Path != "/ws" {
				t.Errorf("request %v", req)
			}
			p.write(tt.answer)
		})
		rep := run(t, drill.Load{Address: addr, Mode: drill.ModeWebSocket, Clients: 1, Requests: 6})
		if d := cmp.Diff(map[drill.Kind]int{tt.want: 6}, rep.Failures); d != "" {
			t.Errorf("%s: failures (-want +got):\n%s\n%s", tt.name, d, rep.String())
		}
	}
}

// TestWebSocketAnswers: a server without the contract may greet, and may put the number among other words; one that keeps it may not.
func TestWebSocketAnswers(t *testing.T) {
	addr := breakable(t, func(p *peer) {
		w := &wsPeer{p}
		if !w.accept() {
			return
		}
		w.out(0x81, "welcome")
		for {
			opcode, text, ok := w.frame()
			if !ok || opcode == 8 {
				w.write("\x88\x00")
				return
			}
			w.out(0x81, "somebody has come in")
			w.out(0x81, "you said: "+string(text))
		}
	})
	for plain, failed := range map[*drill.Plain]int{{}: 0, nil: 20} {
		rep := run(t, drill.Load{Address: addr, Mode: drill.ModeWebSocket, Clients: 2, Requests: 20, Plain: plain})
		if rep.OK != 20-failed || rep.Failures[drill.KindWrongBody] < failed || failed == 0 && rep.Failed() > 0 {
			t.Errorf("want %d failures: %s", failed, rep.String())
		}
	}
	contract := breakable(t, func(p *peer) {
		w := &wsPeer{p}
		if !w.accept() {
			return
		}
		for {
			opcode, text, ok := w.frame()
			if !ok || opcode == 8 {
				w.write("\x88\x00")
				return
			}
			number, _, _ := strings.Cut(strings.TrimPrefix(string(text), "n="), " ")
			w.out(0x82, body(6, number))
		}
	})
	rep := run(t, drill.Load{Address: contract, Mode: drill.ModeWebSocket, Clients: 2, Requests: 20})
	if rep.OK != 20 || rep.Generations[6] != 20 {
		t.Errorf("answers of the contract: %s", rep.String())
	}
}

// TestWebSocketIdleLoss: a connection that dies while nothing is sent is counted when it dies, not when it is used next.
func TestWebSocketIdleLoss(t *testing.T) {
	die := make(chan struct{})
	addr := breakable(t, func(p *peer) {
		w := &wsPeer{p}
		if !w.accept() {
			return
		}
		if _, text, ok := w.frame(); ok {
			w.out(0x81, string(text))
		}
		if p.conn == 0 {
			<-die
			return
		}
		_, _ = bufio.NewReader(p.c).ReadByte()
	})
	r, err := drill.Start(t.Context(), drill.Load{
		Network: "tcp", Address: addr, Mode: drill.ModeWebSocket, Clients: 1, Pause: time.Minute, Duration: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WaitOK(t.Context(), 1); err != nil {
		t.Error(err)
	}
	w := r.Mark("reload")
	close(die)
	if err := w.Wait(t.Context(), 1); err != nil {
		t.Error(err)
	}
	w.End()
	rep := r.Stop()
	if rep.Failures[drill.KindEOF] != 1 || rep.Windows[0].Blamed[drill.KindEOF] != 1 || rep.Closes[1006] != 1 || rep.Sent != 2 {
		t.Errorf("want one connection lost in the window: %s", rep.String())
	}
}
