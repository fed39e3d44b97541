package supervisor

import (
	"context"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// The pace of looking. A look that cost c of a processor is followed by a pause of at least
// lookShare*c, so that looking never takes more than a twentieth of a core; the
// pause grows with the time that a watch has lasted. A look at the main process
// costs little and is made often; one at all processes reads, where the kernel
// has no lists of children, the whole of /proc, and has a pace of its own: each
// of the two then has half of the twentieth.
const (
	lookShare     = 19
	halfShare     = 39
	wideAfter     = 20 * time.Millisecond // before that a program has hardly started others
	lookShortest  = time.Millisecond
	lookLongest   = 100 * time.Millisecond
	sweepShortest = 2 * time.Millisecond
	sweepLongest  = time.Second
	letGoApart    = 100 * time.Millisecond // two looks that far apart show that it let go
	deepMargin    = 500 * time.Millisecond // before release_timeout the epoll sets of big processes are read, once
	memberEvery   = 8                      // looks at a starting generation: every so many for strays too
)

// scanner is the goroutine that reads /proc, so that the loop does not. It is
// told what to watch and what to sweep, and posts what it sees.
type scanner struct {
	post   func(event)
	reaper *proc.Reaper
	looker proc.Looker
	helped time.Duration // how long helpers have looked

	kick chan struct{}

	mu      sync.Mutex
	watches map[at]*watch
	sweeps  map[at]*sweep
}

// watch is one generation to be looked at.
type watch struct {
	watchItem
	began, next time.Time
	hurry       bool      // it says that it is ready: look now; guarded by scanner.mu
	nextWide    time.Time // when all processes are to be looked at again
	wideLooks   int
	wide        bool      // somebody else than the main process accepts
	busy        bool      // at the last look threads ran that may wait in a moment
	letGo       time.Time // since when it has been seen to poll nothing
	posted      bool
	last        evSight
}

// watchItem is what the state says is to be watched.
type watchItem struct {
	at
	leader   int
	token    string
	release  bool // has it let go? else: does it accept?
	ready    bool // it has said that it is ready
	adoptAll bool
	uid, gid uint32
	groups   []uint32
	sameUser bool // runs as handoverd's user, or nothing is known of another
	sockets  []watchedSocket
	own      []uint64 // inodes of the sockets that are bound for it alone
	deepAt   proc.Instant
}

type watchedSocket struct {
	name  string
	inode uint64
	port  uint16 // 0: not TCP
	addr  string // for messages
}

func (w *watchItem) inodes() []uint64 {
	out := make([]uint64, len(w.sockets))
	for i, s := range w.sockets {
		out[i] = s.inode
	}
	return out
}

// sweep ends everything that a generation started.
type sweep struct {
	at
	leader int
	token  string
	before uint64 // bounds the leader's session where nobody holds its number
	signal unix.Signal

	next   time.Time
	pause  time.Duration
	sent   bool
	empty  int // passes in a row that found nothing
	posted bool
}

func newScanner(post func(event), reaper *proc.Reaper) *scanner {
	return &scanner{
		post: post, reaper: reaper, kick: make(chan struct{}, 1),
		watches: map[at]*watch{}, sweeps: map[at]*sweep{},
	}
}

// update replaces what is watched. A watch that goes on keeps its memory.
func (s *scanner) update(items []watchItem) {
	s.mu.Lock()
	changed := false
	keep := make(map[at]*watch, len(items))
	for _, it := range items {
		if w := s.watches[it.at]; w != nil && w.release == it.release && w.leader == it.leader {
			keep[it.at] = w
			if it.ready && !w.ready {
				w.ready, w.hurry, changed = true, true, true
			}
			continue
		}
		changed = true
		now := time.Now()
		keep[it.at] = &watch{watchItem: it, began: now, nextWide: now.Add(wideAfter)}
	}
	s.watches = keep
	s.mu.Unlock()
	if changed {
		s.wake()
	}
}

// sweep adds a sweep, or makes the one under way harder.
func (s *scanner) sweep(sw sweep) {
	sw.pause = sweepShortest
	s.mu.Lock()
	s.sweeps[sw.at] = &sw
	s.mu.Unlock()
	s.wake()
}

func (s *scanner) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// run looks and sweeps when something is due, and waits without waking up
// when nothing is to be done.
func (s *scanner) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		next := s.pass()
		timer.Stop()
		var due <-chan time.Time
		if !next.IsZero() {
			timer.Reset(max(0, time.Until(next)))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-due:
		}
	}
}

