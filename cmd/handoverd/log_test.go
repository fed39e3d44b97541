package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// stopped is a writer that blocks until it is let go.
type stopped struct {
	free chan struct{}
	bytes.Buffer
}

func (s *stopped) Write(p []byte) (int, error) {
	<-s.free
	return s.Buffer.Write(p)
}

// A log that nobody reads holds nobody up; what was lost is said, and the rest is in order.
func TestLogHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stopped{free: make(chan struct{})}
		l := newLogWriter(w)
		_, _ = fmt.Fprintln(l, "first")
		synctest.Wait()
		for i := range logQueue + 10 {
			_, _ = fmt.Fprintf(l, "line %d\n", i)
		}
		l.Close() // does not wait for ever
		close(w.free)
		synctest.Wait()
		l.Close()
		got := w.String()
		if !strings.HasPrefix(got, "first\nlevel=WARN msg=\"log lines lost: nobody read them\" lines=10\nline 0\nline 1\n") ||
			!strings.HasSuffix(got, fmt.Sprintf("\nline %d\n", logQueue-1)) {
			t.Errorf("passed on: %q ... %q", got[:100], got[len(got)-100:])
		}
	})
}
