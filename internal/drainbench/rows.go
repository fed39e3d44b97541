package main

import (
	"fmt"
	"time"
)

// A row is one balancer and one way to learn that it has noticed.
type row struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Nginx bool   `json:"nginx"`
	Retry bool   `json:"retry"` // the balancer asks the other server after a failure
	Loop  string `json:"loop"`
	Sweep bool   `json:"sweep"` // one of the timers that are compared
}

// pace is how fast a balancer notices, and how much of the second table is run.
type pace struct {
	inter, then time.Duration // between two probes; ProbesSeen.Then
	fall        int           // failed probes until the balancer acts
	stops       int
	rate        float64
	timers      []time.Duration
	longest     time.Duration // lame duck phase
	drain       time.Duration // longest drain: what HAProxy keeps of idle connections is waited for no longer
	deadline    time.Duration // of a server, from SIGTERM to the end
	away        time.Duration // how long a server that nobody probes is away
}

// fullPace and briefPace: the balancer learns 4 to 5 s, or 0.4 to 0.5 s, after the first probe could fail.
var (
	fullPace = pace{
		inter: time.Second, fall: 5, then: time.Second, stops: 50, rate: 500,
		timers:  []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second, 5 * time.Second, 6 * time.Second},
		longest: 12 * time.Second, drain: 2 * time.Second, deadline: 20 * time.Second, away: 2 * time.Second,
	}
	briefPace = pace{
		inter: 100 * time.Millisecond, fall: 5, then: 200 * time.Millisecond, stops: 2, rate: 200,
		timers:  []time.Duration{800 * time.Millisecond},
		longest: 3 * time.Second, drain: time.Second, deadline: 6 * time.Second, away: 200 * time.Millisecond,
	}
)

// rows are all of the second table. A prober acts on the answer to its last probe, which the server counts when it is sent:
// Then is the rest of the way.
func (p pace) rows() []row {
	var all []row
	for _, d := range p.timers {
		all = append(all, row{Name: "timer-" + d.String(), Title: fmt.Sprintf("`Timer(%v)`", d), Loop: "timer:" + d.String(), Sweep: true})
	}
	noticed := p.inter * time.Duration(p.fall)
	timer, count := "timer:"+noticed.String(), fmt.Sprintf("probes:%d:0s", p.fall)
	return append(all,
		row{Name: "probes-then", Title: fmt.Sprintf("`ProbesSeen{Count: %d, Then: %v}`", p.fall, p.then), Loop: fmt.Sprintf("probes:%d:%v", p.fall, p.then)},
		row{Name: "probes", Title: fmt.Sprintf("`ProbesSeen{Count: %d}`, no `Then`", p.fall), Loop: count},
		row{Name: "probes-3", Title: "`ProbesSeen{}`: three probes, no `Then`", Loop: "probes:3:0s"},
		row{Name: "acknowledged", Title: "`Acknowledged`: `set server … state drain`, until `scur` is 0", Loop: "acknowledged"},
		row{Name: "nginx", Title: fmt.Sprintf("`Timer(%v)`, nginx, `proxy_next_upstream off`", noticed), Loop: timer, Nginx: true},
		row{Name: "nginx-retry", Title: fmt.Sprintf("`Timer(%v)`, nginx, `proxy_next_upstream error timeout`", noticed), Loop: timer, Nginx: true, Retry: true},
	)
}
