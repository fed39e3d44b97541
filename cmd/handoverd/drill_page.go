package main

import (
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

//go:embed drill_page.html
var drillPageText string

// drillPageTemplate is parsed when a page is wanted: what the binary does at its start is paid by each spawn.
var drillPageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("drill").Parse(drillPageText))
})

// The drawing's measures, in its own units.
const (
	chartWidth, chartHeight = 1000.0, 320.0
	chartLeft, chartTop     = 70.0, 20.0 // of the plot's corner
	plotWidth, plotHeight   = 910.0, 250.0
)

// drillPage is what the template shows.
type drillPage struct {
	Report *drillReport
	Text   string // the table
	Charts []drillChart
}

// drillChart is one mode's latency over time. All positions are the drawing's.
type drillChart struct {
	Mode                     drill.Mode
	Width, Height            float64
	Left, Top, Right, Bottom float64
	MidX, MidY, LabelY       float64
	X, Y                     []drillTick
	Bands                    []drillBand
	Marks                    []drillMark
	Max, P99                 string // path data
	Failures                 []drillDot
	Shown, Failed            int // failures drawn, and all
	PointMS                  float64
}

type drillTick struct {
	At    float64
	Label string
}

type drillBand struct {
	X, Width   float64
	Generation int
	Odd        bool
}

type drillMark struct {
	Class, Title string
	X, Width     float64
}

type drillDot struct {
	X, Y  float64
	Title string
}

// writeDrillPage writes one page that needs nothing beside it.
func writeDrillPage(file string, r *drillReport, reports []drill.Report) error {
	page := drillPage{Report: r}
	var text strings.Builder
	if err := r.write(&text); err != nil {
		return err
	}
	page.Text = text.String()
	for i := range reports {
		page.Charts = append(page.Charts, newChart(r, &reports[i]))
	}
	var out strings.Builder
	if err := drillPageTemplate().Execute(&out, page); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return nil
}

// chartScale turns times and latencies into positions.
type chartScale struct {
	span, low, high float64 // seconds; powers of ten of milliseconds
}

func (s chartScale) x(t time.Duration) float64 {
	return round(chartLeft + plotWidth*min(1, max(0, t.Seconds()/s.span)))
}

func (s chartScale) y(l time.Duration) float64 {
	power := math.Log10(max(milliseconds(l), 0.001))
	return round(chartTop + plotHeight*(1-min(1, max(0, (power-s.low)/(s.high-s.low)))))
}

func round(v float64) float64 { return math.Round(v*10) / 10 }

// scaleOf covers everything that is drawn.
func scaleOf(rep *drill.Report) chartScale {
	span := rep.Sending
	low, high := time.Duration(math.MaxInt64), time.Millisecond
	for _, p := range rep.Series {
		span = max(span, p.At+rep.SeriesWidth)
		high = max(high, p.Max)
		if p.OK > 0 {
			low = min(low, p.P99)
		}
	}
	for _, f := range rep.FailurePoints {
		span, high = max(span, f.At), max(high, f.Latency)
		low = min(low, max(f.Latency, 10*time.Microsecond))
	}
	low = min(low, high)
	s := chartScale{
		span: max(span.Seconds(), 0.1),
		low:  math.Floor(math.Log10(max(milliseconds(low), 0.001))), high: math.Ceil(math.Log10(milliseconds(high))),
	}
	s.high = max(s.high, s.low+1)
	return s
}

