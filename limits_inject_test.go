//go:build linux

package handover_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// What a limit does to a reload, wherever it meets it: the call fails as it does at the limit, once or from there on until
// the reload has ended. The reload is refused with that reason, or goes on where it can do without; what serves serves on,
// the descriptors are those of before, and once the limit is lifted the next reload works.

// limit is one that calls may meet.
type limit struct {
	name  string
	errno unix.Errno
	// meets: whether a call can fail with it.
	meets func(*call) bool
}

// opens reports whether a call makes a descriptor, and so can meet RLIMIT_NOFILE (getrlimit(2)).
func (c *call) opens() bool {
	switch c.nr {
	case unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_ACCEPT4, unix.SYS_OPENAT, unix.SYS_FCNTL, unix.SYS_PIPE2,
		unix.SYS_MEMFD_CREATE, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_EPOLL_CREATE1, unix.SYS_EVENTFD2,
		unix.SYS_INOTIFY_INIT1:
		return true
	case unix.SYS_CLONE, unix.SYS_CLONE3: // with CLONE_PIDFD
		return !c.thread()
	}
	return false
}

// fills reports whether a call needs room in the file system of the runtime directory.
func (c *call) fills() bool {
	switch c.nr {
	case unix.SYS_OPENAT:
		return c.args[2]&unix.O_CREAT != 0
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_FSYNC, unix.SYS_FTRUNCATE:
		return strings.HasPrefix(c.file(), "/dev/shm/") && !strings.HasSuffix(c.file(), "/test.log")
	case unix.SYS_BIND:
		var family [2]byte
		return c.read(c.args[1], family[:]) && binary.NativeEndian.Uint16(family[:]) == unix.AF_UNIX
	case unix.SYS_RENAMEAT, unix.SYS_LINKAT, unix.SYS_MKDIRAT:
		return true
	case unix.SYS_INOTIFY_ADD_WATCH: // of the limit of watches, inotify(7)
		return true
	}
	return false
}

// limits are what is injected. EAGAIN of a fork is RLIMIT_NPROC; of a thread it ends every Go program (runtime, newosproc):
// of one in the shim, which is not handoverd.
var limits = []limit{
	{"EMFILE", unix.EMFILE, (*call).opens},
	{"ENOSPC", unix.ENOSPC, (*call).fills},
	{"ETOOMANYREFS", unix.ETOOMANYREFS, func(c *call) bool { return c.nr == unix.SYS_SENDMSG && c.rights() }},
	{"EAGAIN", unix.EAGAIN, func(c *call) bool {
		return (c.nr == unix.SYS_CLONE || c.nr == unix.SYS_CLONE3) && (!c.own || !c.thread())
	}},
}

// injected is the scene: two configurations, and a reload from one to the other that opens sockets, runs a check, starts a
// program and retires one.
type injected struct {
	*scene
	g      *gate
	plain  childService
	more   childService
	keeper int
	files  map[string]int // handoverd's and the keeper's descriptors by what they are, between reloads
	fresh  *traffic
}

func newInjected(t *testing.T) *injected {
	t.Helper()
	s := &injected{scene: &scene{Daemon: NewDaemon(t), t: t}}
	const own = `own = { listen = "unix://%s/own.${HANDOVER_GENERATION}.sock", per_generation = true }`
	plain := oneSocket + "\n" + fmt.Sprintf(own, s.Dir)
	s.plain = childService{socket: plain, ready: "settle = \"1ms\"", retire: "parent_shutdown = \"1m\"\nrelease_timeout = \"30s\"", env: `TESTCHILD_SOCKETS = "http"`}
	s.more = s.plain
	s.more.socket += fmt.Sprintf("\nadded = \"tcp4://127.0.0.1:%d\"\npath = \"unix://%s/path.sock\"", FreePort(t), s.Dir)
	s.configure(s.plain)
	s.g = startGated(t, s.Daemon)
	s.WaitReady()
	s.fresh = s.lightLoad()
	s.round(nil) // whatever is made once and kept
	s.settle()
	s.keeper = s.Status().Keeper.PID
	s.files = s.filesNow()
	since := time.Now()
	eventually(t, "the descriptors have come to rest", func() bool {
		if now := s.filesNow(); !maps.Equal(now, s.files) {
			s.files, since = now, time.Now()
		}
		return time.Since(since) > time.Second
	})
	return s
}