// pass does what is due and returns when something is due again, or zero.
func (s *scanner) pass() time.Time {
	s.mu.Lock()
	watches, sweeps := make([]*watch, 0, len(s.watches)), make([]*sweep, 0, len(s.sweeps))
	for _, w := range s.watches {
		if w.hurry {
			w.hurry, w.next, w.nextWide = false, time.Time{}, time.Time{}
		}
		watches = append(watches, w)
	}
	for _, sw := range s.sweeps {
		sweeps = append(sweeps, sw)
	}
	s.mu.Unlock()
	var next time.Time
	consider := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, sw := range sweeps {
		if !time.Now().Before(sw.next) {
			s.sweepOnce(sw)
		}
		if !sw.posted {
			consider(sw.next)
		}
	}
	for _, w := range watches {
		if !time.Now().Before(w.next) {
			s.watchOnce(w)
		}
		consider(w.next)
	}
	return next
}

// sweepOnce sends the signal to all that is left. The generation is gone when
// two passes in a row find nothing: a process may fork while it is looked for.
func (s *scanner) sweepOnce(sw *sweep) {
	var left int
	var err error
	if sw.signal == unix.SIGKILL || !sw.sent {
		left, err = proc.KillMembersBefore(sw.leader, sw.token, sw.before, sw.signal)
		sw.sent = !proc.Starved(err)
	} else {
		var members []proc.Process
		members, err = proc.MembersBefore(sw.leader, sw.token, sw.before)
		left = len(members)
	}
	if sw.before == 0 && sw.leader > 1 && proc.Starved(err) {
		// Nobody can be found now. The leader's number is held, so the group is its
		// own, which is reached without a descriptor.
		_ = unix.Kill(-sw.leader, sw.signal)
	}
	if left > 0 || err != nil {
		sw.empty = 0
		sw.pause = min(2*sw.pause, sweepLongest)
		sw.next = time.Now().Add(sw.pause)
		return
	}
	if sw.empty++; sw.empty < 2 {
		sw.next = time.Now()
		return
	}
	sw.posted = true
	s.mu.Lock()
	last := s.sweeps[sw.at] == sw
	if last {
		delete(s.sweeps, sw.at)
	}
	s.mu.Unlock()
	// A harder sweep may have taken this one's place. Only that one may say
	// that the generation is gone, since its leader is then reaped, and a
	// sweep that goes on could hit a stranger with the same number.
	if last {
		s.post(evGone{sw.at})
	}
}

// watchOnce looks at one generation and posts what is new.
func (s *scanner) watchOnce(w *watch) {
	e, news := s.see(w)
	if w.release {
		e = w.settled(e, time.Now())
	}
	if !news || w.posted && sameSight(e, w.last) {
		return
	}
	w.posted, w.last = true, e
	s.post(e)
}

// pause is how long nobody looks after a look that cost so much. It does not grow
// while threads that run hide what is looked for: one in many looks finds a busy
// server between its work.
func (w *watch) pause(cost time.Duration, share int) time.Duration {
	grown := time.Since(w.began) / 10
	if w.busy {
		grown = 0
	}
	return max(time.Duration(share)*cost, min(max(lookShortest, grown), lookLongest))
}

// settled turns a look at a retired generation into one that is believed: two
// looks apart. A program may be between two waits at the moment of one.
func (w *watch) settled(e evSight, now time.Time) evSight {
	switch {
	case e.Blind || e.Polls:
		w.letGo = time.Time{}
	case w.letGo.IsZero():
		w.letGo = now
		e.Polls = true
	case now.Sub(w.letGo) < letGoApart:
		e.Polls = true
	}
	if !w.letGo.IsZero() {
		if at := w.letGo.Add(letGoApart); w.next.After(at) && at.After(now) {
			w.next = at
		}
	}
	return e
}

func sameSight(a, b evSight) bool {
	return a.at == b.at && a.Polls == b.Polls && a.Blind == b.Blind && a.Fault == b.Fault &&
		a.Stale == b.Stale && slices.Equal(a.Idle, b.Idle)
}
