package drain_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/handoverd/handover/drain"
)

// A stopper behaves like grpc-go where that is hard: it closes a connection that
// it has accepted and not looked at when the stop begins, and its GracefulStop
// closes the listener, waits for Serve, then for the connections. See
// examples/grpc for the real one.
type stopper struct {
	l        net.Listener
	look     chan struct{} // it looks at a connection when this is closed
	quit     chan struct{}
	wg       sync.WaitGroup
	serving  sync.WaitGroup
	unlooked int
}

func (s *stopper) serve() {
	for {
		c, err := s.l.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() {
			<-s.look
			select {
			case <-s.quit:
				s.unlooked++
				c.Close()
				return
			default:
			}
			io.Copy(c, c)
			c.Close()
		})
	}
}

func (s *stopper) GracefulStop() {
	close(s.quit)
	s.l.Close()
	s.serving.Wait()
	s.wg.Wait()
}

func (s *stopper) Stop() {}

func newStopper(l net.Listener) *stopper {
	return &stopper{l: l, look: make(chan struct{}), quit: make(chan struct{})}
}

func TestGracefulStopComesAfterTheLastConnectionIsTakenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := newStopper(nil)
		g := drain.Graceful(s)
		s.l = g.Listener(l)
		s.serving.Go(s.serve)
		c := l.dial()
		synctest.Wait()
		done := make(chan error)
		go func() { done <- g.Shutdown(t.Context()) }()
		time.Sleep(time.Second)
		close(s.look)
		if _, err := io.WriteString(c, "ping"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "ping" {
			t.Errorf("got %q, %v", b, err)
		}
		c.Close()
		if err := <-done; err != nil || s.unlooked > 0 {
			t.Errorf("Shutdown = %v, %d closed unseen", err, s.unlooked)
		}
	})
}

func TestGracefulStopAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := newStopper(nil)
		close(s.look)
		g := drain.Graceful(s)
		s.l = g.Listener(l)
		s.serving.Go(s.serve)
		c := l.dial()
		io.WriteString(c, "ping")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		begin := time.Now()
		inc, ok := errors.AsType[*drain.IncompleteError](g.Shutdown(ctx))
		if !ok || inc.Active != 1 || time.Since(begin) != 5*time.Second {
			t.Errorf("%+v after %v", inc, time.Since(begin))
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		c.Close()
	})
}