// filesNow are the descriptors of handoverd and its keeper by what they are. It asks handoverd nothing: that would be a
// descriptor more.
func (s *injected) filesNow() map[string]int {
	s.t.Helper()
	found := map[string]int{}
	for name, pid := range map[string]int{"handoverd": s.PID, "keeper": s.keeper} {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		entries, err := os.ReadDir(dir)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, e := range entries {
			if link, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil { // else closed meanwhile
				found[name+" "+numbers.ReplaceAllString(link, "N")]++
			}
		}
	}
	return found
}

// lasts is for how long a limit stays once it was met, if the reload does not end before: what waits for the descriptors
// to look with, as the adoption does, then goes on.
const lasts = time.Second

// meeting makes a call of one kind fail: the nth, and, where lasting, all that can fail so from there on, for a time.
type meeting struct {
	limit   limit
	step    string // of which kind
	nth     int
	lasting bool

	mu    sync.Mutex
	met   int // how many of the kind there were
	begun time.Time
}

func (m *meeting) decide(c *call) verdict {
	if !c.own && !c.shim() || !m.limit.meets(c) {
		return verdict{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.met >= m.nth {
		if m.lasting && time.Since(m.begun) < lasts {
			return verdict{errno: m.limit.errno}
		}
		return verdict{}
	}
	if c.String() != m.step {
		return verdict{}
	}
	if m.met++; m.met == m.nth {
		m.begun = time.Now()
		return verdict{errno: m.limit.errno}
	}
	return verdict{}
}

func (m *meeting) seen() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.met
}

// steps are what one reload does that may meet each of the limits, in order of the first time, with how often.
func (s *injected) steps(limits []limit) (order [][]string, count []map[string]int) {
	s.t.Helper()
	order = make([][]string, len(limits))
	for range limits {
		count = append(count, map[string]int{})
	}
	s.round(func(c *call) verdict {
		if !c.own && !c.shim() {
			return verdict{}
		}
		for i, l := range limits {
			if !l.meets(c) {
				continue
			}
			name := c.String()
			if count[i][name]++; count[i][name] == 1 {
				order[i] = append(order[i], name)
			}
		}
		return verdict{}
	})
	return order, count
}

// round reloads to the other configuration behind the gate, and back. It returns the outcome of the first.
func (s *injected) round(decide func(*call) verdict) (*supervisor.ReloadReport, error) {
	s.t.Helper()
	s.configure(s.more)
	s.g.watch(decide)
	report, err := s.Reload(limited(s.t))
	s.g.watch(nil)
	s.settle()
	s.configure(s.plain)
	s.MustReload()
	s.settle()
	return report, err
}

// meet is a round with a limit in it, and what has to be true of it.
func (s *injected) meet(m *meeting) (outcome string) {
	s.t.Helper()
	before, pid := s.Serving("web")
	s.configure(s.more)
	s.g.watch(m.decide)
	report, err := s.Reload(limited(s.t))
	state := s.stateFile()
	s.g.watch(nil)
	s.settle()
	after, pidAfter := s.Serving("web")
	what := fmt.Sprintf("%s of %q, the %d., lasting %v", m.limit.name, m.step, m.nth, m.lasting)
	switch {
	case err != nil:
		s.t.Errorf("%s: no outcome: %v", what, err)
	case report.OK():
		outcome = "serves"
		if after <= before {
			s.t.Errorf("%s: the reload says it serves, and generation %d does, as before", what, after)
		}
		if n := state.serving("web"); n != after {
			s.t.Errorf("%s: generation %d was committed, and the state file says that %d serves", what, after, n)
		}
	default:
		outcome = string(report.Results[0].Outcome) + ": " + report.Results[0].Reason
		if after != before || pid != pidAfter {
			s.t.Errorf("%s: %s, and generation %d (%d) serves, before it was %d (%d)", what, outcome, after, pidAfter, before, pid)
		}
		if said := strings.Join(append(report.Results[0].Output, outcome), "\n"); m.seen() >= m.nth && !strings.Contains(said, m.limit.errno.Error()) {
			s.t.Errorf("%s: nothing says %q: %s", what, m.limit.errno.Error(), said)
		}
	}
	s.configure(s.plain)
	s.MustReload()
	s.settle()
	s.sameAsBefore(what)
	return outcome
}

// sameAsBefore: what there was before there is, and nothing else.
func (s *injected) sameAsBefore(what string) {
	s.t.Helper()
	var now map[string]int
	ok := within(func() bool { now = s.filesNow(); return maps.Equal(now, s.files) })
	if !ok {
		s.t.Errorf("%s: the descriptors are not those of before (-before +now):\n%s", what, cmp.Diff(s.files, now))
		s.files = now
	}
	_, pid := s.Serving("web")
	var left []int
	if !within(func() bool { left = s.Left(); return slices.Equal(left, []int{pid}) }) {
		s.t.Errorf("%s: processes %v are left, want %d alone", what, left, pid)
	}
}

// TestLimitsInjected meets each limit at each step of a reload. The short form takes a sample of them, another one at each
// run.
func TestLimitsInjected(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	if !full() {
		newInjected(t).meetAll(limits, 1)
		return
	}
	for _, l := range limits {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			newInjected(t).meetAll([]limit{l}, 0)
		})
	}
}

