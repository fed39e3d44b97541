package supervisor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/handoverd/handover/fdpass"
)

// preparation is what stands before the spawn: parse, check, bind. It is a
// transaction: all of it succeeds, or nothing is left of it.
type preparation struct {
	ctx      context.Context
	loop     *loop // only what is safe beside the loop: thread, reaper, dir
	job      int
	services []string // nil: all
	have     []string // the services that there are
	first    bool
	old      *Config // nil at the start
	known    map[string]*fdpass.Socket
	spare    map[string]int        // by key: see loop; borrowed until install
	closed   map[string]heldSocket // by key: to be bound at the same address again
	passed   []PassedSocket        // borrowed

	// Of a rollback or repair, which does without the configuration.
	specs       map[string]*Spec
	executables map[string]*Executable
	digest      string
}

// prepared is its result, handed to the loop.
type prepared struct {
	event  evPrepared
	config *Config
	bound  map[string]*fdpass.Socket // new ones; the loop takes them
	from   map[string]string         // by key: whom those of them were taken from that were bound before
}

// prepare starts the preparation of a job in a goroutine of its own.
func (l *loop) prepare(job int) {
	j := l.state.job(job)
	if j == nil {
		return
	}
	p := &preparation{
		ctx: l.ctx, loop: l, job: job, services: j.Services, first: j.First, old: l.config, known: l.sockets.known(),
		spare: l.spare, closed: maps.Clone(l.missing), passed: l.passed,
	}
	if j.Why != "" {
		p.specs, p.executables = l.state.known(j)
		p.digest = l.state.Digest
	}
	for _, name := range l.state.Order {
		if !l.state.Services[name].Removed {
			p.have = append(p.have, name)
		}
	}
	l.readers.Add(1) // Run waits for it
	go p.run()
}

// run is the goroutine of one preparation. Run waits for it.
func (p *preparation) run() {
	defer p.loop.readers.Done()
	r := prepared{event: evPrepared{Job: p.job}, bound: map[string]*fdpass.Socket{}, from: map[string]string{}}
	prepare := p.prepare
	if p.specs != nil {
		prepare = p.prepareKnown
	}
	if err := prepare(&r); err != nil {
		r.refuse(err)
	}
	p.loop.call(func() { p.loop.install(p, r) })
}

// noted says in the status what is to be known of the file, unless it was not read.
func (p *preparation) noted(text string) {
	if p.specs == nil {
		p.loop.note = text
	}
}

// refuse leaves nothing of what was prepared.
func (r *prepared) refuse(err error) {
	for key, s := range r.bound {
		if r.from[key] == "" {
			_ = s.Unlink() // else the next start finds it as this one did
		}
		_ = s.Close()
	}
	r.bound, r.event.Specs, r.event.Fault = nil, nil, err.Error()
}

