package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// takeLimit is how long the keeper may take to hand out what it has.
const takeLimit = 5 * time.Second

// restore takes back what an earlier handoverd has left, as far as it can be had:
// the sockets, the channels, and the generations that live. It returns the event
// that the loop begins with: evRestored, or, where nothing is there to go on with,
// the reload of a first start.
//
// It runs on the loop's goroutine, before the first turn. No generation that could be gone on with is signalled here
// and nothing closed that somebody else holds, so a restore that ends in the middle
// leaves all as it was.
func (l *loop) restore() event {
	l.endBesides()
	taken := l.takeKept()
	defer func() { closeFDs(taken) }() // what nobody wants
	defer l.endOrphan()
	saved, elsewhere := l.found, l.elsewhere
	l.found = nil
	if saved != nil && !elsewhere {
		if back := l.adoptable(saved, taken); back != nil {
			l.removeHeldPaths(saved, false)
			l.sweepFiles()
			return *back
		}
		l.sweepFiles()
		l.log.Info("nothing is left of the earlier handoverd: a fresh start")
	}
	if saved != nil {
		l.state.Numbers, l.state.LastJob = numbersOf(&saved.State), saved.LastJob
	}
	l.spareSockets(saved, taken)
	if saved != nil {
		l.removeHeldPaths(saved, true)
	}
	return evReload{First: true, Request: l.await(&waiter{
		answered: make(chan acAnswer, 1), done: make(chan *ReloadReport, 1),
	})}
}

// adoptable goes on with a state, if anything of it is left: a generation that
// lives, or a socket. Else it returns nil.
func (l *loop) adoptable(saved *savedState, taken map[string]int) *evRestored {
	if len(saved.Order) == 0 { // killed before its first start had been prepared
		return nil
	}
	var back evRestored
	living := map[at]*child{}
	for _, name := range saved.Order {
		svc := saved.Services[name]
		for _, g := range svc.Generations {
			c := verified(ref(svc, g), g, saved.Saved)
			if c.proc.Pidfd() < 0 {
				back.Gone = append(back.Gone, c.at)
			}
			living[c.at] = c
		}
	}
	sockets, passed := l.adoptSockets(saved, taken, living)
	back.Passed = passed
	if len(sockets) == 0 && len(back.Gone) == len(living) && !saved.waitsClosed() {
		for _, c := range living {
			l.endLeftovers(c)
			c.release()
		}
		return nil
	}
	l.state, l.manager.restored = saved.State, true
	l.config = l.running()
	l.sockets.add(sockets)
	l.takePrograms(taken)
	for _, a := range slices.SortedFunc(maps.Keys(living), compareAt) {
		svc := l.state.Services[a.Service]
		if !l.adopt(svc.gen(a.Gen), living[a], saved, taken) {
			back.Deaf = append(back.Deaf, a)
		}
	}
	slices.SortFunc(back.Gone, compareAt)
	l.log.Info("taken over from a handoverd that was killed", "generations", len(living)-len(back.Gone),
		"gone", len(back.Gone), "sockets", len(sockets))
	switch {
	case l.s.fault != nil:
		l.log.Error("the configuration cannot be used: what runs goes on as it was started, and a reload is refused until the file is mended", "err", l.s.fault)
		l.manager.trouble = "the configuration cannot be used: " + oneLine(l.s.fault.Error(), maxStatus/3)
		l.note = "it cannot be used, and what runs goes on as it was started: " + l.s.fault.Error()
	case l.state.Digest != l.s.cfg.Digest:
		l.log.Warn("config differs: what runs goes on as it was started, and nothing is reloaded until somebody asks",
			"running", l.state.Digest, "file", l.s.cfg.Digest)
		l.note = "it was edited while no handoverd ran, and what runs goes on as it was started: a reload applies it"
	}
	return &back
}

// running is the configuration of what runs, which a reload is compared with: the file may be another one by now.
func (l *loop) running() *Config {
	c := *l.s.cfg
	c.Digest, c.Services = l.state.Digest, nil
	for _, name := range l.state.Order {
		if svc := l.state.Services[name]; svc.Spec != nil && !svc.Removed {
			c.Services = append(c.Services, &svc.Spec.Config)
		}
	}
	return &c
}