// meetAll meets the limits at every step, or, where sample is not 0, each at so many of them.
func (s *injected) meetAll(limits []limit, sample int) {
	order, count := s.steps(limits)
	for i, l := range limits {
		all := meetings(l, order[i], count[i])
		if sample > 0 {
			rand.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
			all = all[:min(sample, len(all))]
		}
		for round, m := range all {
			outcome := s.meet(m)
			s.fresh = s.anew(s.fresh, round)
			s.t.Logf("%-12s %-60s %d. of %d  lasting %-5v met %-5v %s", l.name, m.step, m.nth, count[i][m.step], m.lasting, m.seen() >= m.nth, outcome)
		}
	}
	s.fresh.end()
	s.Stop()
}

// meetings are all places where a reload meets the limit, with twelve of those that come as often as there are processes.
func meetings(l limit, order []string, count map[string]int) []*meeting {
	const most = 12
	var all []*meeting
	for _, step := range order {
		for n := 1; n <= min(count[step], most); n++ {
			all = append(all, &meeting{limit: l, step: step, nth: n})
			// Where no connection is accepted any more nobody can ask for a reload.
			if step != "accept4" {
				all = append(all, &meeting{limit: l, step: step, nth: n, lasting: true})
			}
		}
	}
	return all
}

// stateText is state.json as far as these tests read it.
type stateText struct {
	Services map[string]struct {
		Generations []struct {
			N      int
			Phase  supervisor.Phase
			PID    int
			Untold bool // that it is to drain
		}
	}
}

func (d *Daemon) stateFile() stateText {
	d.t.Helper()
	text, err := os.ReadFile(filepath.Join(d.Dir, "state.json"))
	if err != nil {
		d.t.Fatal(err)
	}
	var s stateText
	if err := json.Unmarshal(text, &s); err != nil {
		d.t.Fatalf("state.json: %v in %q", err, text)
	}
	return s
}

// serving is the generation that the state says serves; 0: none.
func (s *stateText) serving(service string) int {
	for _, g := range s.Services[service].Generations {
		if g.Phase == supervisor.PhaseServing {
			return g.N
		}
	}
	return 0
}

// within is eventually for what a test goes on without: it reports whether it came to be, after ten seconds at most.
func within(ok func() bool) bool {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.After(10 * time.Second); ; {
		if ok() {
			return true
		}
		select {
		case <-ticker.C:
		case <-deadline:
			return false
		}
	}
}
