package supervisor

import (
	"context"
	"io"
	"log/slog"
	"testing"
)

// TestStopBesideUpgrade: somebody has asked for a stop, and systemd is asked what follows it: handoverd is not executed
// anew until the stop is in the state, else nobody would know of it.
func TestStopBesideUpgrade(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // systemctl is not run
	l := &loop{
		log: slog.New(slog.NewTextHandler(io.Discard, nil)), output: &output{}, dir: &runtimeDir{path: t.TempDir()}, ctx: ctx,
		events: make(chan event, 1), calls: make(chan func(), 4), ended: make(chan struct{}),
	}
	l.store.room = 1
	if !l.still() {
		t.Fatal("a loop to which nothing happens is not still")
	}
	l.askedToStop(evStop{})
	for len(l.pending) == 0 {
		if l.still() {
			t.Fatal("still, though a stop was asked for")
		}
		(<-l.calls)()
	}
	if e, ok := l.pending[0].(evStop); !ok || !e.Keeps {
		t.Errorf("%+v", l.pending[0])
	}
	l.readers.Wait()
}
