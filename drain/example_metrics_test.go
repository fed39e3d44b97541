package drain_test

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/handoverd/handover/drain"
)

// promMetrics binds drain.Metrics to Prometheus. It is all there is to it, and
// not in the package, which depends on nothing.
type promMetrics struct {
	inFlight *prometheus.GaugeVec
	phase    prometheus.Gauge
	exit     prometheus.Gauge
	cut      prometheus.Gauge
	longest  *prometheus.GaugeVec
	over     *prometheus.GaugeVec
}

func newPromMetrics(r prometheus.Registerer) *promMetrics {
	gauge := func(name, help string) prometheus.GaugeOpts { return prometheus.GaugeOpts{Name: name, Help: help} }
	m := &promMetrics{
		inFlight: prometheus.NewGaugeVec(gauge("drain_in_flight", "Work in flight."), []string{"kind"}),
		phase:    prometheus.NewGauge(gauge("drain_phase", "0 serving, 1 lame duck, 2 draining, 3 closing, 4 done.")),
		exit:     prometheus.NewGauge(gauge("drain_exit_seconds", "From the signal to the exit.")),
		cut:      prometheus.NewGauge(gauge("drain_deadline_reached", "1 if the deadline cut something.")),
		longest:  prometheus.NewGaugeVec(gauge("drain_longest_seconds", "The longest request and job seen."), []string{"kind"}),
		over:     prometheus.NewGaugeVec(gauge("drain_longest_over_budget", "1 if a drain would have cut it."), []string{"kind"}),
	}
	r.MustRegister(m.inFlight, m.phase, m.exit, m.cut, m.longest, m.over)
	return m
}

func (m *promMetrics) AddInFlight(k drain.Kind, delta int) {
	m.inFlight.WithLabelValues(string(k)).Add(float64(delta))
}

func (m *promMetrics) SetPhase(p drain.Phase) { m.phase.Set(float64(p)) }

func (m *promMetrics) ObserveExit(took time.Duration, deadlineReached bool) {
	m.exit.Set(took.Seconds())
	m.cut.Set(number(deadlineReached))
}

func (m *promMetrics) ObserveLongest(s drain.Seen, over bool) {
	m.longest.WithLabelValues(string(s.Kind)).Set(s.Took.Seconds())
	m.over.WithLabelValues(string(s.Kind)).Set(number(over))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func ExampleMetrics() {
	registry := prometheus.NewRegistry()
	seq := &drain.Sequence{Metrics: newPromMetrics(registry)}
	jobs := &drain.Group{}
	seq.Add("jobs", jobs)
	done, err := jobs.StartNamed("invoice")
	if err != nil {
		fmt.Println(err)
		return
	}
	done()
	seq.Begin("the example is over")
	if err := seq.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	families, err := registry.Gather()
	if err != nil {
		fmt.Println(err)
	}
	for _, f := range families {
		if name := f.GetName(); name == "drain_phase" || name == "drain_deadline_reached" {
			fmt.Println(name, f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	// Output:
	// drain_deadline_reached 0
	// drain_phase 4
}
