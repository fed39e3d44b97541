package drill

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report is what a run counted. Sent = OK + the sum of Failures, except for ModeUDP: there KindDuplicate and KindWrongBody
// count answers that belong to no datagram in flight, and come on top. In ModeWebSocket a connection that ends badly while
// no message is under way, and a message that nobody asked for, is a failure that counts as sent.
type Report struct {
	Load Load // with its defaults filled in

	Sent            int            // requests begun, without those that failed by a fault of the generator
	OK              int            // answered wholly and verified (ModeTCP: connected)
	Failures        map[Kind]int   // by kind; no entry: none
	ReusedFailures  map[Kind]int   // of them, on a connection that had carried an answer before
	InsideFailures  map[Kind]int   // of them, of requests that overlapped a window
	Samples         []Failure      // the first 32 failures
	GeneratorFaults map[string]int // by errno name, or "unsent"; not in Sent
	LateResets      int            // connections reset after the whole answer had come; no failures
	LateAnswers     int            // datagrams answered after they had been counted as KindTimeout
	Generations     map[int]int    // good answers by generation
	RefusedStreams  int            // ModeH2C, ModeH2: refused by the server before it processed them, and sent again; no failures
	Closes          map[int]int    // ModeWebSocket: connections that the server ended, by close code; 1006: without a close frame

	// Latency in microseconds, of good answers, from when the request was due (closed loop: begun) to the answer's last
	// byte. Inside and Outside divide All by whether the request overlapped a window.
	All, Inside, Outside *hdrhistogram.Histogram
	// Lag is how long after they were due requests were begun, in microseconds: the generator's own lateness, which is
	// contained in the latencies. Empty in the closed loop.
	Lag *hdrhistogram.Histogram

	Begin   time.Time
	Sending time.Duration // from Begin until nothing more was due
	Due     int           // with a rate: requests that were due in that time
	Rate    float64       // requests begun in that time, per second

	Windows []WindowReport // in order of Mark

	// The run over time. Only the report of Stop has it.
	Series        []Point // without those in which nothing ended
	SeriesWidth   time.Duration
	FailurePoints []FailurePoint // the first 2000
	Spans         map[int]Span   // by generation
}

// WindowReport is what one window counted.
type WindowReport struct {
	Name        string
	Begin, End  time.Time
	Requests    int // in flight at the begin, or due or begun inside
	InFlight    int // of them, in flight at the begin
	OK          int // of them, answered; also after the end
	Failures    map[Kind]int
	Blamed      map[Kind]int  // of them, those that overlapped no newer window: each failure is one window's
	FirstBlamed time.Time     // when the first of those was seen; zero: there is none
	LastBlamed  time.Time     // when the last one was
	Generations map[int]int   // good answers to requests begun inside
	Max         time.Duration // the longest latency
	P99         time.Duration // by nearest rank, of the first 65,536 good answers; only the report of Stop has it

	// LastArrival is how long after Begin the last request was sent, on a fresh connection, that an older generation
	// answered; also after End, until a newer window took over. 0: none was. ArrivalKnown: false where that cannot be said,
	// because no answer told its generation, or no newer generation was seen, or no connection was opened.
	LastArrival  time.Duration
	ArrivalKnown bool
}

// Failure is one failed request.
type Failure struct {
	Kind       Kind
	Number     uint64 // 0: no request was under way; a connection ended badly, or something came that nobody had asked for
	Reused     bool   // on a connection that had carried an answer before
	Begin, End time.Time
	Err        error
}

func (f Failure) String() string {
	reused := ""
	if f.Reused {
		reused = ", reused connection"
	}
	what := fmt.Sprintf("request %d, after %v", f.Number, f.End.Sub(f.Begin).Round(time.Microsecond))
	if f.Number == 0 {
		what = "with no request under way"
	}
	return fmt.Sprintf("%s %s: %s%s: %v", f.End.Format("15:04:05.000000"), f.Kind, what, reused, f.Err)
}

// Failed is the number of failures of all kinds.
func (r *Report) Failed() int { return total(r.Failures) }

// Faults is the number of the generator's faults.
func (r *Report) Faults() int { return total(r.GeneratorFaults) }