// complete binds what was open when the preparation began, on its way out, and
// has been closed since: a check takes its time.
func (p *preparation) complete(r *prepared, open map[string]*fdpass.Socket) error {
	p.known = open
	for _, name := range r.event.Order {
		if spec := r.event.Specs[name]; spec != nil {
			if err := p.bind(&spec.Config, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *preparation) prepare(r *prepared) error {
	cfg, err := p.loop.opts.Load()
	if err != nil {
		return err
	}
	if p.old != nil {
		if d := Diff(p.old, cfg); d.Refused != nil {
			return d.Refused
		}
	}
	r.config, r.event.Digest = cfg, cfg.Digest
	r.event.Order, err = p.order(cfg)
	if err != nil {
		return err
	}
	r.event.Specs = map[string]*Spec{}
	for _, sc := range cfg.Services {
		if p.services != nil && !slices.Contains(p.services, sc.Name) {
			continue
		}
		spec, err := resolve(sc, cfg.Digest, p.loop.opts.Dir)
		if err != nil {
			return cfg.placed(err)
		}
		r.event.Specs[sc.Name] = spec
		if err := p.bind(sc, r); err != nil {
			return err
		}
	}
	for _, name := range r.event.Order {
		if spec := r.event.Specs[name]; spec != nil && len(spec.Config.Check) > 0 {
			if err := p.check(spec, r.bound); err != nil {
				return err
			}
		}
	}
	return nil
}

// order is the order of all services after this reload. One that reloads some
// services changes nothing about the others, not even whether they exist.
func (p *preparation) order(cfg *Config) ([]string, error) {
	var all []string
	for _, s := range cfg.Services {
		all = append(all, s.Name)
	}
	if p.services == nil {
		return all, nil
	}
	for _, name := range p.services {
		if !slices.Contains(all, name) {
			return nil, fmt.Errorf("no such service: %s (configured: %s)", name, strings.Join(all, ", "))
		}
	}
	order := slices.DeleteFunc(all, func(s string) bool {
		return !slices.Contains(p.have, s) && !slices.Contains(p.services, s)
	})
	for _, name := range p.have {
		if !slices.Contains(order, name) {
			order = append(order, name)
		}
	}
	return order, nil
}

// bind opens the sockets that are not open yet, or takes them from whom has kept
// them. It runs before anything is spawned, so that a bind that fails refuses the
// reload.
func (p *preparation) bind(cfg *ServiceConfig, r *prepared) error {
	for _, sc := range cfg.Sockets {
		key := socketKey(cfg.Name, sc)
		if sc.PerGeneration || p.known[key] != nil || r.bound[key] != nil {
			continue
		}
		s, from, err := p.openSocket(r.config, cfg.Name, key, sc)
		if err != nil {
			where := ""
			if sc.Line > 0 {
				where = fmt.Sprintf("%s:%d: ", p.loop.opts.Name, sc.Line)
			}
			hint := ""
			if errors.Is(err, fs.ErrPermission) && sc.Addr.Port > 0 {
				hint = "; a port as low as this one takes root or CAP_NET_BIND_SERVICE"
			}
			return fmt.Errorf("%sservice.%s.socket.%s: %w%s", where, cfg.Name, sc.Name, err, hint)
		}
		r.bound[key] = s
		if from != "" {
			r.from[key] = from
		}
		if from == activatedBy {
			r.event.Passed = append(r.event.Passed, key)
		}
	}
	return nil
}

// openSocket makes one socket, and says whom it was taken from, "" if it was bound.
func (p *preparation) openSocket(cfg *Config, service, key string, sc SocketConfig) (*fdpass.Socket, string, error) {
	s, err := p.activated(cfg, service, sc)
	if s != nil || err != nil {
		return s, activatedBy, err
	}
	if fd, ok := p.spare[key]; ok {
		s, err := copied(fd, sc)
		if err == nil {
			return s, p.loop.keptBy(keptSocket + key), nil
		}
		if errors.Is(err, fdpass.ErrShutDown) && isPath(sc.Addr) { // which nobody could bind beside it
			if s, err := fdpass.Replace(fd, sc.Addr, sc.Options); err == nil {
				return s, "", nil
			}
		}
	}
	addr := sc.Addr
	if h, ok := p.closed[key]; ok {
		addr = h.Addr
	}
	s, err = fdpass.Bind(addr, sc.Options)
	return s, "", err
}

// checkLines is how many of the last lines of a failed check are reported.
const checkLines = 20

// check runs the service's check command as the program would be run, in its
// user's name and bounded by its init grace. It is given the sockets only where
// it names them: nginx -t would close and unlink those it does not know.
func (p *preparation) check(spec *Spec, bound map[string]*fdpass.Socket) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("service %s: check: %w", spec.Config.Name, err)
		}
	}()
	cfg := &spec.Config
	h := &handout{service: cfg.Name, token: rand.Text()}
	var fds []int
	if checkWantsSockets(cfg) {
		own, err := bindOwn(spec, 0) // a check is of no generation
		defer closeOwn(own)
		if err != nil {
			return err
		}
		for i, sc := range cfg.Sockets {
			s := p.known[spec.Keys[i].Key]
			if s == nil {
				s = bound[spec.Keys[i].Key]
			}
			if sc.PerGeneration {
				s = own[spec.Keys[i].at(0)]
			}
			fds, h.names = append(fds, s.FD()), append(h.names, sc.Name)
		}
	}
	sh, err := besideSpec(spec, cfg.Check, h, len(fds))
	if err != nil {
		return err
	}
	text, err := p.loop.runBeside(p.ctx, sh, fds, h.token, cfg.Ready.InitGrace)
	if err != nil {
		return fmt.Errorf("%w%s", err, lastLines(text, checkLines))
	}
	return nil
}

func checkWantsSockets(cfg *ServiceConfig) bool {
	return cfg.CheckSockets || slices.Contains(cfg.Dialects, "haproxy")
}

// lastLines are the last n lines of a text, each on a line of its own.
func lastLines(text []byte, n int) string {
	lines := bytes.Split(bytes.TrimRight(text, "\n"), []byte{'\n'})
	if len(lines) == 1 && len(lines[0]) == 0 {
		return ""
	}
	var b strings.Builder
	for _, l := range lines[max(0, len(lines)-n):] {
		b.WriteString("\n  ")
		b.Write(l)
	}
	return b.String()
}
