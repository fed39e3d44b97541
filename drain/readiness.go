package drain

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// maxProbers bounds the memory for who has asked: a stranger who reaches the
// address of the probes could otherwise fill it.
const maxProbers = 1024

// probes is who asks for readiness, and how often it has heard no.
type probes struct {
	mu      sync.Mutex
	wanted  bool // per and within are known
	per     func(*http.Request) string
	within  time.Duration
	began   time.Time // of the failing; zero: it has not begun
	probers map[string]*prober
	count   int           // wanted of each
	done    chan struct{} // closed when each has seen count; nil: nobody waits
}

// want sets who is told apart, and for how long one that has asked is waited for.
// Only the first call counts. Who asked before it has no name that could be known.
func (p *probes) want(per func(*http.Request) string, within time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted {
		return
	}
	p.per, p.within, p.wanted = per, within, true
	clear(p.probers)
}

type prober struct {
	last   time.Time
	failed int
}

// note counts one probe.
func (p *probes) note(r *http.Request, failed bool) {
	p.mu.Lock()
	per := p.per
	p.mu.Unlock()
	if per == nil {
		per = peer
	}
	name := per(r)
	p.mu.Lock()
	defer p.mu.Unlock()
	one := p.probers[name]
	if one == nil {
		if len(p.probers) >= maxProbers {
			p.forgetLocked(time.Now()) // those of months ago must not keep out those of today
		}
		if len(p.probers) >= maxProbers {
			return
		}
		if p.probers == nil {
			p.probers = make(map[string]*prober)
		}
		one = &prober{}
		p.probers[name] = one
	}
	one.last = time.Now()
	if failed {
		one.failed++
		p.lookLocked()
	}
}

// begin starts the count of failures, and forgets who asked too long ago.
func (p *probes) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began = time.Now()
	p.forgetLocked(p.began)
	for _, one := range p.probers {
		one.failed = 0
	}
}

// forgetLocked drops who asked too long ago.
func (p *probes) forgetLocked(now time.Time) {
	within := p.within
	if within <= 0 {
		within = time.Minute
	}
	for name, one := range p.probers {
		if now.Sub(one.last) > within {
			delete(p.probers, name)
		}
	}
}

// enough returns a channel that is closed once each prober, and at least one,
// has seen count failures.
func (p *probes) enough(count int) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count, p.done = count, make(chan struct{})
	p.lookLocked()
	return p.done
}

func (p *probes) lookLocked() {
	if p.done == nil || len(p.probers) == 0 {
		return
	}
	for _, one := range p.probers {
		if one.failed < p.count {
			return
		}
	}
	close(p.done)
	p.done = nil
}

// A readiness is what ReadyHandler answers.
type readiness struct {
	Ready  bool   `json:"ready"`
	Phase  Phase  `json:"phase"`
	Reason string `json:"reason,omitempty"`
}

// ReadyHandler answers whether new clients should be sent here: 200 while
// serving, 503 from the lame duck phase on, with the phase as JSON. Probes are
// served to the end, on whatever listener it is put.
//
// After a hand-over it goes on answering 200: another generation serves at the
// same address, and a prober whose connection happens to end here asks about
// the service, not about this process. When the supervisor then ends the service
// it is 503 here as well.
//
// It says nothing of health: do not restart a program because it is not ready.
// That is LiveHandler's.
func (s *Sequence) ReadyHandler() http.Handler { return http.HandlerFunc(s.serveReady) }

func (s *Sequence) serveReady(w http.ResponseWriter, r *http.Request) {
	s.init()
	if m, ok := r.Context().Value(memberKey{}).(*member); ok {
		m.http.probe.Store(true)
	}
	s.mu.Lock()
	answer := readiness{Phase: s.phase}
	switch {
	case s.phase == Serving:
		answer.Ready, answer.Reason = s.unready == "", s.unready
	case s.report.Handover:
		answer.Ready = !s.lame && !s.ends() // else the service ends, and not this generation alone
	}
	s.mu.Unlock()
	s.probes.note(r, !answer.Ready)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !answer.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// A prober that has hung up has lost interest.
	_ = json.NewEncoder(w).Encode(answer)
}

// LiveHandler answers 200 in every phase: the process is alive and busy with
// its end, and whoever restarts it now cuts its work.
func (s *Sequence) LiveHandler() http.Handler { return http.HandlerFunc(s.serveLive) }

func (s *Sequence) serveLive(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	// As above.
	_ = json.NewEncoder(w).Encode(struct {
		Phase Phase `json:"phase"`
	}{s.Phase()})
}

// Unready makes ReadyHandler answer 503 with reason while the phase is Serving:
// before a cache is warm, or while a dependency is away. "" takes it back.
func (s *Sequence) Unready(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unready = reason
}
