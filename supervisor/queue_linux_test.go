package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// oneSocket is a socket table with one socket, "key".
func oneSocket(t *testing.T, address string) (*socketTable, *fdpass.Socket) {
	t.Helper()
	a, o, err := fdpass.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	s, err := fdpass.Bind(a, o)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := newPathWatcher()
	if err != nil {
		t.Fatal(err)
	}
	harm, err := newHarmWatcher()
	if err != nil {
		t.Fatal(err)
	}
	tab := newSocketTable(slog.New(slog.DiscardHandler), paths, harm)
	tab.add(map[string]*fdpass.Socket{"key": s})
	t.Cleanup(func() {
		tab.closeAll(func(string) bool { return false })
		_, _ = paths.close(), harm.close()
	})
	return tab, s
}

func dialSocket(s *fdpass.Socket, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	network, address := "tcp", fmt.Sprintf("127.0.0.1:%d", s.Addr().Port)
	if path, ok := pathOf(s); ok {
		network, address = "unix", path
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err == nil {
		_ = c.Close()
	}
	// The end of the wait is told by the context or by the poller, whichever is first.
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return context.DeadlineExceeded
	}
	return err
}

// While a TCP socket leaves new connections wait; one that is needed again takes them as if nothing had been.
func TestQueueFilter(t *testing.T) {
	tab, s := oneSocket(t, "tcp4://127.0.0.1:0")
	none, all := map[string]bool{}, map[string]bool{"key": true}
	if err := dialSocket(s, time.Second); err != nil { // waits in the queue from now on
		t.Fatal(err)
	}
	begin := proc.Now()
	tab.keep(none, all, begin)
	if tab.open["key"] != nil || tab.leaving["key"] == nil || tab.next() == 0 {
		t.Fatalf("it does not leave: %+v", tab)
	}
	if err := dialSocket(s, 200*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a new connection to a socket that leaves: %v, want that it waits", err)
	}
	tab.leave(begin.Add(emptyLimit - 1)) // the one in the queue keeps it
	if tab.leaving["key"] == nil {
		t.Fatal("closed with a connection in its queue")
	}
	if tab.known()["key"] != s {
		t.Error("a reload cannot keep it")
	}
	tab.keep(all, none, begin.Add(emptyLimit-1))
	if tab.open["key"] != s || len(tab.leaving) != 0 {
		t.Fatalf("it is not back: %+v", tab)
	}
	if err := dialSocket(s, time.Second); err != nil {
		t.Errorf("a new connection to a socket that is back: %v", err)
	}
}

// A queue that is empty for a while ends the leave; so does the end of whoever accepts, and the limit.
func TestQueueEnds(t *testing.T) {
	none, all := map[string]bool{}, map[string]bool{"key": true}
	for name, c := range map[string]struct {
		queued  bool
		emptied map[string]bool
		after   time.Duration
		gone    bool
	}{
		"empty, not long enough": {false, all, emptyFor - 1, false},
		"empty":                  {false, all, emptyFor, true},
		"full":                   {true, all, emptyLimit - 1, false},
		"full at the limit":      {true, all, emptyLimit, true},
		"nobody accepts":         {true, none, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			tab, s := oneSocket(t, "tcp4://127.0.0.1:0")
			if c.queued {
				if err := dialSocket(s, time.Second); err != nil {
					t.Fatal(err)
				}
			}
			begin := proc.Now()
			tab.keep(none, all, begin)
			tab.keep(none, c.emptied, begin.Add(c.after))
			if gone := tab.leaving["key"] == nil; gone != c.gone {
				t.Errorf("after %v it is gone: %v", c.after, gone)
			}
		})
	}
}

// The path of a UNIX socket goes first, and a socket bound there anew is another one.
func TestQueueUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	tab, s := oneSocket(t, "unix://"+path)
	if err := dialSocket(s, time.Second); err != nil {
		t.Fatal(err)
	}
	none, all := map[string]bool{}, map[string]bool{"key": true}
	begin := proc.Now()
	tab.keep(none, all, begin)
	if err := dialSocket(s, time.Second); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a new connection: %v", err)
	}
	tab.leave(begin.Add(emptyLimit - 1))
	if tab.leaving["key"] == nil {
		t.Error("closed with a connection in its queue")
	}
	if tab.known()["key"] != nil {
		t.Error("it counts as known, and its path is gone")
	}
	fresh, err := fdpass.Bind(s.Addr(), s.Options())
	if err != nil {
		t.Fatal(err)
	}
	tab.add(map[string]*fdpass.Socket{"key": fresh})
	tab.keep(all, none, begin.Add(emptyLimit))
	if tab.open["key"] != fresh || len(tab.leaving) != 0 {
		t.Errorf("the old one is not gone, or the new one not there: %+v", tab)
	}
	if err := dialSocket(fresh, time.Second); err != nil {
		t.Errorf("the new one's path: %v", err)
	}
}

// A filter is taken off a socket that has none, too: whoever takes a socket over does not know.
func TestQueueFilterTwice(t *testing.T) {
	_, s := oneSocket(t, "tcp4://127.0.0.1:0")
	for range 2 {
		if err := takeConnections(s.FD()); err != nil {
			t.Fatal(err)
		}
	}
	if err := dropConnections(-1); !errors.Is(err, unix.EBADF) {
		t.Errorf("no descriptor: %v", err)
	}
}