func compareAt(a, b at) int {
	if c := strings.Compare(a.Service, b.Service); c != 0 {
		return c
	}
	return a.Gen - b.Gen
}

// takeKept gathers all that is held by name for this start: what the service manager
// has stored and passed, and else what the keeper hands out. The caller owns it. A
// keeper that does not answer is asked for sockets as any process that holds them, and then
// ended (orphan): while it lives nobody else can bind its addresses.
func (l *loop) takeKept() map[string]int {
	taken := l.takePassed()
	for name, fd := range l.takeFromKeeper(takeLimit) {
		if _, have := taken[name]; have {
			_ = unix.Close(fd)
			continue
		}
		taken[name] = fd
	}
	return taken
}

func (l *loop) takeFromKeeper(limit time.Duration) map[string]int {
	c, err := l.dialKeeper()
	if errors.Is(err, errors.ErrUnsupported) {
		return nil
	}
	var taken map[string]int
	if err == nil {
		taken, err = c.TakeAll(limit)
	}
	if err == nil {
		l.adoptKeeper(c, taken)
		return taken
	}
	if c != nil {
		_ = c.Close()
	}
	if l.found != nil && !l.elsewhere {
		l.orphan = l.found.Held.Keeper
	}
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ECONNREFUSED) { // else there is none
		l.log.Error("the keeper of the earlier handoverd hands nothing out", "err", err)
	}
	return nil
}

