package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const stopped50 = `## Stopped, behind a balancer that learns late

Two servers behind a balancer, %[1]v requests a second of 0 to 20 ms. One of them is stopped by SIGTERM, %[2]d times in turns, and is
away until the balancer has noticed. HAProxy probes ` + "`/ready`" + ` every %[3]v and acts after %[4]d failures, so it learns
%[5]v to %[6]v late; retries are off (` + "`retries 0`" + `), so that what fails is seen. The servers are the same in all rows:
` + "`drain.Sequence`" + ` with ` + "`ReadyHandler`" + `, and with one of the loops as its ` + "`LameDuck`" + `.

`

const behindNotes = `*waited* is the lame duck phase, *last new* how long after its begin the last new connection with a request came, the longest of all
stops. A ` + "`Timer`" + ` has to be longer than that, and longer by more where the balancer, as HAProxy does here, also sends on connections
that it has open already: those do not show in it.
*to exit* is from the signal to the end. The drain is bounded to %[1]v in these rows: HAProxy keeps some of its idle connections for longer,
and they are closed then, which loses nothing, because it sends nothing there any more.

`

const behindLoops = "`ProbesSeen`" + ` with the count of another balancer than the one that probes leaves long before that has acted. With the right count and no
` + "`Then`" + ` it leaves in the moment in which the last failure is answered: that can be soon enough for one HAProxy, which acts upon the answer,
and is not for a balancer that has to tell its parts. ` + "`Acknowledged`" + ` is the shortest and needs no number that somebody keeps in step with
the balancer's configuration; it needs the right to change the balancer's state, and whoever starts the server again has to change it back.

nginx probes nothing (its open-source edition learns from failed requests alone), so nothing can be waited for: each stop costs the
requests by which it learns, unless it may ask the other server (` + "`proxy_next_upstream`" + `), which it does for methods that may be
repeated. Behind it the upstream has to be taken out by its configuration before the stop, or the socket handed over.
`

// renderBehind is the second table.
func (r *results) renderBehind(b *strings.Builder) {
	p := r.Pace
	inter := time.Duration(p.Inter * float64(time.Second))
	fmt.Fprintf(b, stopped50, p.Rate, p.Stops, inter, p.Fall, inter*time.Duration(p.Fall-1), inter*time.Duration(p.Fall))
	b.WriteString("| loop | lost | stops that lost | waited, median | last new, longest | to exit, median |\n|---|--:|--:|--:|--:|--:|\n")
	for _, l := range r.Lines {
		fmt.Fprintf(b, "| %s | %s | %d of %d | %s | %s | %s |\n", l.Title, lostOf(l.tally), l.losing(), len(l.Stops),
			seconds(l.middle(func(s stopped) int64 { return s.WaitMS })),
			seconds(l.longest(func(s stopped) int64 { return s.LastMS })),
			seconds(l.middle(func(s stopped) int64 { return s.TookMS })))
	}
	b.WriteString("\n")
	fmt.Fprintf(b, behindNotes, time.Duration(p.Drain*float64(time.Second)))
	r.renderSmallest(b)
	b.WriteString(behindLoops)
}

// renderSmallest says which timer of the sweep is the one to compare with.
func (r *results) renderSmallest(b *strings.Builder) {
	for _, l := range r.Lines {
		if l.Sweep && l.Lost == 0 {
			fmt.Fprintf(b, "The smallest timer of the sweep that lost nothing is %s.\n\n", l.Title)
			return
		}
	}
}

// losing is how many stops lost something.
func (l line) losing() int {
	n := 0
	for _, s := range l.Stops {
		if s.LostThen > 0 {
			n++
		}
	}
	return n
}

// sorted are the values of all stops; there is at least one.
func (l line) sorted(of func(stopped) int64) []int64 {
	var all []int64
	for _, s := range l.Stops {
		all = append(all, of(s))
	}
	slices.Sort(all)
	return all
}

func (l line) middle(of func(stopped) int64) int64 {
	all := l.sorted(of)
	return all[len(all)/2]
}

func (l line) longest(of func(stopped) int64) int64 {
	all := l.sorted(of)
	return all[len(all)-1]
}

func seconds(ms int64) string {
	return strings.TrimSpace(fmt.Sprintf("%.2f s", float64(ms)/1000))
}
