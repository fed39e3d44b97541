package supervisor

import (
	"context"
	"time"
)

// question is what is asked about a generation: it itself, or the outside.
type question struct {
	at
	gate bool
}

// prober asks one question again and again, and tells what of the answers is news.
type prober struct {
	cfg  *ProbeConfig
	ask  func(context.Context) error
	tell func(verdict)
}

// verdict is what the answers come to: good, when enough in a row were; bad, when
// enough in a row were; else only how the last one was.
type verdict struct {
	good, bad bool
	text      string
}

// run asks until ctx ends: the first time at once, then an interval after the end
// of the question before.
func (p *prober) run(ctx context.Context) {
	var successes, failures int
	var last verdict
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		err := p.once(ctx)
		if ctx.Err() != nil {
			return
		}
		var v verdict
		if err == nil {
			successes, failures = successes+1, 0
			v = verdict{good: last.good || successes >= p.cfg.Successes}
		} else {
			successes, failures = 0, failures+1
			v = verdict{bad: failures >= p.cfg.Failures, text: err.Error()}
			v.good = last.good && !v.bad
		}
		if v != last && (v.good || v.bad || v.text != "") {
			p.tell(v)
		}
		last = v
		pause.Reset(p.cfg.Interval)
	}
}

func (p *prober) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	return p.ask(ctx)
}

// questions derives from the state what is to be asked now.
func (s *State) questions() []question {
	var out []question
	for _, name := range s.Order {
		for _, g := range s.Services[name].Generations {
			if g.isProbed() {
				out = append(out, question{at: at{name, g.N}})
			}
			if g.isAtGate() {
				out = append(out, question{at: at{name, g.N}, gate: true})
			}
		}
	}
	return out
}

// keepAsking starts what is to be asked and is not, and ends the rest.
func (l *loop) keepAsking() {
	if l.up.resting {
		return
	}
	wanted := map[question]bool{}
	for _, q := range l.state.questions() {
		wanted[q] = true
		if l.asked[q] == nil && l.children[q.at] != nil {
			l.asked[q] = l.begin(q)
		}
	}
	for q, end := range l.asked {
		if !wanted[q] {
			end()
			delete(l.asked, q)
		}
	}
}

// begin starts a prober. The function returned ends it without waiting; Run waits.
func (l *loop) begin(q question) context.CancelFunc {
	ctx, cancel := context.WithCancel(l.ctx)
	_, g := l.generation(q.at)
	p := &prober{cfg: g.Spec.Config.Ready.Probe}
	p.tell = func(v verdict) { l.post(evProbe{at: q.at, OK: v.good && v.text == "", Bad: v.bad, Text: v.text}) }
	if q.gate {
		p.cfg = g.Spec.Config.Ready.Gate
		p.tell = func(v verdict) { l.post(evGate{at: q.at, OK: v.good, Text: v.text}) }
	}
	p.ask = l.asker(g, p.cfg)
	l.up.flight.begin()
	l.readers.Add(1) // Run waits for it
	go l.askOn(ctx, p)
	return cancel
}

func (l *loop) askOn(ctx context.Context, p *prober) {
	defer l.readers.Done()
	defer l.up.flight.end(l)
	p.run(ctx)
}
