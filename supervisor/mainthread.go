package supervisor

import (
	"runtime"
	"time"
)

// MainThread runs functions on one operating system thread, one after the
// other. A program that asks for a signal at its parent's death gets it when the
// thread that started it ends (PR_SET_PDEATHSIG, prctl(2)), so children are
// started by a thread that never does: the process's first one, to which main
// locks itself in an init and on which it calls Serve and nothing else.
type MainThread struct {
	calls chan func()
}

// NewMainThread returns a MainThread on which nothing runs until Serve is called.
func NewMainThread() *MainThread { return &MainThread{calls: make(chan func())} }

// Serve runs what is passed to Do until done is closed. The caller has locked
// its goroutine to the thread.
func (t *MainThread) Serve(done <-chan struct{}) {
	for {
		select {
		case f := <-t.calls:
			f()
		case <-done:
			return
		}
	}
}

// Do runs f on the thread and waits for it.
func (t *MainThread) Do(f func()) {
	done := make(chan struct{})
	t.calls <- func() { defer close(done); f() }
	<-done
}

// Offer runs f on the thread if that takes it within limit, waits for it, and reports
// whether it did.
func (t *MainThread) Offer(f func(), limit time.Duration) bool {
	done := make(chan struct{})
	select {
	case t.calls <- func() { defer close(done); f() }:
	case <-time.After(limit):
		return false
	}
	<-done
	return true
}

// lockedThread serves t from a goroutine that locks itself to a thread, for
// processes whose main goroutine does something else (tests). Run waits for it.
func lockedThread(t *MainThread, done <-chan struct{}) {
	runtime.LockOSThread()
	t.Serve(done)
}
