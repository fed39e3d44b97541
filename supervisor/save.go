package supervisor

import (
	"maps"
	"reflect"
)

// save writes the state file. If that fails what serves goes on serving; the next
// turn tries again, which comes within tryAgain.
func (l *loop) save(s *State) error {
	err := l.dir.save(s, l.held())
	switch {
	case err != nil && (l.saveErr == nil || err.Error() != l.saveErr.Error()):
		l.log.Error("state not written: reloads are refused until it is", "err", err)
	case err == nil && l.saveErr != nil:
		l.log.Info("state written again")
	}
	if err == nil {
		l.heldSaved = l.held()
		l.heldSaved.Closed = maps.Clone(l.missing) // else the two would always be the same
	}
	l.saveErr = err
	return err
}

// saveHeld writes the state once more where the actions have closed or opened a socket, or replaced the keeper: nothing else
// may happen for hours, and the file is to say what there is.
func (l *loop) saveHeld() {
	if l.dir.last == nil || l.saveErr != nil || reflect.DeepEqual(l.held(), l.heldSaved) {
		return
	}
	_ = l.save(&l.state) // tried again by a later turn
}
