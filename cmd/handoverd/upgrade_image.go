package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/handoverd/handover/internal/signals"
	"github.com/handoverd/handover/supervisor"
)

// turnLimit is how long an image that takes over may take to come to its first turn: the
// one before it is executed again then.
const turnLimit = 30 * time.Second

// handedOver is what an image before this one has handed over, and how to go back.
type handedOver struct {
	*supervisor.Handed
	environ []string // without the variable that tells of it
	thread  *supervisor.MainThread
	once    sync.Once
	tail    tailWriter // the last that was written to stderr: the reason, where nothing else is known
}

// runImage is the program: of an image that takes over, or of any other.
func runImage(e *env, text string, args []string) int {
	read, err := supervisor.ReadHanded(text)
	if read == nil && err == nil {
		return run(e, args)
	}
	if read == nil {
		_, _ = fmt.Fprintf(e.stderr, "handoverd: %v\n", err)
		return exitFailed
	}
	h := &handedOver{Handed: read, environ: environ(), tail: tailWriter{to: e.stderr, wanted: read.Pending}}
	e.handed, e.stderr = h, &h.tail
	defer h.backOnPanic()
	code := exitFailed
	if err == nil {
		code = run(e, args)
		err = fmt.Errorf("exit code %d: %s", code, h.tail.last())
	}
	if h.Rehearsal() { // which has answered, if it has come that far
		_ = h.Answer(versionText(), err)
		return code
	}
	h.back(err)
	return code
}

// back executes the image before this one again, if this one has not come to its first
// turn. It returns if that was so, or if it cannot be done.
func (h *handedOver) back(reason error) {
	if h == nil || !h.Pending() || h.Rehearsal() {
		return
	}
	h.once.Do(func() {
		_, ignored := signals.Ignore()
		_, deadly := signals.Default()
		reason = errors.Join(reason, ignored, deadly)
		environ := h.environ
		if sig := caught.unobeyed(); sig != 0 {
			environ = append(slices.Clone(environ), fmt.Sprintf("%s=%d", signals.Variable, sig))
		}
		_, _ = fmt.Fprintf(h.tail.to, "handoverd %s cannot take over, the one before is executed again: %v\n", versionText(), reason)
		execute := func() {
			if err := h.Back(environ, reason.Error()); err != nil && h.Pending() { // else its first turn has come, after all
				_, _ = fmt.Fprintf(h.tail.to, "handoverd: the one before cannot be executed again: %v; the next start takes over what runs\n", err)
				os.Exit(exitFailed)
			}
		}
		// The main thread, if it serves: what it has started is its own.
		if h.thread == nil || !h.thread.Offer(execute, time.Second) {
			execute()
		}
	})
}

// backOnPanic is deferred where a panic before the first turn would end handoverd.
func (h *handedOver) backOnPanic() {
	if h == nil || !h.Pending() {
		return // it goes its way
	}
	if p := recover(); p != nil {
		stack := debug.Stack()
		_, _ = fmt.Fprintf(h.tail.to, "panic: %v\n\n%s", p, stack)
		err := fmt.Errorf("panic: %v", p)
		if h.Rehearsal() {
			_ = h.Answer(versionText(), err)
			os.Exit(exitFailed)
		}
		h.back(err)
		os.Exit(exitFailed)
	}
}

// answer ends a pre-flight.
func (h *handedOver) answer(fault error) error {
	if err := h.Answer(versionText(), fault); err != nil {
		return err
	}
	os.Exit(0) // nothing that is shared is closed or removed
	return nil
}

// turnWithin is that limit under a manager who ends a process without a sign of life for so long (0: none). The image
// before has given the last one up to half of that time ago.
func turnWithin(watchdog time.Duration) time.Duration {
	if watchdog > 0 {
		return min(turnLimit, watchdog/3)
	}
	return turnLimit
}

// watch goes back when the first turn does not come within the limit. It ends with done.
func (h *handedOver) watch(done <-chan struct{}, limit time.Duration) {
	select {
	case <-time.After(limit):
		h.back(fmt.Errorf("it has not come to its first turn within %v", limit))
	case <-done:
	}
}

// handed is what the supervisor is told of it; nil: nothing was.
func (h *handedOver) handed() *supervisor.Handed {
	if h == nil {
		return nil
	}
	return h.Handed
}

// tailWriter keeps the last of what goes through it, as long as that is wanted.
type tailWriter struct {
	to     io.Writer
	wanted func() bool
	mu     sync.Mutex
	text   []byte
}

func (t *tailWriter) Write(p []byte) (int, error) {
	if !t.wanted() { // all output of the programs comes this way
		return t.to.Write(p)
	}
	t.mu.Lock()
	t.text = append(t.text, p...)
	t.text = slices.Clone(t.text[max(0, len(t.text)-1024):])
	t.mu.Unlock()
	return t.to.Write(p)
}

// last is the last line.
func (t *tailWriter) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.text))
	return text[strings.LastIndexByte(text, '\n')+1:]
}
