package drill

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	// firstWidth is the width of a point of the series, until there are maxPoints of them: then pairs become one.
	firstWidth = 100 * time.Millisecond
	maxPoints  = 6000
	// maxFailurePoints bounds the failures of which a report keeps time and latency.
	maxFailurePoints = 2000
	// seriesFigures are enough for a picture, and make the reset at each point cheap.
	seriesFigures = 2
)

// Point is what ended in one stretch of a run, Report.SeriesWidth long.
type Point struct {
	At         time.Duration // begin, from the run's
	OK, Failed int
	P99, Max   time.Duration // of the good answers; where points were merged, P99 is the higher of theirs
}

// FailurePoint is when a request failed, and how long after it was due.
type FailurePoint struct {
	At      time.Duration // from the run's begin
	Kind    Kind
	Latency time.Duration
}

// Span is when clients had answers of one generation, from the run's begin.
type Span struct{ First, Last time.Duration }

// series collects points. It is used with the book's lock held.
type series struct {
	width   time.Duration
	points  []Point
	current *hdrhistogram.Histogram
}

func newSeries() series {
	return series{width: firstWidth, current: hdrhistogram.New(minLatency, maxLatency, seriesFigures)}
}

// add counts an end at that time of the run; what comes late, by a turn of the lock, belongs to the newest point.
func (s *series) add(at, latency time.Duration, failed bool) {
	at = max(at, 0)
	last := len(s.points) - 1
	if last < 0 || at >= s.points[last].At+s.width {
		s.finish()
		if len(s.points) >= maxPoints {
			s.halve()
		}
		s.points = append(s.points, Point{At: at.Truncate(s.width)})
		last = len(s.points) - 1
	}
	p := &s.points[last]
	if failed {
		p.Failed++
		return
	}
	p.OK++
	p.Max = max(p.Max, latency)
	record(s.current, latency)
}

// finish writes the quantile of the newest point.
func (s *series) finish() {
	if n := len(s.points); n > 0 && s.current.TotalCount() > 0 {
		p := &s.points[n-1]
		// A histogram's value is the upper end of its bucket, which the exact maximum may lie below.
		p.P99 = max(p.P99, min(p.Max, time.Duration(s.current.ValueAtQuantile(99))*time.Microsecond))
		s.current.Reset()
	}
}

// halve doubles the width.
func (s *series) halve() {
	s.width *= 2
	merged := s.points[:0]
	for _, p := range s.points {
		at := p.At.Truncate(s.width)
		if n := len(merged); n > 0 && merged[n-1].At == at {
			m := &merged[n-1]
			m.OK, m.Failed = m.OK+p.OK, m.Failed+p.Failed
			m.P99, m.Max = max(m.P99, p.P99), max(m.Max, p.Max)
			continue
		}
		p.At = at
		merged = append(merged, p)
	}
	s.points = merged
}

// AllSpans iterates over Spans in the order of the generations.
func (r *Report) AllSpans() iter.Seq2[int, Span] {
	return func(yield func(int, Span) bool) {
		for _, generation := range slices.Sorted(maps.Keys(r.Spans)) {
			if !yield(generation, r.Spans[generation]) {
				return
			}
		}
	}
}
