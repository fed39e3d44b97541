package supervisor

import "testing"

// While systemd is asked what follows a stop, a second request begins it at once. The answer is not known then, so the
// sockets stay in the store, as where it cannot be had: it may be a restart.
func TestSecondStopWhileSystemdIsAsked(t *testing.T) {
	l := &loop{stopAsked: true, store: fdStore{room: 8}}
	l.askedToStop(evStop{})
	if len(l.pending) != 1 || !l.pending[0].(evStop).Keeps {
		t.Errorf("begun as %+v, want that the sockets are kept", l.pending)
	}
	none := &loop{}
	none.askedToStop(evStop{})
	if len(none.pending) != 1 || none.pending[0].(evStop).Keeps {
		t.Errorf("without a store: %+v", none.pending)
	}
}
