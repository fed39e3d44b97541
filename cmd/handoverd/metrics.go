package main

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/handoverd/handover/supervisor"
)

// metrics is what /metrics shows. What can be seen in the status is taken from it
// at each scrape, so that nothing has to be kept up to date while nobody
// asks; what only happens, and leaves no trace in it, is counted from the events.
//
// The registry is its own: the default one has collectors of the Go runtime that
// nobody asked for.
type metrics struct {
	handler    http.Handler
	supervisor atomic.Pointer[supervisor.Supervisor] // nil until attach

	reloads  *prometheus.CounterVec
	restarts *prometheus.CounterVec
	killed   *prometheus.CounterVec
	lost     prometheus.Counter
}

// scrapeTimeout bounds how long a scrape waits for the loop.
const scrapeTimeout = 2 * time.Second

func newMetrics(log *slog.Logger) *metrics {
	m := &metrics{
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "handoverd_reloads_total", Help: "Reloads of a service, by how they ended.",
		}, []string{"service", "outcome"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "handoverd_restarts_total", Help: "Generations started because the serving program had died.",
		}, []string{"service"}),
		killed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "handoverd_generations_killed_total", Help: "Generations that were sent SIGKILL.",
		}, []string{"service"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "handoverd_events_lost_total", Help: "Events that the counters missed: they are too low by as much.",
		}),
	}
	r := prometheus.NewRegistry()
	r.MustRegister(m.reloads, m.restarts, m.killed, m.lost, statusCollector{m})
	m.handler = promhttp.HandlerFor(r, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelError),
		ErrorHandling: promhttp.HTTPErrorOnError,
	})
	return m
}

// attach ties the metrics to the supervisor, before it runs.
func (m *metrics) attach(s *supervisor.Supervisor) {
	m.supervisor.Store(s)
	events, _ := s.Follow() // ended by Run
	go m.count(events)      // ends with the events
}

func (m *metrics) count(events <-chan supervisor.Event) {
	for e := range events {
		switch e.Kind {
		case "lost":
			m.lost.Add(float64(e.Lost))
		case "reload":
			if e.Report.First {
				continue
			}
			for _, r := range e.Report.Results {
				m.reloads.WithLabelValues(r.Service, string(r.Outcome)).Inc()
			}
		case "transition":
			switch {
			case e.To == supervisor.PhaseStarting && e.Why == string(supervisor.WhyRestart):
				m.restarts.WithLabelValues(e.Service).Inc()
			case e.To == supervisor.PhaseKilling:
				m.killed.WithLabelValues(e.Service).Inc()
			}
		}
	}
}

// statusCollector makes gauges of the status.
type statusCollector struct{ m *metrics }

var (
	upDesc = prometheus.NewDesc("handoverd_ready",
		"1 while every service serves and no stop is under way.", nil, nil)
	readyDesc = prometheus.NewDesc("handoverd_service_ready",
		"1 while a generation of the service serves.", []string{"service"}, nil)
	generationsDesc = prometheus.NewDesc("handoverd_generations",
		"Living generations, by the phase they are in.", []string{"service", "phase"}, nil)
	servingDesc = prometheus.NewDesc("handoverd_serving_generation",
		"Number of the generation that serves.", []string{"service"}, nil)
	unreleasedDesc = prometheus.NewDesc("handoverd_generations_not_released",
		"Retired generations that were not seen to let go of the sockets.", []string{"service"}, nil)
	stuckDesc = prometheus.NewDesc("handoverd_generations_stuck",
		"Generations that the kernel has not ended after SIGKILL.", []string{"service"}, nil)
	waitingDesc = prometheus.NewDesc("handoverd_upgrade_waiting_seconds",
		"How long a new generation has been waiting to be started: for a place below max_draining, or for another service; 0 for none.", []string{"service"}, nil)
	failuresDesc = prometheus.NewDesc("handoverd_crash_loop_failures",
		"Deaths in a row that the restart's back-off counts.", []string{"service"}, nil)
	lameDuckDesc = prometheus.NewDesc("handoverd_lame_duck",
		"1 while the routing layer is told to go elsewhere.", []string{"service"}, nil)
	lastNewDesc = prometheus.NewDesc("handoverd_lame_duck_last_new_connection_seconds",
		"How long after the begin of the lame duck a new connection was seen last, 0 for none.", []string{"service"}, nil)
	openDesc = prometheus.NewDesc("handoverd_connections_open_at_exit_total",
		"Connections that draining generations had when they exited, at the last look before.", []string{"service"}, nil)
	queueDesc = prometheus.NewDesc("handoverd_socket_queue",
		"Connections in the accept queue.", []string{"service", "socket"}, nil)
	reapedDesc = prometheus.NewDesc("handoverd_orphans_reaped_total",
		"Ended processes that had been re-parented to handoverd.", nil, nil)
	terminationsDesc = prometheus.NewDesc("handoverd_terminations_total",
		"Earlier lives of handoverd in this runtime directory, by how they ended: whole, cut, no_notice.", []string{"kind"}, nil)
	keeperDesc = prometheus.NewDesc("handoverd_keeper",
		"1 while a keeper holds everything that would be lost with handoverd.", nil, nil)
	upgradesDesc = prometheus.NewDesc("handoverd_self_upgrades_total",
		"Upgrades of handoverd itself that were begun, whether they were refused or not.", nil, nil)
	upgradeFailedDesc = prometheus.NewDesc("handoverd_self_upgrade_failed",
		"1 if the last upgrade of handoverd itself was refused or has failed.", nil, nil)
	stateDesc = prometheus.NewDesc("handoverd_state_written",
		"1 if the state file could be written last time.", nil, nil)
)

