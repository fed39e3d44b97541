package wire

import (
	"errors"
	"io"
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