func newChart(r *drillReport, rep *drill.Report) drillChart {
	s := scaleOf(rep)
	c := drillChart{
		Mode: rep.Load.Mode, Width: chartWidth, Height: chartHeight,
		Left: chartLeft, Top: chartTop, Right: chartLeft + plotWidth, Bottom: chartTop + plotHeight,
		MidX: chartLeft + plotWidth/2, MidY: chartTop + plotHeight/2, LabelY: chartHeight - 8,
		Shown: len(rep.FailurePoints), Failed: rep.Failed(), PointMS: milliseconds(rep.SeriesWidth),
		X: timeTicks(s), Y: latencyTicks(s),
		Bands: generationBands(s, r, rep),
		Max:   seriesPath(s, rep, func(p drill.Point) time.Duration { return p.Max }),
		P99:   seriesPath(s, rep, func(p drill.Point) time.Duration { return p.P99 }),
	}
	for i := range r.Triggers {
		t := &r.Triggers[i]
		begin := time.Duration(t.At * float64(time.Second))
		m := drillMark{Class: t.Kind, X: s.x(begin), Title: fmt.Sprintf("%s at %.2f s, %.3f s, %d lost", t.Kind, t.At, t.Seconds, t.Failed)}
		m.Width = round(max(1, s.x(begin+time.Duration(t.Seconds*float64(time.Second)))-m.X))
		if t.LastArrival != nil {
			m.Title += fmt.Sprintf(", last request to an older generation sent after %.3f s", *t.LastArrival)
		}
		if t.Error != "" {
			m.Class, m.Title = m.Class+" failed", m.Title+": "+t.Error
		}
		c.Marks = append(c.Marks, m)
	}
	for _, f := range rep.FailurePoints {
		c.Failures = append(c.Failures, drillDot{
			X: s.x(f.At), Y: s.y(f.Latency), Title: fmt.Sprintf("%s at %.3f s, after %.3f ms", f.Kind, f.At.Seconds(), milliseconds(f.Latency)),
		})
	}
	return c
}

// seriesPath is a line through the points, broken where nothing was answered.
func seriesPath(s chartScale, rep *drill.Report, value func(drill.Point) time.Duration) string {
	var b strings.Builder
	command, end := "M", time.Duration(-1)
	for _, p := range rep.Series {
		if p.OK == 0 {
			continue
		}
		if p.At != end {
			command = "M"
		}
		// The second position makes a lone point visible, and each point as wide as its stretch of time.
		y := s.y(value(p))
		fmt.Fprintf(&b, "%s%g %g L%g %g ", command, s.x(p.At), y, s.x(p.At+rep.SeriesWidth), y)
		command, end = "L", p.At+rep.SeriesWidth
	}
	return b.String()
}

// generationBands are when clients had answers of each generation; where no answer tells, from trigger to trigger.
func generationBands(s chartScale, r *drillReport, rep *drill.Report) []drillBand {
	var bands []drillBand
	add := func(generation int, from, to time.Duration) {
		x := s.x(from)
		bands = append(bands, drillBand{X: x, Width: round(max(1, s.x(to)-x)), Generation: generation, Odd: generation%2 == 1})
	}
	if len(rep.Spans) > 0 {
		for generation, span := range rep.AllSpans() {
			add(generation, span.First, span.Last)
		}
		return bands
	}
	seconds := func(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }
	for i := range r.Triggers {
		t := &r.Triggers[i]
		if t.Generation == 0 {
			continue
		}
		end := rep.Sending
		for _, next := range r.Triggers[i+1:] {
			if next.Generation != 0 {
				end = seconds(next.At + next.Seconds)
				break
			}
		}
		add(t.Generation, seconds(t.At+t.Seconds), end)
	}
	return bands
}

// timeTicks are about ten, at round numbers of seconds.
func timeTicks(s chartScale) []drillTick {
	step := math.Pow(10, math.Floor(math.Log10(s.span/10)))
	for _, f := range []float64{1, 2, 5, 10} {
		// A little more than ten, so that the last answers' milliseconds do not change the step.
		if s.span/(step*f) <= 10.5 {
			step *= f
			break
		}
	}
	var ticks []drillTick
	for i := 0; float64(i)*step <= s.span; i++ {
		at := float64(i) * step
		ticks = append(ticks, drillTick{s.x(time.Duration(at * float64(time.Second))), fmt.Sprintf("%.4g s", at)})
	}
	return ticks
}

// latencyTicks are the powers of ten.
func latencyTicks(s chartScale) []drillTick {
	var ticks []drillTick
	for power := s.low; power <= s.high; power++ {
		ms := math.Pow(10, power)
		label := fmt.Sprintf("%g ms", ms)
		if ms >= 1000 {
			label = fmt.Sprintf("%g s", ms/1000)
		}
		ticks = append(ticks, drillTick{round(chartTop + plotHeight*(1-(power-s.low)/(s.high-s.low))), label})
	}
	return ticks
}
