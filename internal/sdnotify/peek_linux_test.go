package sdnotify

import "testing"

// TestPeek: a message that was shown is there until it is dropped.
func TestPeek(t *testing.T) {
	s := listen(t)
	send(t, s, []byte("READY=1\n"))
	send(t, s, []byte("STATUS=second\n"))
	for range 3 {
		if m, _, err := s.Peek(); err != nil || !m.Ready {
			t.Fatalf("%+v, %v, want READY", m, err)
		}
	}
	s.Drop()
	if m, _, err := s.Recv(); err != nil || m.Status != "second" {
		t.Errorf("%+v, %v, want the second", m, err)
	}
	s.Drop() // of nothing
}
