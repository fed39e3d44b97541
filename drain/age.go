package drain

import (
	"math/rand/v2"
	"time"
)

// An Age bounds how long a connection lives in normal times, so that no drain
// ever waits for an immortal one and load spreads over new servers (gRFC A9,
// MAX_CONNECTION_AGE). The zero value sets no bound.
type Age struct {
	// Max is the age at which a connection is asked to leave. 0 or negative:
	// never.
	Max time.Duration

	// Jitter is the share of Max by which the age of each connection is
	// lengthened or shortened at random, so that those that came together do
	// not leave together. 0 is 0.1, as in gRFC A9; negative is none; above 1 is
	// 1.
	Jitter float64

	// Grace is how long a connection that was asked may stay before it is
	// closed, whatever it does. 0 or negative: as long as it likes.
	Grace time.Duration
}

// draw picks the age of one connection.
func (a Age) draw() time.Duration {
	jitter := a.Jitter
	switch {
	case jitter == 0:
		jitter = 0.1
	case jitter < 0:
		jitter = 0
	}
	jitter = min(jitter, 1)
	return a.Max + time.Duration((2*rand.Float64()-1)*jitter*float64(a.Max))
}
