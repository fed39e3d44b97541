package supervisor

import (
	"testing"
)

// TestEventsAfter: a follower who comes back, to the next image of handoverd as well, is told what it has missed, and how
// much of that is not known any more.
func TestEventsAfter(t *testing.T) {
	var before, h hub
	for range pastEvents {
		before.send(Event{Kind: "note"})
	}
	h.goOn(before.kept())
	for range 10 {
		h.send(Event{Kind: "note"})
	}
	const last = pastEvents + 10
	for _, c := range []struct{ after, lost, first, events int }{
		{after: 0}, // from now on
		{after: last},
		{after: last + 5}, // of another life
		{after: last - 1, first: last, events: 1},
		{after: pastEvents, first: pastEvents + 1, events: 10},
		{after: 10, first: 11, events: pastEvents},
		{after: 4, lost: 6, first: 11, events: pastEvents},
	} {
		events, end := h.after(c.after)
		end() // no more come
		lost, first, n := 0, 0, 0
		for e := range events {
			switch {
			case e.Kind == "lost" && n == 0:
				lost = e.Lost
			case n == 0:
				first = e.Seq
				n++
			case e.Seq != first+n:
				t.Errorf("after %d: event %d, want %d", c.after, e.Seq, first+n)
			default:
				n++
			}
		}
		if lost != c.lost || first != c.first || n != c.events {
			t.Errorf("after %d: %d lost, %d from %d on, want %+v", c.after, lost, n, first, c)
		}
	}
	h.send(Event{Kind: "note"})
	if past, n := h.kept(); n != last+1 || len(past) != pastEvents || past[len(past)-1].Seq != n {
		t.Errorf("%d events are kept, the last is %d of %d", len(past), past[len(past)-1].Seq, n)
	}
}

// TestRejoin: who comes back for a job is told its outcome, also if it has ended meanwhile.
func TestRejoin(t *testing.T) {
	l := &loop{jobs: map[int][]*waiter{}}
	l.state.Jobs = []*Job{{ID: 40}}
	for job := range 30 {
		l.keepOutcome(&ReloadReport{Job: job + 1})
	}
	wait := func(job int) (*waiter, bool) {
		w := &waiter{done: make(chan *ReloadReport, 1)}
		return w, l.rejoin(job, w)
	}
	for job, want := range map[int]bool{30 - keptOutcomes: false, 31 - keptOutcomes: true, 30: true, 31: false} {
		w, known := wait(job)
		if known != want || known && (<-w.done).Job != job {
			t.Errorf("job %d: known %v, want %v", job, known, want)
		}
	}
	if w, known := wait(40); !known || len(l.jobs[40]) != 1 || l.jobs[40][0] != w {
		t.Errorf("job 40 is under way: known %v, waited for by %v", known, l.jobs[40])
	}
}
