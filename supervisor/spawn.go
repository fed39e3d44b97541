package supervisor

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
	"github.com/handoverd/handover/internal/sdnotify"
	"github.com/handoverd/handover/internal/shim"
	"github.com/handoverd/handover/internal/wire"
)

// child is what the loop holds of a living generation beside its state: the
// process and the ends of its channels. It owns them all; release closes them.
type child struct {
	at
	proc   *shim.Process
	ctl    *wire.Conn
	unread *wire.Unread // what was sent by it; nil: nothing is waited for
	notify *sdnotify.Socket
	path   string   // of the notify socket
	ready  *os.File // a newline is awaited on it; nil: it is not
	inodes []uint64
	addrs  []fdpass.Addr // of its sockets, in the order of inodes
	names  []string
	token  string
	pid    int
	runs   *Executable // nil: not known
	run    string      // folder with a name for what it runs from a kept file; "": none

	// Of one that an earlier handoverd has started, and that is no child of this one.
	adopted bool
	exit    *os.File // readable at its end; nil: it has ended
	over    bool     // that has been seen
	before  uint64   // in ticks: see bound
	// outdated: it does not hold a socket that the state says it was given.
	outdated bool
}

// spawn starts the shim of a generation. The program does not run before "go".
func (l *loop) spawn(a at) {
	svc, g := l.state.Services[a.Service], l.state.Services[a.Service].gen(a.Gen)
	var c *child
	err := l.bindMissing(g)
	if err == nil {
		c, err = l.start(svc, g)
	}
	if err != nil {
		l.queue(evSpawnFailed{a, err.Error()})
		return
	}
	l.children[a] = c
	l.queue(evSpawned{at: a, PID: c.proc.PID, StartTime: c.proc.StartTime, Token: c.token, Executable: c.runs})
	l.hear(c)
}

func (l *loop) start(svc *Service, g *Generation) (_ *child, err error) {
	own, err := bindOwn(g.Spec, g.N)
	if err != nil {
		closeOwn(own)
		return nil, err
	}
	l.sockets.add(own) // they go when the generation does, also if it does not start
	fds, inodes, err := l.sockets.descriptors(g)
	if err != nil {
		return nil, err
	}
	c := &child{at: ref(svc, g), inodes: inodes, token: rand.Text()}
	for _, k := range g.keys() {
		c.names, c.addrs = append(c.names, k.Name), append(c.addrs, l.sockets.open[k.Key].Addr())
	}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	uid, gid := g.Spec.owner()
	c.path = l.dir.file("notify", c.String())
	if c.notify, err = sdnotify.Listen(c.path, 0o600, uid, gid); err != nil {
		return nil, err
	}
	ctl, childFD, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	c.ctl = ctl
	defer func() { _ = unix.Close(childFD) }()
	stdout, stderr, closeOutput, err := l.output.open(c.at, g.Spec, uid, gid)
	if err != nil {
		return nil, err
	}
	defer closeOutput()
	h := &handout{
		service: svc.Name, generation: g.N, token: c.token,
		names: c.names, controlFD: firstFD + len(fds), notify: c.path,
	}
	l.describeOwn(h, g)
	pass, closePipe, err := c.awaitNewline(g, h, append(slices.Clone(fds), childFD))
	if err != nil {
		return nil, err
	}
	defer closePipe()
	spec, err := shimSpec(g.Spec, h, len(fds)+1)
	if err != nil {
		return nil, err
	}
	pass = l.choose(c, g, spec, pass)
	filesAsAtStart(spec)
	_, err = l.reaper.Start(func() (int, error) {
		var startErr error
		l.thread.Do(func() { c.proc, startErr = shim.Start(spec, pass, stdout, stderr) })
		if startErr != nil {
			return 0, startErr
		}
		return c.proc.PID, nil
	}, func(e proc.Exit) { l.childExited(c, e) })
	if err != nil {
		return nil, err
	}
	c.pid = c.proc.PID
	return c, nil
}

