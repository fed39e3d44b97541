package wire

import (
	"errors"
	"io"
	"os"
	"testing"

	"github.com/handoverd/handover/internal/fdleak"
)

// TestPeek: a packet that was shown is there until it is dropped, for another holder of the socket as well.
func TestPeek(t *testing.T) {
	fdleak.Snapshot(t)
	c, childFD, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	child, err := NewConn(childFD)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []Verb{Hello, Ready} {
		if err := child.Send(Message{Verb: v}); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if m, _, err := c.Peek(); err != nil || m.Verb != Hello {
			t.Fatalf("%v, %v, want hello", m.Verb, err)
		}
	}
	c.Drop()
	if m, _, err := c.Recv(); err != nil || m.Verb != Ready {
		t.Errorf("%v, %v, want ready", m.Verb, err)
	}
	c.Drop() // of nothing
	if err := child.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Peek(); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want EOF", err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	c.Drop()
}

// A wait for the peer to receive ends when it has received all, and when its end is closed; a message that was only looked
// at is not received. Nobody else waits for it.
func TestUnread(t *testing.T) {
	for _, how := range []string{"received", "closed by the peer", "closed here"} {
		t.Run(how, func(t *testing.T) {
			noLeak(t)
			a, b := pair(t)
			for range 2 {
				if err := a.Send(Message{Verb: Drain}); err != nil {
					t.Fatal(err)
				}
			}
			u, err := a.Unread()
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- u.Wait() }() // received below
			if _, _, err := b.Peek(); err != nil {
				t.Fatal(err)
			}
			if _, _, err := b.Recv(); err != nil {
				t.Fatal(err)
			}
			if err := a.Send(Message{Verb: Drain}); err != nil { // it does not hold up who sends
				t.Fatal(err)
			}
			select {
			case err := <-done:
				t.Fatalf("with two messages unread: %v", err)
			default:
			}
			want := error(nil)
			switch how {
			case "received":
				for range 2 {
					if _, _, err := b.Recv(); err != nil {
						t.Fatal(err)
					}
				}
			case "closed by the peer":
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
			default:
				want = os.ErrClosed
				if err := u.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-done; !errors.Is(err, want) {
				t.Errorf("got %v, want %v", err, want)
			}
			_ = u.Close()
		})
	}
}
