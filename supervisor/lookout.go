package supervisor

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// How often connections are looked at. A look costs what the kernel's table of
// connections costs; it is followed by lookShare times as long a pause.
const (
	connEvery = 100 * time.Millisecond
	openFrom  = 2 * time.Second // before a deadline of a drain its connections are counted
)

// lookout is the goroutine that looks at connections by sock_diag, so that the
// loop does not: it finds out when a service that is held is silent, when the last
// new connection came in a lame duck, and how many connections a generation has
// that may be about to exit.
type lookout struct {
	post func(event)
	kick chan struct{}

	mu     sync.Mutex
	wanted []connItem
	tails  map[string]*tail // by service
	open   map[at]int       // at the last look
}

// connItem is what is to be looked at for one service.
type connItem struct {
	service string
	sockets []fdpass.Addr // its listening TCP sockets
	lame    proc.Instant  // begin of its lame duck; 0: no tail is wanted
	quiet   time.Duration // how long its connections have to be silent; 0: not asked
	settled bool          // its queue has been emptied: silence is asked about once more
	count   []connGen     // whose connections are counted
	drain   []connGen     // who is to be silent; the others on its sockets are not waited for
	alone   bool          // no other generation has connections of these sockets
}

type connGen struct {
	at
	pid  int
	from proc.Instant // when it matters
}

// tail is when connections came after a lame duck had begun.
type tail struct {
	lame   proc.Instant
	known  map[uint64]bool // cookies of all connections seen
	last   proc.Instant    // a new one was seen; 0: none
	opens  uint64          // of the whole network namespace
	latest proc.Instant    // none can have come later, seen or not
	blind  bool            // connections cannot be looked at
}

func newLookout(post func(event)) *lookout {
	return &lookout{post: post, kick: make(chan struct{}, 1), tails: map[string]*tail{}, open: map[at]int{}}
}

// update replaces what is looked at.
func (k *lookout) update(items []connItem) {
	k.mu.Lock()
	began := len(items) > 0 && len(k.wanted) == 0
	for _, it := range items {
		began = began || !slices.ContainsFunc(k.wanted, func(w connItem) bool {
			return w.service == it.service && w.lame == it.lame && w.quiet == it.quiet && w.settled == it.settled &&
				len(w.count) == len(it.count) && w.due() == it.due()
		})
	}
	k.wanted = items
	k.mu.Unlock()
	if began {
		select {
		case k.kick <- struct{}{}:
		default:
		}
	}
}

// run looks as long as something is wanted, and sleeps when nothing is.
func (k *lookout) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		began := time.Now()
		var due <-chan time.Time
		if pause, again := k.pass(proc.Now()); again {
			timer.Reset(max(pause, lookShare*time.Since(began)))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return
		case <-k.kick:
		case <-due:
		}
	}
}

// pass looks once at what is due, and reports after which pause there is something
// to look at again, if there is.
func (k *lookout) pass(now proc.Instant) (pause time.Duration, again bool) {
	k.mu.Lock()
	items := k.wanted
	k.mu.Unlock()
	for i := range items {
		it := &items[i]
		wait := it.due().Sub(now)
		if wait <= 0 {
			k.look(it)
		}
		if wait = max(wait, connEvery); !again || wait < pause {
			pause, again = wait, true
		}
	}
	return pause, again
}

// due is when it is to be looked at: where connections are only counted, not before
// the first count matters.
func (it *connItem) due() proc.Instant {
	if it.lame != 0 || it.quiet > 0 || len(it.count) == 0 {
		return 0
	}
	return slices.MinFunc(it.count, func(a, b connGen) int { return cmp.Compare(a.from, b.from) }).from
}

func (k *lookout) look(it *connItem) {
	now := proc.Now()
	counting := slices.DeleteFunc(slices.Clone(it.count), func(g connGen) bool { return now < g.from })
	if it.lame != 0 && !k.moved(it) && it.quiet == 0 && len(counting) == 0 {
		return
	}
	all, err := proc.Connections(it.ports())
	conns := it.ours(all)
	if it.lame != 0 {
		k.note(it, conns, now, err)
	}
	if it.quiet > 0 && err == nil && it.silent(conns) {
		k.post(evQuiet{it.service})
	}
	if err != nil {
		return
	}
	for _, g := range counting {
		n := len(it.of(conns, []connGen{g}))
		k.mu.Lock()
		k.open[g.at] = n
		k.mu.Unlock()
	}
}

func (it *connItem) ports() []uint16 {
	var ports []uint16
	for _, a := range it.sockets {
		if !slices.Contains(ports, a.Port) {
			ports = append(ports, a.Port)
		}
	}
	return ports
}