// shimSpec is what the shim becomes.
func shimSpec(spec *Spec, h *handout, n int) (*shim.Spec, error) {
	cfg := &spec.Config
	out := &shim.Spec{
		Path: spec.Path, Dir: spec.Dir, UID: spec.UID, GID: spec.GID, Groups: spec.Groups,
		Umask: cfg.Umask, Nice: cfg.Nice, OOMScoreAdj: cfg.OOMScoreAdj, NoNewPrivs: cfg.NoNewPrivs,
	}
	env := slices.Clone([]string(spec.Env))
	for _, d := range speaks(cfg.Dialects) {
		for _, e := range d.environ(h) {
			name, value, _ := strings.Cut(e, "=")
			env = setenv(env, name, value)
		}
		out.ListenPID = out.ListenPID || d.listenPID() && len(h.names) > 0
	}
	out.Env = env
	known := vars(env)
	for _, arg := range cfg.Command {
		out.Argv = append(out.Argv, expand(arg, known))
	}
	for i := range n {
		out.Targets = append(out.Targets, firstFD+i)
	}
	if h.readyFD != 0 {
		out.Targets = append(out.Targets, h.readyFD)
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Rlimits)) {
		r, ok := rlimitNumber(name)
		if !ok {
			return nil, fmt.Errorf("rlimit %s: %w", name, errors.ErrUnsupported)
		}
		out.Rlimits = append(out.Rlimits, shim.Rlimit{Resource: r, Soft: cfg.Rlimits[name], Hard: cfg.Rlimits[name]})
	}
	for _, name := range cfg.AmbientCaps {
		out.AmbientCaps = append(out.AmbientCaps, uintptr(slices.Index(capabilityNames, name)))
	}
	return out, nil
}

// goAhead tells the shim to run the program, now that the state knows its pid.
func (l *loop) goAhead(a at) {
	c := l.children[a]
	if c == nil {
		return
	}
	if err := c.proc.Go(); errors.Is(err, shim.ErrDied) {
		return // its exit, which follows, says how
	} else if err != nil {
		l.queue(evSpawnFailed{a, err.Error()})
		return
	}
	l.up.flight.begin()
	l.readers.Add(1) // Run waits for it
	go l.awaitExec(c)
}

// childExited tells the loop that the main process has ended. If it never became
// the program, why not comes first: that is the reason, and the exit its effect.
// The result is there at once, since nobody is left to send one.
func (l *loop) childExited(c *child, e proc.Exit) {
	if err := c.proc.Result(); errors.Is(err, shim.ErrDied) {
		l.post(evSpawnFailed{c.at, shimDied(describeStatus(uint32(e.Status)), l.output.head(c.at)).Error()})
	} else {
		l.execFailed(c, err)
	}
	if n := l.lookout.openOf(c.at); n > 0 {
		l.post(evOpen{c.at, n})
	}
	l.post(evExited{c.at, uint32(e.Status)})
}

// execFailed tells the loop if the program could not be run. What becomes of a shim that
// died its exit tells.
func (l *loop) execFailed(c *child, err error) {
	if err != nil && !errors.Is(err, shim.ErrAborted) && !errors.Is(err, shim.ErrDied) {
		l.post(evSpawnFailed{c.at, err.Error()})
	}
}

// awaitExec tells the loop if the program could not be run. Run waits for it.
func (l *loop) awaitExec(c *child) {
	defer l.readers.Done()
	defer l.up.flight.end(l)
	l.execFailed(c, c.proc.Result())
}

// release closes everything that the child owns, and removes its notify socket.
func (c *child) release() {
	c.endUnread()
	if c.ctl != nil {
		_ = c.ctl.Close()
	}
	if c.notify != nil {
		_ = c.notify.Close()
	}
	if c.path != "" { // also of one that has ended while no handoverd ran, whose socket nobody took back
		_ = os.Remove(c.path)
	}
	if c.ready != nil {
		_ = c.ready.Close()
	}
	if c.exit != nil {
		_ = c.exit.Close()
	}
	if c.proc != nil {
		_ = c.proc.Close()
	}
	if c.run != "" {
		_ = os.RemoveAll(c.run)
	}
}
