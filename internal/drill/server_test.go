package drill_test

import (
	"bufio"
	"fmt"
	"hash/crc32"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/internal/site"
)

// serveSite serves the real site as that generation until the test ends.
func serveSite(t *testing.T, ln net.Listener, generation int) *http.Server {
	t.Helper()
	srv := &http.Server{Handler: site.Handler(generation)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(ln)
	}()
	t.Cleanup(func() {
		srv.Close()
		<-done
	})
	return srv
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// tempSocket is a short path: sun_path holds 108 bytes.
func tempSocket(t *testing.T) string { return filepath.Join(t.TempDir(), "s") }

// peer is the broken server's view of one connection.
type peer struct {
	c    *net.TCPConn
	in   *bufio.Reader
	conn int // number of the connection, from 0
}

// next reads one request; nil: the client has gone.
func (p *peer) next() *http.Request {
	req, err := http.ReadRequest(p.in)
	if err != nil {
		return nil
	}
	return req
}

func (p *peer) write(s string) { _, _ = p.c.Write([]byte(s)) }

// reset makes the close of the connection an RST.
func (p *peer) reset() { _ = p.c.SetLinger(0) }

// body is a right answer's body.
func body(generation int, number string) string {
	return sum(fmt.Sprintf("generation=%d n=%s", generation, number))
}

// reply is an answer with that body; extra are more header lines.
func reply(status, generation int, number, body, extra string) string {
	return fmt.Sprintf("HTTP/1.1 %d X\r\nX-Generation: %d\r\nX-Request-Number: %s\r\nContent-Length: %d\r\n%s\r\n%s",
		status, generation, number, len(body), extra, body)
}

func good(req *http.Request) string {
	n := req.URL.Query().Get("n")
	return reply(200, 1, n, body(1, n), "")
}

// breakable serves each connection with serve, which returns to close it.
func breakable(t *testing.T, serve func(p *peer)) (address string) {
	t.Helper()
	ln := listen(t, "tcp4", "127.0.0.1:0")
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				serve(&peer{c: c.(*net.TCPConn), in: bufio.NewReader(c), conn: i})
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return ln.Addr().String()
}

// run runs a load to its bound of requests and returns the report.
func run(t *testing.T, l drill.Load) drill.Report {
	t.Helper()
	if l.Network == "" {
		l.Network = "tcp"
	}
	r, err := drill.Start(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	<-r.Done()
	return r.Stop()
}

// sum appends the checksum field.
func sum(s string) string { return fmt.Sprintf("%s crc32=%08x\n", s, crc32.ChecksumIEEE([]byte(s))) }
