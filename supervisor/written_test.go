package supervisor

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/handoverd/handover/internal/proc"
)

// stateReader is a log handler that reads the state file at each line of an
// action, as handoverd would find it if it were killed in that moment.
type stateReader struct {
	slog.Handler
	path string
	read []State
}

func (r *stateReader) Handle(context.Context, slog.Record) error {
	b, err := os.ReadFile(r.path)
	var s State
	if err == nil && json.Unmarshal(b, &s) == nil {
		r.read = append(r.read, s)
	} else {
		r.read = append(r.read, State{})
	}
	return nil
}
func (r *stateReader) Enabled(context.Context, slog.Level) bool { return true }

// TestStateIsWrittenBeforeActions: what an action follows from is in the state
// file by the time it is carried out. "go" to a program is such an action.
func TestStateIsWrittenBeforeActions(t *testing.T) {
	dir := t.TempDir()
	log := &stateReader{path: filepath.Join(dir, "state.json")}
	s, err := New(Options{
		Log: slog.New(log), Load: func() (*Config, error) { return &Config{RuntimeDir: dir}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLoop(s)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		l.output.close(0)
		if err := l.dir.close(false); err != nil {
			t.Error(err)
		}
	}()
	l.ctx = t.Context()
	// The generation is about to be told "go", and looking at it says something
	// that is noted: both in one turn each.
	w := newScript(t)
	w.now = proc.Now()
	w.send(evReload{Request: 1, First: true}).prepared(web())
	l.state = w.s
	l.turn(evSpawned{at: g("web", 1), PID: 4242, StartTime: 77, Token: "tok"})
	log.read = nil
	l.turn(evSight{at: g("web", 1), Blind: true})
	if len(log.read) == 0 {
		t.Fatal("no action was carried out")
	}
	got := log.read[len(log.read)-1].Services["web"].gen(1)
	if got == nil || got.PID != 4242 || got.StartTime != 77 || got.Token != "tok" || !got.Blind {
		t.Errorf("an action was carried out before the state was written: %+v", got)
	}
}
