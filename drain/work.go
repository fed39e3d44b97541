package drain

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Kind is what sort of thing a piece of work is.
type Kind string

// The kinds of work.
const (
	// Request is an HTTP request whose handler has not returned.
	Request Kind = "request"

	// Connection is a tracked connection of a Group, or one that a handler of a
	// Server has hijacked.
	Connection Kind = "connection"

	// Stream is a long-lived connection registered with Streams.
	Stream Kind = "stream"

	// Job is work admitted by Group.Start or claimed by Workers.
	Job Kind = "job"

	// Closer is a function registered with Sequence.OnClose.
	Closer Kind = "closer"

	// Other is a Target that cannot say what it was still doing.
	Other Kind = "target"
)

// A Straggler is a piece of work that was not over when its time was.
type Straggler struct {
	// Kind is what it is.
	Kind Kind `json:"kind"`

	// Label names it: the method and route pattern of a request, the name of a
	// job or a closer, the peer of a connection. May be empty.
	Label string `json:"label"`

	// Age is for how long it had been running.
	Age time.Duration `json:"age_ns"`
}

// String is "request GET /items/{id} (12.3s)".
func (s Straggler) String() string {
	return strings.TrimSuffix(string(s.Kind)+" "+s.Label, " ") + " (" + s.Age.Round(time.Millisecond).String() + ")"
}

// named bounds how many stragglers an error's text names.
const named = 10

// names lists stragglers for an error's text.
func names(list []Straggler) string {
	var b strings.Builder
	for i, s := range list {
		if i == named {
			fmt.Fprintf(&b, " and %d more", len(list)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(s.String())
	}
	return b.String()
}

// A Seen is a piece of work that has ended.
type Seen struct {
	// Kind is Request or Job.
	Kind Kind `json:"kind"`

	// Label names it as a Straggler's does.
	Label string `json:"label"`

	// Took is from its begin to its end.
	Took time.Duration `json:"took_ns"`
}

// Metrics is told what a Sequence and its targets do. Implement it to feed
// Prometheus or another library; calls come from many goroutines, some for
// each request, and must not block.
type Metrics interface {
	// AddInFlight is called with +1 when a piece of work begins and with -1
	// when it ends.
	AddInFlight(kind Kind, delta int)

	// SetPhase is called on each change.
	SetPhase(p Phase)

	// ObserveExit is called once, when the sequence is done: how long it took
	// from the signal on, and whether the deadline cut something.
	ObserveExit(took time.Duration, deadlineReached bool)

	// ObserveLongest is called when a request or job has taken longer than any
	// of its kind before; over says that it took longer than a drain would
	// have waited for it.
	ObserveLongest(s Seen, over bool)
}

// An observer is where targets report their work. A nil one takes nothing.
type observer struct {
	metrics Metrics         // may be nil
	long    func(Seen)      // called for a new longest above limit; may be nil
	limit   time.Duration   // what a drain waits at most; 0: no limit
	max     [2]atomic.Int64 // nanoseconds, by slot
	mu      sync.Mutex      // guards longest
	longest map[Kind]Seen   // of what has ended
}

// slot is a kind's place in max, or -1 for kinds that may live for ever.
func slot(k Kind) int {
	switch k {
	case Request:
		return 0
	case Job:
		return 1
	default:
		return -1
	}
}

func (o *observer) begin(k Kind) {
	if o != nil && o.metrics != nil {
		o.metrics.AddInFlight(k, 1)
	}
}

// end notes that a piece of work is over. label is asked only for a record.
func (o *observer) end(k Kind, took time.Duration, label func() string) {
	if o == nil {
		return
	}
	if o.metrics != nil {
		o.metrics.AddInFlight(k, -1)
	}
	i := slot(k)
	if i < 0 || int64(took) <= o.max[i].Load() {
		return
	}
	seen := Seen{Kind: k, Label: label(), Took: took}
	o.mu.Lock()
	record := took > o.longest[k].Took
	if record {
		o.max[i].Store(int64(took))
		o.longest[k] = seen
	}
	o.mu.Unlock()
	if !record {
		return
	}
	over := o.limit > 0 && took > o.limit
	if o.metrics != nil {
		o.metrics.ObserveLongest(seen, over)
	}
	if over && o.long != nil {
		o.long(seen)
	}
}

// seen returns the longest of each kind.
func (o *observer) seen() []Seen {
	o.mu.Lock()
	defer o.mu.Unlock()
	var list []Seen
	for _, k := range []Kind{Request, Job} {
		if s, ok := o.longest[k]; ok {
			list = append(list, s)
		}
	}
	return list
}

// observable is a target of this package.
type observable interface {
	observe(o *observer)

	// arrivals is how many connections that are no probes came since the last
	// reset, and when the last of them did.
	arrivals(reset bool) (n int, last time.Time)
}
