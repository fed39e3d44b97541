package drain_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	t.Parallel() // waits for seconds that are net/http's and ours
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
	for range 3 { // round trips, in which it is told nothing
		late.send(frame{Type: 0x6, Payload: "12345678"})
		if d := cmp.Diff(frame{Type: 0x6, Flags: 1, Payload: "12345678"}, late.next()); d != "" {
			t.Fatalf("before its first request (-want +got):\n%s", d)
		}
	}
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