// phases are always shown, so that a phase nobody is in is a 0 and not a gap.
var phases = []supervisor.Phase{
	supervisor.PhaseStarting, supervisor.PhaseBaking, supervisor.PhaseServing,
	supervisor.PhaseDraining, supervisor.PhaseEnding, supervisor.PhaseKilling,
}

func (statusCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		upDesc, readyDesc, generationsDesc, servingDesc, unreleasedDesc, stuckDesc, waitingDesc, failuresDesc,
		lameDuckDesc, lastNewDesc, openDesc, queueDesc, reapedDesc, stateDesc,
		terminationsDesc, keeperDesc, upgradesDesc, upgradeFailedDesc,
	} {
		ch <- d
	}
}

func (c statusCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.m.supervisor.Load()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	st, err := s.Status(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(upDesc, err)
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(upDesc, oneIf(st.Ready))
	gauge(stateDesc, oneIf(st.StateError == ""))
	ch <- prometheus.MustNewConstMetric(reapedDesc, prometheus.CounterValue, float64(st.Reaped))
	gauge(keeperDesc, oneIf(st.Keeper != nil && st.Keeper.PID != 0 && st.Keeper.Fault == ""))
	var up supervisor.UpgradeStatus
	if st.Upgrade != nil {
		up = *st.Upgrade
	}
	ch <- prometheus.MustNewConstMetric(upgradesDesc, prometheus.CounterValue, float64(up.ID))
	gauge(upgradeFailedDesc, oneIf(up.Fault != ""))
	for kind, n := range map[string]int{
		"whole": st.Terminations.Whole, "cut": st.Terminations.Cut, "no_notice": st.Terminations.NoNotice,
	} {
		ch <- prometheus.MustNewConstMetric(terminationsDesc, prometheus.CounterValue, float64(n), kind)
	}
	for _, svc := range st.Services {
		serviceGauges(gauge, svc)
		ch <- prometheus.MustNewConstMetric(openDesc, prometheus.CounterValue, float64(svc.OpenAtExit), svc.Name)
	}
}

func serviceGauges(gauge func(*prometheus.Desc, float64, ...string), svc supervisor.ServiceStatus) {
	gauge(readyDesc, oneIf(svc.Ready), svc.Name)
	gauge(waitingDesc, svc.WaitingFor, svc.Name)
	gauge(failuresDesc, float64(svc.Failures), svc.Name)
	gauge(lameDuckDesc, oneIf(svc.LameDuck != nil), svc.Name)
	if svc.LameDuck != nil {
		gauge(lastNewDesc, svc.LameDuck.LastNew, svc.Name)
	}
	count := map[supervisor.Phase]int{}
	var unreleased, stuck int
	for _, g := range svc.Generations {
		count[g.Phase]++
		if g.Release == supervisor.ReleaseNo {
			unreleased++
		}
		if g.Stuck {
			stuck++
		}
		if g.Phase == supervisor.PhaseServing {
			gauge(servingDesc, float64(g.Generation), svc.Name)
		}
	}
	for _, p := range phases {
		gauge(generationsDesc, float64(count[p]), svc.Name, string(p))
	}
	gauge(unreleasedDesc, float64(unreleased), svc.Name)
	gauge(stuckDesc, float64(stuck), svc.Name)
	for _, sock := range svc.Sockets {
		if sock.Queued >= 0 {
			gauge(queueDesc, float64(sock.Queued), svc.Name, sock.Name)
		}
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