// endOrphan ends a keeper that does not answer: exactly the process that the state
// names.
func (l *loop) endOrphan() {
	fd := openExactly(l.orphan.PID, l.orphan.StartTime)
	if fd < 0 {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	if err := proc.SignalPidfd(fd, unix.SIGKILL); err != nil {
		l.log.Error("the keeper of the earlier handoverd was not ended", "pid", l.orphan.PID, "err", err)
	}
}

// openExactly opens the process with this number and start time; -1 if it is gone.
func openExactly(pid int, started uint64) int {
	if pid <= 0 {
		return -1
	}
	fd, err := proc.OpenPidfd(pid)
	if err != nil {
		return -1
	}
	// Compared after it was opened: the number may have been used again before.
	if now, err := proc.StartTime(pid); err != nil || now != started {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

func closeFDs(fds map[string]int) {
	for name, fd := range fds {
		_ = unix.Close(fd)
		delete(fds, name)
	}
}

// adoptSockets takes back every socket of the state that can be had: from the
// keeper, else from a generation that holds it. Each is compared with the state.
func (l *loop) adoptSockets(saved *savedState, taken map[string]int, living map[at]*child) (out map[string]*fdpass.Socket, passed []string) {
	out = map[string]*fdpass.Socket{}
	missing := map[string]heldSocket{}
	maps.Copy(l.missing, saved.Held.Closed)
	maps.Copy(missing, saved.Held.Left)
	saved.addOwn(taken)
	for key, h := range saved.Held.Sockets {
		fd, ok := taken[keptSocket+key]
		if !ok {
			missing[key] = h
			continue
		}
		delete(taken, keptSocket+key)
		if s := l.adoptSocket(fd, key, h, l.keptBy(keptSocket+key)); s != nil {
			out[key] = s
		} else {
			missing[key] = h
		}
	}
	passed = l.adoptActivated(missing, out)
	l.fetchOrphaned(missing, out)
	l.fetchMissing(missing, living, saved, out)
	for key, h := range missing {
		if out[key] == nil && !isOwn(key) { // a generation's own is bound with it
			l.log.Error("socket not taken back: nobody that may be asked holds it", "socket", h.Addr.String())
			l.missing[key] = h
		}
	}
	return out, passed
}

// keptBy is who has handed out what is kept under the name.
func (l *loop) keptBy(name string) string {
	if _, stored := l.kept[name]; stored {
		return "systemd's fd store"
	}
	return "the keeper"
}

// bindMissing binds the sockets of a generation anew that are not open: those that
// could not be taken back, and those that a stop had closed which the next handoverd
// called off. It fails as long as a program of before listens there, and works once
// that has ended.
func (l *loop) bindMissing(g *Generation) error {
	for i, k := range g.keys() {
		if k.Own || l.sockets.open[k.Key] != nil || l.sockets.leaving[k.Key] != nil {
			continue
		}
		h, ok := l.missing[k.Key]
		if !ok {
			h = heldSocket{Addr: g.Spec.Config.Sockets[i].Addr, Options: g.Spec.Config.Sockets[i].Options}
		}
		s, err := fdpass.Bind(h.Addr, h.Options)
		if err != nil {
			return fmt.Errorf("socket %q, which could not be taken back: %w", k.Name, err)
		}
		l.sockets.add(map[string]*fdpass.Socket{k.Key: s})
		delete(l.missing, k.Key)
	}
	return nil
}

// adoptSocket takes fd and makes a socket of it, if it is the one of the state.
func (l *loop) adoptSocket(fd int, key string, h heldSocket, from string) *fdpass.Socket {
	s, err := takeSocket(fd, h)
	if errors.Is(err, fdpass.ErrShutDown) {
		if fresh := l.replaceDead(fd, h); fresh != nil {
			return fresh
		}
		s, err = fdpass.AdoptDead(fd, h.Addr, h.Options) // as it was before: told, and handed out
	}
	if err != nil {
		l.log.Error("socket not taken back", "socket", h.Addr.String(), "from", from, "err", err)
		_ = unix.Close(fd)
		return nil
	}
	if _, ok := pathOf(s); ok {
		// Some programs remove it when their parent has changed (nginx).
		if err := s.Restore(); errors.Is(err, fdpass.ErrNoLink) {
			l.pathless = append(l.pathless, key)
		} else if err != nil {
			l.log.Warn("path not brought back", "socket", h.Addr.String(), "err", err)
		}
	}
	l.sources[key] = from
	return s
}

// takeSocket takes fd if it succeeds. A stop may have been under way: its filter is
// detached before anything else, and a listener that was shut down listens again.
func takeSocket(fd int, h heldSocket) (*fdpass.Socket, error) {
	if ino, err := socketInode(fd); err != nil || ino != h.Inode {
		return nil, errors.Join(err, errors.New("it is another socket than the one in the state"))
	}
	if isInet(h.Addr.Kind) && !h.Addr.Kind.Datagram() {
		if err := takeConnections(fd); err != nil {
			return nil, err
		}
	}
	s, err := fdpass.Adopt(fd, h.Addr, h.Options)
	if errors.Is(err, fdpass.ErrShutDown) && isInet(h.Addr.Kind) && !h.Addr.Kind.Datagram() {
		if err := os.NewSyscallError("listen", unix.Listen(fd, max(h.Options.Backlog, 1))); err != nil {
			return nil, err
		}
		s, err = fdpass.Adopt(fd, h.Addr, h.Options)
	}
	return s, err
}

func socketInode(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return st.Ino, nil
}

// spareSockets keeps the sockets of the keeper for a fresh start: the preparation
// takes those that it would else have to bind, with their queues. Without a state
// they are believed if they are what their key says.
func (l *loop) spareSockets(saved *savedState, taken map[string]int) {
	for name, fd := range taken {
		key, ok := strings.CutPrefix(name, keptSocket)
		if !ok {
			continue
		}
		if _, err := socketInode(fd); err != nil {
			continue
		}
		delete(taken, name)
		l.spare[key] = fd
	}
	if saved != nil && !l.elsewhere {
		return
	}
	pids := strays(l.dir.file("notify"))
	if len(pids) == 0 { // the machine was restarted, or all has ended: what generations have left is nobody's
		l.sweepFiles()
	}
	l.strays = len(pids) > 0 && len(l.spare) > 0
	switch {
	case l.strays:
		l.log.Error("sockets of an earlier handoverd are taken from its keeper; no state says what its programs are, and those "+
			"that still run accept beside the new ones: end them", "sockets", len(l.spare), "pids", pids)
	case len(pids) > 0:
		l.log.Error("programs of an earlier handoverd still run, and no state says what they are: end them, or have handoverd sweep do so", "pids", pids)
	case len(l.spare) > 0:
		l.log.Info("sockets that an earlier handoverd has left are taken, with their queues", "sockets", len(l.spare))
	}
}

// strays are the processes that were started with a notify socket in dir, and so by
// a handoverd that had the same runtime directory.
func strays(dir string) []int {
	pids, err := proc.WithVariable("NOTIFY_SOCKET=" + dir + "/")
	if err != nil {
		return nil
	}
	return pids
}
