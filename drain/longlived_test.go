package drain_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/handoverd/handover/drain"
)

// restart is a WebSocket close frame with code 1012, from a server.
const restart = "\x88\x02\x03\xf4"

// lastEvent is how an event stream ends.
const lastEvent = "retry: 500\nevent: restart\ndata: \n\n"

// longLived serves WebSockets and event streams, each of which says goodbye, and
// uploads.
func longLived(streams *drain.Streams) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ws", func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		var out sync.Mutex
		say := func(s string) {
			out.Lock()
			defer out.Unlock()
			io.WriteString(conn, s)
		}
		say("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		done, err := streams.Add("ws "+r.RemoteAddr, func(drain.Reason) { say(restart) }, conn.Close)
		if err != nil {
			return
		}
		defer done()
		io.Copy(io.Discard, conn) // until the client closes
	})
	mux.HandleFunc("GET /events", func(w http.ResponseWriter, r *http.Request) {
		leave := make(chan struct{})
		done, err := streams.Add("events "+r.RemoteAddr, func(drain.Reason) { close(leave) }, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer done()
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, ": hello\n\n")
		http.NewResponseController(w).Flush()
		select {
		case <-leave:
			io.WriteString(w, lastEvent)
		case <-r.Context().Done():
		}
	})
	mux.HandleFunc("POST /upload", func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	return mux
}

// Clients that stay for ever are told, each in its protocol, over real sockets;
// an upload that began before goes through; nobody is left hanging or reset.
func TestLongLivedConnectionsAreToldToLeave(t *testing.T) {
	const each = 100
	streams := &drain.Streams{Window: 300 * time.Millisecond}
	r := newRig(t, &http.Server{Handler: longLived(streams)})
	var wg sync.WaitGroup
	var told atomic.Int64
	for range each {
		ws, sse := r.dial(), r.dial()
		ws.send(strings.Replace(upgrade, "GET /", "GET /ws", 1))
		if resp, err := http.ReadResponse(ws.br, nil); err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%+v, %v", resp, err)
		}
		sse.send("GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(sse.br, nil)
		if err != nil {
			t.Fatal(err)
		}
		events := bufio.NewReader(resp.Body)
		if line, err := events.ReadString('\n'); err != nil || line != ": hello\n" {
			t.Fatalf("%q, %v", line, err)
		}
		wg.Go(func() {
			b := make([]byte, len(restart))
			if _, err := io.ReadFull(ws.br, b); err != nil || string(b) != restart {
				t.Errorf("WebSocket: %x, %v", b, err)
				return
			}
			ws.conn.Close()
			told.Add(1)
		})
		wg.Go(func() {
			defer sse.conn.Close()
			if b, err := io.ReadAll(events); err != nil || string(b) != "\n"+lastEvent {
				t.Errorf("event stream: %q, %v", b, err)
				return
			}
			told.Add(1)
		})
	}
	upload := r.dial()
	upload.send("POST /upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10\r\n\r\n12345")
	seq := &drain.Sequence{Deadline: 30 * time.Second}
	seq.Add("streams", streams)
	seq.Add("http", r.server)
	seq.Begin("test")
	done := make(chan error)
	go func() { done <- seq.Run(t.Context()) }()
	wg.Wait()
	select {
	case err := <-done:
		t.Fatalf("Run = %v with an upload under way", err)
	default:
	}
	upload.send("67890")
	if body, _ := upload.answer(); body != "1234567890" {
		t.Errorf("upload: %q", body)
	}
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
	if n := told.Load(); n != 2*each {
		t.Errorf("%d of %d were told", n, 2*each)
	}
}

// A raw TCP protocol of lines, its goodbye a line of its own.
func TestRawTCPIsToldToLeave(t *testing.T) {
	var group drain.Group
	streams := &drain.Streams{}
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := group.Listener(inner)
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			go func() {
				defer c.Close()
				done, err := streams.Add(c.RemoteAddr().String(), func(drain.Reason) { io.WriteString(c, "bye\n") }, c.Close)
				if err != nil {
					return
				}
				defer done()
				io.Copy(c, c)
			}()
		}
	}()
	c, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	br := bufio.NewReader(c)
	io.WriteString(c, "hello\n")
	if line, err := br.ReadString('\n'); line != "hello\n" {
		t.Fatal(line, err)
	}
	seq := &drain.Sequence{Deadline: 30 * time.Second}
	seq.Add("tcp", &group)
	seq.Add("streams", streams)
	seq.Begin("test")
	done := make(chan error)
	go func() { done <- seq.Run(t.Context()) }()
	if line, err := br.ReadString('\n'); line != "bye\n" {
		t.Errorf("%q, %v", line, err)
	}
	c.Close()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
}
