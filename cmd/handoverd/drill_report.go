package main

import (
	"fmt"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// drillReport is what --json prints. Times are in seconds (…_seconds) or milliseconds (…_ms).
type drillReport struct {
	URL         string    `json:"url"`
	Begin       time.Time `json:"begin"`
	Seconds     float64   `json:"seconds"`
	Contract    bool      `json:"contract"`          // each byte of the answers was checked
	Trigger     string    `json:"trigger,omitempty"` // what was triggered; none: empty
	Seed        uint64    `json:"seed,omitempty"`    // with --kill and --kill-supervisor
	Interrupted bool      `json:"interrupted,omitempty"`
	Passed      bool      `json:"passed"`            // exit code 0
	Reasons     []string  `json:"reasons,omitempty"` // why not

	Sent    int         `json:"sent"`
	OK      int         `json:"ok"`
	Failed  int         `json:"failed"`
	Modes   []drillMode `json:"modes"`
	Reloads int         `json:"reloads"` // that succeeded
	Kills   int         `json:"kills"`   // after which another generation served
	// SupervisorKills are those of handoverd after which a generation served under the next one; Adopted are those of
	// them after which it was the same process as before.
	SupervisorKills int            `json:"supervisor_kills"`
	Adopted         int            `json:"adopted"`
	FailedTriggers  int            `json:"failed_triggers"`
	ReloadP50       float64        `json:"reload_p50_seconds,omitempty"`
	ReloadMax       float64        `json:"reload_max_seconds,omitempty"`
	LastArrival     *drillArrival  `json:"last_arrival"` // null: of no reload known
	Triggers        []drillOutcome `json:"triggers,omitempty"`
	Lost            *drillLost     `json:"lost,omitempty"` // with at least one reload
	Sizing          drillSizing    `json:"sizing"`
}

// drillMode is one mode. Inside is what overlapped a window.
type drillMode struct {
	Mode           drill.Mode         `json:"mode"`
	Rate           float64            `json:"rate"`         // begun, a second
	RateReached    float64            `json:"rate_reached"` // of the rate asked for
	Sent           int                `json:"sent"`
	OK             int                `json:"ok"`
	Failed         int                `json:"failed"`
	Failures       map[drill.Kind]int `json:"failures"`
	InsideFailed   int                `json:"inside_failed"`
	InsideFailures map[drill.Kind]int `json:"inside_failures"`
	OutsideFailed  int                `json:"outside_failed"`
	InReloads      int                `json:"lost_in_reloads"` // that succeeded
	InKills        int                `json:"lost_in_kills"`
	InSupervisor   int                `json:"lost_in_supervisor_kills"`
	ReusedFailures map[drill.Kind]int `json:"reused_failures"` // on connections that had carried an answer
	Faults         map[string]int     `json:"generator_faults"`
	Latency        drillLatency       `json:"latency"`
	Inside         drillLatency       `json:"inside"`
	Outside        drillLatency       `json:"outside"`
	P99Ratio       float64            `json:"p99_ratio,omitempty"` // inside over outside; 0: one of them is empty
	RefusedStreams int                `json:"refused_streams"`     // over HTTP/2, refused unprocessed and sent again; not lost
	Closes         map[int]int        `json:"closes,omitempty"`    // WebSockets that the server ended, by close code
	Samples        []string           `json:"samples,omitempty"`   // the first failures
}

// drillLatency is of good answers, from when they were due.
type drillLatency struct {
	Count int64   `json:"count"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p999_ms"`
	Max   float64 `json:"max_ms"`
}

// drillOutcome is one trigger, with what was lost in its window, of all modes.
type drillOutcome struct {
	Kind       string  `json:"kind"` // "reload", "kill" or "kill-supervisor"
	At         float64 `json:"at_seconds"`
	Seconds    float64 `json:"seconds"`                  // of the window
	Reload     float64 `json:"reload_seconds,omitempty"` // until the reload was done, where that is told
	Generation int     `json:"generation,omitempty"`     // that serves after it
	Adopted    bool    `json:"adopted,omitempty"`        // after a kill of handoverd: the process that served before it
	Error      string  `json:"error,omitempty"`
	// LastArrival is how long after the trigger began the last request was sent, on a fresh connection, that an older generation
	// answered, of all modes. null: not known.
	LastArrival *float64           `json:"last_arrival_seconds"`
	Requests    int                `json:"requests"`
	Failed      int                `json:"failed"`
	Failures    map[drill.Kind]int `json:"failures"`
	// FirstFailed and LastFailed are when the client saw the first and the last of them, from the trigger; both are left
	// out where nothing failed.
	FirstFailed float64 `json:"first_failed_seconds,omitempty"`
	LastFailed  float64 `json:"last_failed_seconds,omitempty"`
}

// seen widens the time in which failures were seen to that of one mode's window.
func (o *drillOutcome) seen(w *drill.WindowReport, trigger time.Time) {
	if w.FirstBlamed.IsZero() {
		return
	}
	if at := w.FirstBlamed.Sub(trigger).Seconds(); o.FirstFailed == 0 || at < o.FirstFailed {
		o.FirstFailed = at
	}
	o.LastFailed = max(o.LastFailed, w.LastBlamed.Sub(trigger).Seconds())
}

// drillArrival is of the reloads that succeeded and of which the last arrival is known.
type drillArrival struct {
	Reloads int     `json:"reloads"`
	P99     float64 `json:"p99_seconds"`
	Max     float64 `json:"max_seconds"`
}

// drillLost says what reloads cost, those that succeeded; kills are not in it.
type drillLost struct {
	InReloads    int     `json:"in_reloads"`
	InKills      int     `json:"in_kills"`
	InSupervisor int     `json:"in_supervisor_kills"`
	Outside      int     `json:"outside"`
	PerReload    float64 `json:"per_reload"`
	// AtMost is 3/N, the upper bound at 95 % confidence, where nothing was lost.
	AtMost        float64 `json:"at_most_per_reload,omitempty"`
	Deploys       float64 `json:"deploys_per_week,omitempty"`
	Instances     int     `json:"instances,omitempty"`
	PerWeek       float64 `json:"per_week,omitempty"`
	PerWeekAtMost float64 `json:"at_most_per_week,omitempty"`
}

// drillSizing is proposed; the help has the formula.
type drillSizing struct {
	P999    float64 `json:"p999_ms"`
	Longest float64 `json:"longest_ms"`
	// CheckInterval is the balancer's, as it was given; 0: it was not, and LameDuck knows the last arrival only.
	CheckInterval float64 `json:"check_interval_seconds,omitempty"`
	LameDuck      float64 `json:"lame_duck_seconds"`
	Drain         float64 `json:"drain_seconds"`
	Grace         float64 `json:"grace_seconds"`
	Deadline      float64 `json:"deadline_seconds"`
}

// report is made when the runs have ended.
func (d *drillRun) report(contract bool) *drillReport {
	r := &drillReport{URL: d.flags.url, Begin: d.begin, Contract: contract, Interrupted: d.interrupted}
	if d.trigger != nil {
		r.Trigger = d.trigger.name()
	}
	if d.flags.kill+d.flags.killSupervisor > 0 {
		r.Seed = d.flags.seed
	}
	for i := range d.reports {
		r.addMode(&d.reports[i])
	}
	r.addTriggers(d)
	r.Sizing.fill(d.flags, d.reports, r.LastArrival)
	r.judge(d.flags)
	return r
}

func (r *drillReport) addMode(rep *drill.Report) {
	all, inside, outside := rep.Latencies()
	m := drillMode{
		Mode: rep.Load.Mode, Rate: rep.Rate, RateReached: rep.Ratio(), Sent: rep.Sent, OK: rep.OK,
		Failed: rep.Failed(), Failures: rep.Failures, InsideFailures: rep.InsideFailures, ReusedFailures: rep.ReusedFailures,
		RefusedStreams: rep.RefusedStreams, Closes: rep.Closes,
		Faults: rep.GeneratorFaults, Latency: latencyOf(all), Inside: latencyOf(inside), Outside: latencyOf(outside),
	}
	m.InsideFailed = sum(rep.InsideFailures)
	m.OutsideFailed = m.Failed - m.InsideFailed
	if inside.Count > 0 && outside.P99 > 0 {
		m.P99Ratio = float64(inside.P99) / float64(outside.P99)
	}
	for _, f := range rep.Samples {
		m.Samples = append(m.Samples, f.String())
	}
	r.Modes = append(r.Modes, m)
	r.Sent, r.OK, r.Failed = r.Sent+m.Sent, r.OK+m.OK, r.Failed+m.Failed
	r.Seconds = max(r.Seconds, rep.Sending.Seconds())
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func latencyOf(q drill.Quantiles) drillLatency {
	return drillLatency{
		Count: q.Count, P50: milliseconds(q.P50), P99: milliseconds(q.P99), P999: milliseconds(q.P999), Max: milliseconds(q.Max),
	}
}

// arrivalOf is the last arrival of trigger i: the latest that a mode has seen; nil where none has.
func arrivalOf(reports []drill.Report, i int) *float64 {
	var last *float64
	for j := range reports {
		if w := &reports[j].Windows[i]; w.ArrivalKnown && (last == nil || w.LastArrival.Seconds() > *last) {
			last = new(w.LastArrival.Seconds())
		}
	}
	return last
}

// addArrivals sums up the last arrivals.
func (r *drillReport) addArrivals() {
	took := drill.NewDurations()
	a := &drillArrival{}
	for i := range r.Triggers {
		t := &r.Triggers[i]
		if t.LastArrival == nil || t.Error != "" || t.Kind != triggerReload {
			continue
		}
		a.Reloads++
		a.Max = max(a.Max, *t.LastArrival)
		took.Add(time.Duration(*t.LastArrival * float64(time.Second)))
	}
	if a.Reloads > 0 {
		// A histogram's value is the upper end of its bucket, which the exact maximum may lie below.
		a.P99 = min(took.Quantiles().P99.Seconds(), a.Max)
		r.LastArrival = a
	}
}

// addTriggers takes over what was fired; window i of each run is trigger i's.
func (r *drillReport) addTriggers(d *drillRun) {
	lost := &drillLost{Instances: d.flags.instances, Deploys: d.flags.deploys}
	took := drill.NewDurations()
	for i, f := range d.fired {
		o := drillOutcome{
			Kind: f.kind, At: f.begin.Sub(d.begin).Seconds(), Seconds: f.end.Sub(f.begin).Seconds(),
			Generation: f.generation, Adopted: f.adopted, LastArrival: arrivalOf(d.reports, i), Failures: map[drill.Kind]int{},
		}
		for j := range d.reports {
			w := &d.reports[j].Windows[i]
			o.Requests += w.Requests
			o.seen(w, f.begin)
			lost := 0
			for k, n := range w.Blamed {
				o.Failures[k] += n
				lost += n
			}
			o.Failed += lost
			switch {
			case f.err != nil:
			case f.kind == triggerKill:
				r.Modes[j].InKills += lost
			case f.kind == triggerKillSupervisor:
				r.Modes[j].InSupervisor += lost
			default:
				r.Modes[j].InReloads += lost
			}
		}
		if !f.done.IsZero() {
			o.Reload = f.done.Sub(f.begin).Seconds()
		}
		switch {
		case f.err != nil:
			o.Error = f.err.Error()
			r.FailedTriggers++
		case f.kind == triggerKill:
			r.Kills++
			lost.InKills += o.Failed
		case f.kind == triggerKillSupervisor:
			r.SupervisorKills++
			lost.InSupervisor += o.Failed
			if f.adopted {
				r.Adopted++
			}
		default:
			r.Reloads++
			lost.InReloads += o.Failed
			if !f.done.IsZero() {
				took.Add(f.done.Sub(f.begin))
			}
		}
		r.Triggers = append(r.Triggers, o)
	}
	r.addArrivals()
	if r.Reloads > 0 {
		r.addLost(lost, took)
	}
}

// addLost sums up what all triggers lost; took are the reloads' times.
func (r *drillReport) addLost(lost *drillLost, took *drill.Durations) {
	q := took.Quantiles()
	r.ReloadP50, r.ReloadMax = q.P50.Seconds(), q.Max.Seconds()
	for _, m := range r.Modes {
		lost.Outside += m.OutsideFailed
	}
	n, weekly := float64(r.Reloads), lost.Deploys*float64(lost.Instances)
	lost.PerReload = float64(lost.InReloads) / n
	lost.PerWeek = lost.PerReload * weekly
	if lost.InReloads == 0 {
		lost.AtMost = 3 / n
		lost.PerWeekAtMost = lost.AtMost * weekly
	}
	r.Lost = lost
}

// fill proposes the budgets.
func (s *drillSizing) fill(o *drillFlags, reports []drill.Report, last *drillArrival) {
	var p999, longest time.Duration
	for i := range reports {
		all, _, _ := reports[i].Latencies()
		p999, longest = max(p999, all.P999), max(longest, all.Max)
	}
	s.CheckInterval = o.checkInterval.Seconds()
	s.P999, s.Longest = milliseconds(p999), milliseconds(longest)
	lameDuck := o.checkInterval * time.Duration(o.checkFailures+1)
	if last != nil && last.Max > 0 {
		lameDuck = max(lameDuck, wholeSeconds(time.Duration(arrivalMargin*last.Max*float64(time.Second))))
	}
	drain, grace := wholeSeconds(2*longest), wholeSeconds(2*p999)
	s.LameDuck, s.Drain, s.Grace = lameDuck.Seconds(), drain.Seconds(), grace.Seconds()
	s.Deadline = s.LameDuck + s.Drain + s.Grace
}

// arrivalMargin is put on the longest last arrival: later ones than those of the last half minute exist.
const arrivalMargin = 1.5

// wholeSeconds rounds up, to at least one.
func wholeSeconds(d time.Duration) time.Duration {
	return max(time.Second, (d + time.Second - 1).Truncate(time.Second))
}

func sum[K comparable](m map[K]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}

// judge decides about the exit code.
func (r *drillReport) judge(o *drillFlags) {
	no := func(format string, args ...any) { r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...)) }
	if r.Interrupted {
		no("interrupted after %.1f s", r.Seconds)
	}
	if r.Failed > o.maxFailures {
		no("%d requests lost, more than %d", r.Failed, o.maxFailures)
	}
	if r.FailedTriggers > 0 {
		no("%d triggers failed", r.FailedTriggers)
	}
	for i := range r.Modes {
		m := &r.Modes[i]
		if m.OK == 0 {
			no("%s: no request was answered", m.Mode)
		}
		if unsent := sum(m.Faults); 100*unsent > m.Sent+unsent {
			no("%s: %d of %d requests could not be sent in time, as all clients waited for the server, or had no port: a lower --rate, or more --clients", m.Mode, unsent, m.Sent+unsent)
		}
		if o.maxP99Ratio > 0 && m.OK > 0 && m.P99Ratio == 0 {
			no("%s: the p99 in windows or that outside is not known", m.Mode)
		}
		if o.maxP99Ratio > 0 && m.P99Ratio > o.maxP99Ratio {
			no("%s: p99 in windows is %.2f times that outside, more than %v", m.Mode, m.P99Ratio, o.maxP99Ratio)
		}
	}
	r.Passed = len(r.Reasons) == 0
}
