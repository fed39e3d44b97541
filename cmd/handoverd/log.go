package main

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
	"time"
)

// How many lines wait for a reader of the log that is slow, how long the end waits
// for one that reads nothing, and for how long at most for one that does.
const (
	logQueue = 4096
	logFlush = time.Second
	logLimit = 3 * time.Second
)

// logWriter passes log lines on to a writer that may block: a terminal that was
// stopped, a collector that hangs. Whoever logs is never held up, least of all the
// loop, whose deadlines have to fire. What there is no room for is lost, and counted.
type logWriter struct {
	lines   chan []byte        // nil: the last one
	flushes chan chan struct{} // one for each empty line among them
	lost    atomic.Int64
	read    atomic.Int64 // lines that were passed on
	done    chan struct{}
}

// newLogWriter borrows w. Close ends it.
func newLogWriter(w io.Writer) *logWriter {
	l := &logWriter{lines: make(chan []byte, logQueue), flushes: make(chan chan struct{}, 1), done: make(chan struct{})}
	go l.pass(w) // Close waits for it, though not for ever
	return l
}

// Write never fails and never waits.
func (l *logWriter) Write(p []byte) (int, error) {
	select {
	case l.lines <- bytes.Clone(p):
	default:
		l.lost.Add(1)
	}
	return len(p), nil
}

func (l *logWriter) pass(w io.Writer) {
	defer close(l.done)
	for line := range l.lines {
		if n := l.lost.Swap(0); n > 0 {
			_, _ = fmt.Fprintf(w, "level=WARN msg=\"log lines lost: nobody read them\" lines=%d\n", n)
		}
		if line == nil {
			return
		}
		if len(line) == 0 {
			close(<-l.flushes)
			continue
		}
		_, _ = w.Write(line) // there is nobody to tell
		l.read.Add(1)
	}
}

// flush waits until what was written has been passed on, at most logFlush. It is for
// one goroutine at a time.
func (l *logWriter) flush() {
	late, flushed := time.After(logFlush), make(chan struct{})
	select {
	case l.flushes <- flushed:
	case <-late:
		return
	}
	select {
	case l.lines <- []byte{}:
	case <-late:
		return
	}
	select {
	case <-flushed:
	case <-late:
	}
}

// Close waits until what was written has been passed on: the last lines tell how a
// stop ended. It gives up when for logFlush nobody has read anything, and after
// logLimit.
func (l *logWriter) Close() {
	limit, last := time.After(logLimit), l.lines
	for read := l.read.Load(); ; {
		select {
		case last <- nil:
			last = nil
		case <-l.done:
			return
		case <-limit:
			return
		case <-time.After(logFlush):
			now := l.read.Load()
			if now == read {
				return
			}
			read = now
		}
	}
}