// ours are the connections to the addresses of the sockets. A socket bound to all
// addresses is believed to have every connection to its port, also where another
// program listens on one address of it.
func (it *connItem) ours(all []proc.Connection) []proc.Connection {
	return slices.DeleteFunc(all, func(c proc.Connection) bool {
		return !slices.ContainsFunc(it.sockets, func(a fdpass.Addr) bool {
			return a.Port == c.Local.Port() && (!a.IP.IsValid() || a.IP.IsUnspecified() || a.IP.Unmap() == c.Local.Addr())
		})
	})
}

// of are the living connections of some generations. Those that nobody has
// accepted yet are of whoever accepts.
func (it *connItem) of(conns []proc.Connection, gens []connGen) []proc.Connection {
	var live []proc.Connection
	var inodes []uint64
	for _, c := range conns {
		if !c.Closing && c.Inode != 0 {
			live, inodes = append(live, c), append(inodes, c.Inode)
		}
	}
	if it.alone || len(live) == 0 {
		return live
	}
	var pids []int
	for _, g := range gens {
		ps, err := proc.Descendants(g.pid)
		if err != nil {
			pids = append(pids, g.pid)
		}
		for _, p := range ps {
			pids = append(pids, p.PID)
		}
	}
	held, err := proc.Holds(pids, inodes)
	if err != nil {
		return live // it cannot be told whose they are
	}
	return slices.DeleteFunc(live, func(c proc.Connection) bool { return !held[c.Inode] })
}

// silent reports whether all connections of what is held are silent, and nobody
// waits to be accepted.
func (it *connItem) silent(conns []proc.Connection) bool {
	if slices.ContainsFunc(conns, func(c proc.Connection) bool { return !c.Closing && c.Inode == 0 && c.Unread > 0 }) {
		return false
	}
	active := slices.DeleteFunc(slices.Clone(conns), func(c proc.Connection) bool { return c.Silent(it.quiet) })
	return len(it.of(active, it.drain)) == 0
}

// moved reports whether any connection was taken since the last look, in the whole
// network namespace: that costs next to nothing to find out.
func (k *lookout) moved(it *connItem) bool {
	now := proc.Now()
	opens, err := proc.PassiveOpens()
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.tails[it.service]
	if t == nil || t.lame != it.lame {
		k.tails[it.service] = &tail{lame: it.lame, opens: opens, latest: now}
		return true
	}
	if err == nil && opens == t.opens {
		return false
	}
	t.opens, t.latest = opens, now
	return true
}

// note writes down which connections are new.
func (k *lookout) note(it *connItem, conns []proc.Connection, now proc.Instant, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.tails[it.service]
	t.blind = err != nil
	first := t.known == nil
	if first {
		t.known = map[uint64]bool{}
	}
	seen := make(map[uint64]bool, len(conns))
	for _, c := range conns {
		seen[c.Cookie] = true
		if !first && !t.known[c.Cookie] {
			t.last = now
		}
	}
	if err == nil {
		t.known = seen
	}
}

// tailOf is when the last new connection of a service came, of the lame duck that
// began then.
func (k *lookout) tailOf(service string, lame proc.Instant) (t tail, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if p := k.tails[service]; p != nil && p.lame == lame {
		return *p, true
	}
	return tail{}, false
}

// keptTail is a tail as the next image of handoverd goes on with it.
type keptTail struct {
	Lame   proc.Instant `json:"lame"`
	Known  []uint64     `json:"known"` // null: nothing was looked at yet
	Last   proc.Instant `json:"last,omitempty"`
	Opens  uint64       `json:"opens"`
	Latest proc.Instant `json:"latest"`
	Blind  bool         `json:"blind,omitempty"`
}

// kept are the tails of the lame ducks that there are, by service.
func (k *lookout) kept(s *State) map[string]keptTail {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string]keptTail{}
	for name, t := range k.tails {
		if svc := s.Services[name]; svc == nil || svc.Lame == nil || svc.Lame.Began != t.lame {
			continue
		}
		kept := keptTail{Lame: t.lame, Last: t.last, Opens: t.opens, Latest: t.latest, Blind: t.blind}
		if t.known != nil {
			kept.Known = slices.AppendSeq(make([]uint64, 0, len(t.known)), maps.Keys(t.known))
		}
		out[name] = kept
	}
	return out
}

// goOn goes on with them.
func (k *lookout) goOn(tails map[string]keptTail) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, t := range tails {
		on := &tail{lame: t.Lame, last: t.Last, opens: t.Opens, latest: t.Latest, blind: t.Blind}
		if t.Known != nil {
			on.known = make(map[uint64]bool, len(t.Known))
			for _, cookie := range t.Known {
				on.known[cookie] = true
			}
		}
		k.tails[name] = on
	}
}

// openOf is how many connections a generation had at the last look, and forgets it.
func (k *lookout) openOf(a at) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.open[a]
	delete(k.open, a)
	return n
}
