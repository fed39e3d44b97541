package drain_test

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/handoverd/handover/drain"
)

// A heavy listener takes long to close, and tells when it has.
type heavy struct {
	*pipeListener
	r *diary
}

func (l *heavy) Close() error {
	<-time.After(300 * time.Millisecond) // of a fake clock
	err := l.pipeListener.Close()
	l.r.note("closed")
	return err
}

// A diary is lines of several goroutines, in order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// Whoever is told to leave may connect anew at once: before anybody is, the listeners
// of all targets are closed.
func TestListenersAreClosedBeforeAnybodyIsTold(t *testing.T) {
	ways := map[string]func(t *testing.T, targets ...drain.Target) error{
		"All": func(t *testing.T, targets ...drain.Target) error { return drain.All(t.Context(), targets...) },
		"Sequence": func(t *testing.T, targets ...drain.Target) error {
			s := &drain.Sequence{}
			for _, target := range targets {
				s.Add("", target)
			}
			s.Begin("")
			return s.Run(t.Context())
		},
	}
	for name, leave := range ways {
		synctest.Test(t, func(t *testing.T) {
			var d diary
			l := &heavy{newPipeListener(), &d}
			server := drain.HTTP(&http.Server{Handler: http.HandlerFunc(hello)})
			go server.Serve(l)
			c := dialPipe(t, l.pipeListener)
			c.send(get)
			c.answer()

			streams := &drain.Streams{}
			done, err := streams.Add("ws", func(drain.Reason) { d.note("goodbye") }, nil)
			if err != nil {
				t.Fatal(err)
			}
			var raw drain.Group
			first, err := raw.Start()
			if err != nil {
				t.Fatal(err)
			}
			told := make(chan struct{})
			go func() {
				<-raw.Draining()
				d.note("draining")
				close(told)
			}()
			over := make(chan error)
			go func() { over <- leave(t, streams, &raw, server) }()

			time.Sleep(200 * time.Millisecond) // it is being closed
			c.send(get)
			if _, closes := c.answer(); closes {
				t.Errorf("%s: a client was asked to leave before the listener was closed", name)
			}
			second, err := raw.Start()
			if err != nil {
				t.Fatalf("%s: %v, before the listener was closed", name, err)
			}
			<-told
			synctest.Wait() // the others are as well
			if _, err := raw.Start(); !errors.Is(err, drain.ErrDraining) {
				t.Errorf("%s: admitted while draining: %v", name, err)
			}
			c.send(get)
			if _, closes := c.answer(); !closes {
				t.Errorf("%s: nobody was asked to leave afterwards", name)
			}
			done()
			first()
			second()
			if err := <-over; err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if len(d.lines) != 3 || d.lines[0] != "closed" {
				t.Errorf("%s: %v", name, d.lines)
			}
		})
	}
}

// CloseListeners alone tells nobody: connections are served as before, HTTP/2 has no
// GOAWAY, and Serve goes on.
func TestCloseListenersTellsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		s := drain.HTTP(&http.Server{Handler: http.HandlerFunc(hello), Protocols: h2c()})
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		c := dialPipe(t, l)
		h2 := frameClient{t, l.dial()}
		go io.WriteString(h2, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"+
			"\x00\x00\x06\x01\x05\x00\x00\x00\x01\x82\x86\x84\x41\x01x")
		goAways := make(chan time.Time, 1)
		go func() {
			for h2.next().Type != 0x7 {
			}
			goAways <- time.Now()
			h2.Close()
		}()
		c.send(get)
		c.answer()
		for range 2 {
			if err := s.CloseListeners(); err != nil {
				t.Errorf("CloseListeners = %v", err)
			}
		}
		time.Sleep(time.Minute)
		c.send(get)
		if _, closes := c.answer(); closes {
			t.Error("asked to leave")
		}
		select {
		case <-goAways:
			t.Error("GOAWAY")
		case err := <-served:
			t.Errorf("Serve = %v", err)
		case <-s.Draining():
			t.Error("draining")
		default:
		}
		over := make(chan error)
		go func() { over <- s.Shutdown(t.Context()) }()
		synctest.Wait()
		c.send(get)
		if _, closes := c.answer(); !closes {
			t.Error("not asked to leave by Shutdown")
		}
		<-goAways
		if err := <-over; err != nil {
			t.Errorf("Shutdown = %v", err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve = %v", err)
		}
	})
}

// A listener that hangs in Close holds up the others for a second and no longer.
func TestListenerThatHangs(t *testing.T) {
	t.Parallel()
	free := make(chan struct{})
	var g drain.Group
	g.Listener(hanging{newPipeListener(), free})
	s := &drain.Streams{}
	begin := time.Now()
	var took time.Duration
	added := make(chan func(), 1)
	done, err := s.Add("ws", func(drain.Reason) {
		took = time.Since(begin)
		close(free)
		(<-added)()
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	added <- done
	if err := drain.All(t.Context(), &g, s); err != nil || took < time.Second {
		t.Errorf("All = %v, told after %v", err, took)
	}
}

type hanging struct {
	*pipeListener
	free chan struct{}
}

func (l hanging) Close() error {
	<-l.free
	return l.pipeListener.Close()
}
