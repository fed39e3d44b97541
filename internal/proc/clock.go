package proc

import "time"

// Instant is a point of CLOCK_BOOTTIME in nanoseconds since the machine booted. It goes on while the machine is
// suspended and never jumps with the wall clock, so that a deadline can be stored and read again by another process;
// it means something only together with the BootID of its boot. The zero value stands for "none". Its JSON form is a
// number.
type Instant int64

// Now returns the current Instant. It returns zero on systems without CLOCK_BOOTTIME (Linux 2.6.39).
func Now() Instant { return bootTime() }

// Add returns the instant d after i.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d) }

// Sub returns the time from o to i.
func (i Instant) Sub(o Instant) time.Duration { return time.Duration(i - o) }

// Before reports whether i is earlier than o.
func (i Instant) Before(o Instant) bool { return i < o }

// After reports whether i is later than o.
func (i Instant) After(o Instant) bool { return i > o }

// IsZero reports whether i stands for "none".
func (i Instant) IsZero() bool { return i == 0 }

// Until returns the time from now to i, negative if i has passed.
func (i Instant) Until() time.Duration { return i.Sub(Now()) }