// Ratio is the share of the due requests that were begun while the run was sending. 1 without a rate.
func (r *Report) Ratio() float64 {
	if r.Load.Rate == 0 || r.Due == 0 {
		return 1
	}
	begun := r.Rate * r.Sending.Seconds()
	if float64(r.Due)-begun < 1.5 {
		return 1 // the last one became due in the moment of the end, and was begun after it
	}
	return begun / float64(r.Due)
}

func total[K comparable](m map[K]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

// String is a short text for logs and failed tests: the sums, the latencies, and the samples.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: sent %d, ok %d, failed %d, %.0f/s", r.Load.Mode, r.Load.Address, r.Sent, r.OK, r.Failed(), r.Rate)
	if r.Load.Rate > 0 {
		fmt.Fprintf(&b, " (%.1f %% of %.0f/s)", 100*r.Ratio(), r.Load.Rate)
	}
	for _, k := range Kinds() {
		if n := r.Failures[k]; n > 0 {
			fmt.Fprintf(&b, "\n  %-14s %d (%d on reused connections)", k, n, r.ReusedFailures[k])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.GeneratorFaults)) {
		fmt.Fprintf(&b, "\n  generator: %s %d", name, r.GeneratorFaults[name])
	}
	if r.RefusedStreams > 0 {
		fmt.Fprintf(&b, "\n  refused streams, sent again: %d", r.RefusedStreams)
	}
	for _, code := range slices.Sorted(maps.Keys(r.Closes)) {
		fmt.Fprintf(&b, "\n  closed by the server with code %d: %d", code, r.Closes[code])
	}
	if n := len(r.Generations); n > 0 {
		gens := slices.Sorted(maps.Keys(r.Generations))
		fmt.Fprintf(&b, "\n  generations: %d, from %d to %d", n, gens[0], gens[n-1])
	}
	writeLatency(&b, "latency", r.All)
	if len(r.Windows) > 0 {
		writeLatency(&b, "inside windows", r.Inside)
		writeLatency(&b, "outside windows", r.Outside)
	}
	writeLatency(&b, "begun late by", r.Lag)
	for _, f := range r.Samples {
		b.WriteString("\n  " + f.String())
	}
	return b.String()
}

func writeLatency(b *strings.Builder, name string, h *hdrhistogram.Histogram) {
	if h == nil || h.TotalCount() == 0 {
		return
	}
	q := func(p float64) time.Duration { return time.Duration(h.ValueAtQuantile(p)) * time.Microsecond }
	fmt.Fprintf(b, "\n  %s: p50 %v, p99 %v, p99.9 %v, max %v", name, q(50), q(99), q(99.9), time.Duration(h.Max())*time.Microsecond)
}

// Quantiles are those of one histogram of latencies.
type Quantiles struct {
	Count               int64 // 0: the rest is 0, too
	P50, P99, P999, Max time.Duration
}

// Latencies are those of all good answers, of those that overlapped a window, and of the others. Only the report of Stop has them.
func (r *Report) Latencies() (all, inside, outside Quantiles) {
	return quantiles(r.All), quantiles(r.Inside), quantiles(r.Outside)
}

func quantiles(h *hdrhistogram.Histogram) Quantiles {
	if h == nil || h.TotalCount() == 0 {
		return Quantiles{}
	}
	q := func(p float64) time.Duration { return time.Duration(h.ValueAtQuantile(p)) * time.Microsecond }
	return Quantiles{
		Count: h.TotalCount(), P50: q(50), P99: q(99), P999: q(99.9), Max: time.Duration(h.Max()) * time.Microsecond,
	}
}

// Durations collects times of which quantiles are wanted. It is not safe for concurrent use.
type Durations struct{ h *hdrhistogram.Histogram }

// NewDurations is empty.
func NewDurations() *Durations {
	return &Durations{hdrhistogram.New(minLatency, maxLatency, figures)}
}

// Add adds one; what is below 1 µs or above 4 h counts as that.
func (d *Durations) Add(t time.Duration) { record(d.h, t) }

// Quantiles are those of what was added.
func (d *Durations) Quantiles() Quantiles { return quantiles(d.h) }
