package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// steadyName is the name of the windows in which nothing is reloaded.
const steadyName = "steady"

// block is what one turn measured.
type block struct {
	ReloadMS []float64            // from the trigger until a client had an answer of the new generation
	GoneMS   []float64            // from the trigger until the old processes had ended
	Modes    map[string]modeBlock // by drill.Mode
}

// modeBlock is one mode's share of a block. Times are in milliseconds.
type modeBlock struct {
	Requests  int
	Failures  map[drill.Kind]int
	Outside   int            // of the failures, those that overlapped no reload's window
	Faults    map[string]int // the generator's own
	Rate      float64        // share of what was due that was sent
	SteadyP99 float64        // median over the steady stretches
	Windows   []window
}

// window is one reload as one mode saw it. In JSON it is an array of its five numbers: there are thousands.
type window struct {
	Requests int
	Lost     int
	P99, Max float64 // in milliseconds, of the good answers
	Ratio    float64 // of P99 to SteadyP99 of the block; 0: nothing was answered in the window
}

// MarshalJSON writes the array.
func (w window) MarshalJSON() ([]byte, error) {
	return json.Marshal([5]float64{float64(w.Requests), float64(w.Lost), w.P99, w.Max, w.Ratio})
}

// UnmarshalJSON reads it.
func (w *window) UnmarshalJSON(text []byte) error {
	var v [5]float64
	if err := json.Unmarshal(text, &v); err != nil {
		return fmt.Errorf("window: %w", err)
	}
	*w = window{int(v[0]), int(v[1]), v[2], v[3], v[4]}
	return nil
}

// newModeBlock takes the figures out of a load's report. Its windows are steady stretches and reloads in turn; what failed in
// the stretch after a reload, because a connection was found dead only then, is that reload's.
func newModeBlock(r *drill.Report) modeBlock {
	m := modeBlock{Requests: r.Sent, Failures: r.Failures, Faults: r.GeneratorFaults, Rate: r.Ratio(), Outside: r.Failed()}
	var stretches []float64
	for _, w := range r.Windows {
		lost := 0
		for _, n := range w.Blamed {
			lost += n
		}
		if w.Name == steadyName {
			if w.OK > 0 {
				stretches = append(stretches, milliseconds(w.P99))
			}
			if last := len(m.Windows) - 1; last >= 0 {
				m.Windows[last].Lost += lost
			}
			continue
		}
		m.Outside -= lost
		m.Windows = append(m.Windows, window{Requests: w.Requests, Lost: lost, P99: milliseconds(w.P99), Max: milliseconds(w.Max)})
	}
	m.SteadyP99 = round3(median(stretches))
	for i := range m.Windows {
		if m.SteadyP99 > 0 {
			m.Windows[i].Ratio = round3(m.Windows[i].P99 / m.SteadyP99)
		}
	}
	return m
}

// cell is one contender in one mode, over the whole run.
type cell struct {
	Contender string             `json:"contender"`
	Mode      drill.Mode         `json:"mode"`
	Requests  int                `json:"requests"`
	Reloads   int                `json:"reloads"`
	Failed    int                `json:"failed"`
	Failures  map[drill.Kind]int `json:"failures,omitempty"`
	Outside   int                `json:"outside_windows,omitempty"` // of the failures
	Faults    map[string]int     `json:"generator_faults,omitempty"`
	PerReload float64            `json:"per_reload"`
	AtMost    float64            `json:"per_reload_at_most"` // 95 %
	ReloadMS  float64            `json:"reload_ms"`          // median
	GoneMS    float64            `json:"gone_ms"`            // median
	SteadyP99 float64            `json:"p99_steady_ms"`      // median over the blocks
	WindowP99 float64            `json:"p99_window_ms"`      // median over the reloads
	Ratio     float64            `json:"ratio"`              // median over the reloads
	Longest   float64            `json:"longest_ms"`         // of the good answers in windows
	LeastRate float64            `json:"least_rate"`         // the lowest share of a block's due requests that was sent
	Windows   []window           `json:"windows"`            // requests, lost, p99 ms, max ms, ratio
}

// newCell puts the blocks of a contender together.
func newCell(contender string, mode drill.Mode, blocks []block) cell {
	c := cell{
		Contender: contender, Mode: mode, Failures: map[drill.Kind]int{}, Faults: map[string]int{}, LeastRate: 1,
	}
	var reloadMS, goneMS, steady, p99, ratios, lost []float64
	for _, b := range blocks {
		m := b.Modes[string(mode)]
		reloadMS, goneMS = append(reloadMS, b.ReloadMS...), append(goneMS, b.GoneMS...)
		c.Requests, c.Outside, c.LeastRate = c.Requests+m.Requests, c.Outside+m.Outside, min(c.LeastRate, round3(m.Rate))
		for k, n := range m.Failures {
			c.Failures[k] += n
			c.Failed += n
		}
		for k, n := range m.Faults {
			c.Faults[k] += n
		}
		steady = append(steady, m.SteadyP99)
		for _, w := range m.Windows {
			lost, c.Longest = append(lost, float64(w.Lost)), max(c.Longest, w.Max)
			if w.P99 > 0 {
				p99, ratios = append(p99, w.P99), append(ratios, w.Ratio)
			}
		}
		c.Windows = append(c.Windows, m.Windows...)
	}
	c.Reloads = len(reloadMS)
	c.ReloadMS, c.GoneMS = round3(median(reloadMS)), round3(median(goneMS))
	c.SteadyP99, c.WindowP99, c.Ratio = round3(median(steady)), round3(median(p99)), round3(median(ratios))
	c.PerReload, c.AtMost = lossBound(c.Failed, lost)
	return c
}

// lossBound is what a reload loses on average, and what it loses at most with 95 % confidence: 3/N where N reloads lost nothing
// (the rule of three), else the mean and 1.645 standard errors of what the single reloads lost.
func lossBound(failed int, lost []float64) (mean, most float64) {
	n := float64(len(lost))
	if n == 0 {
		return 0, 0
	}
	mean = float64(failed) / n
	if failed == 0 {
		return 0, round3(3 / n)
	}
	squares, average := 0.0, 0.0
	for _, v := range lost {
		average += v / n
	}
	for _, v := range lost {
		squares += (v - average) * (v - average)
	}
	most = mean + 1.645*math.Sqrt(squares/max(1, n-1)/n)
	return round3(mean), round3(max(most, 3/n))
}

// median is 0 of nothing.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func milliseconds(d time.Duration) float64 { return round3(float64(d) / float64(time.Millisecond)) }

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }
