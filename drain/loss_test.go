//go:build unix

package drain_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/handoverd/handover/drain"
)

// share opens a second listener on the socket of l, as a new generation does.
func share(t *testing.T, l net.Listener) net.Listener {
	t.Helper()
	rc, err := l.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var fd int
	var derr error
	if err := rc.Control(func(old uintptr) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if fd, derr = syscall.Dup(int(old)); derr == nil {
			syscall.CloseOnExec(fd)
		}
	}); err != nil || derr != nil {
		t.Fatal(err, derr)
	}
	f := os.NewFile(uintptr(fd), "shared")
	defer f.Close()
	second, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	return second
}

// A swarm asks without pause and never twice for the same thing: each failure
// is a lost request.
type swarm struct {
	addr  string
	stop  atomic.Bool
	asked atomic.Int64
	wg    sync.WaitGroup
	mu    sync.Mutex
	lost  []string
}

// run asks with request until stopped, on one connection for as long as the
// server keeps it, or on a new one each time.
func (s *swarm) run(request func(n int) string, fresh bool) {
	defer s.wg.Done()
	var conn net.Conn
	var br *bufio.Reader
	for n := 0; !s.stop.Load(); n++ {
		if conn == nil {
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				s.fail("dial", err)
				continue
			}
			conn, br = c, bufio.NewReader(c)
		}
		s.asked.Add(1)
		closes, err := exchange(conn, br, request(n), n)
		if err != nil {
			s.fail("exchange", err)
		}
		if err != nil || closes || fresh {
			conn.Close()
			conn = nil
		}
	}
	if conn != nil {
		conn.Close()
	}
}

func exchange(conn net.Conn, br *bufio.Reader, request string, n int) (closes bool, err error) {
	if _, err := io.WriteString(conn, request); err != nil {
		return false, err
	}
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		return false, err
	}
	body, err := io.ReadAll(resp.Body)
	if err == nil && string(body) != strconv.Itoa(n) {
		err = fmt.Errorf("asked %d, got %q", n, body)
	}
	return resp.Close, err
}

func (s *swarm) fail(what string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost = append(s.lost, fmt.Sprintf("%s: %v", what, err))
}

func echoNumber(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		io.Copy(w, r.Body)
		return
	}
	io.WriteString(w, r.FormValue("n"))
}

func getNumber(n int) string { return fmt.Sprintf("GET /?n=%d HTTP/1.1\r\nHost: x\r\n\r\n", n) }

func postNumber(n int) string {
	b := strconv.Itoa(n)
	return fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(b), b)
}

// Twenty generations on one socket, each retired under load.
func TestTwentyLeavesLoseNothing(t *testing.T) {
	const leaves, perLeave = 20, 200
	base, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	s := &swarm{addr: base.Addr().String()}
	serve := func() (*drain.Server, chan error) {
		l := share(t, base)
		srv, served := drain.HTTP(&http.Server{Handler: http.HandlerFunc(echoNumber)}), make(chan error, 1)
		go func() { served <- srv.Serve(l) }()
		return srv, served
	}
	leave := func(srv *drain.Server, served chan error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if err := drain.All(ctx, srv); err != nil {
			t.Errorf("leave: %v", err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve = %v", err)
		}
	}
	old, oldServed := serve()
	for range 8 {
		s.wg.Add(3)
		go s.run(getNumber, false)
		go s.run(postNumber, false)
		go s.run(getNumber, true)
	}
	for range leaves {
		next, nextServed := serve()
		want := s.asked.Load() + perLeave
		leave(old, oldServed)
		for s.asked.Load() < want { // paced by work done, not by a clock
			c, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := exchange(c, bufio.NewReader(c), getNumber(1), 1); err != nil {
				t.Fatal(err)
			}
			c.Close()
		}
		old, oldServed = next, nextServed
	}
	s.stop.Store(true)
	s.wg.Wait()
	leave(old, oldServed)
	t.Logf("%d requests, %d leaves, %d lost", s.asked.Load(), leaves, len(s.lost))
	if len(s.lost) > 0 {
		t.Errorf("lost %d of %d, first: %s", len(s.lost), s.asked.Load(), s.lost[0])
	}
}
