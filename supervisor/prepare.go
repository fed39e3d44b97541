package supervisor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
	"github.com/handoverd/handover/internal/shim"
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
}

// prepared is its result, handed to the loop.
type prepared struct {
	event  evPrepared
	config *Config
	bound  map[string]*fdpass.Socket // new ones; the loop takes them
}

// run is the goroutine of one preparation. Run waits for it.
func (p *preparation) run() {
	defer p.loop.readers.Done()
	r := prepared{event: evPrepared{Job: p.job}, bound: map[string]*fdpass.Socket{}}
	if err := p.prepare(&r); err != nil {
		r.refuse(err)
	}
	p.loop.call(func() { p.loop.install(p, r) })
}

// refuse leaves nothing of what was prepared.
func (r *prepared) refuse(err error) {
	for _, s := range r.bound {
		_, _ = s.Unlink(), s.Close()
	}
	r.bound, r.event.Specs, r.event.Fault = nil, nil, err.Error()
}

// complete binds what was open when the preparation began, on its way out, and
// has been closed since: a check takes its time.
func (p *preparation) complete(r *prepared, open map[string]*fdpass.Socket) error {
	p.known = open
	for _, name := range r.event.Order {
		if spec := r.event.Specs[name]; spec != nil {
			if err := p.bind(&spec.Config, r.bound); err != nil {
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
			return err
		}
		r.event.Specs[sc.Name] = spec
		if err := p.bind(sc, r.bound); err != nil {
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

// bind opens the sockets that are not open yet. It runs before anything is
// spawned, so that a bind that fails refuses the reload.
func (p *preparation) bind(cfg *ServiceConfig, bound map[string]*fdpass.Socket) error {
	for _, sc := range cfg.Sockets {
		key := socketKey(cfg.Name, sc)
		if p.known[key] != nil || bound[key] != nil {
			continue
		}
		s, err := fdpass.Bind(sc.Addr, sc.Options)
		if err != nil {
			where := ""
			if sc.Line > 0 {
				where = fmt.Sprintf("%s:%d: ", p.loop.opts.Name, sc.Line)
			}
			return fmt.Errorf("%sservice.%s.socket.%s: %w", where, cfg.Name, sc.Name, err)
		}
		bound[key] = s
	}
	return nil
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
	argv0, err := executable(spec.Config.Check[0], spec.Dir, spec.Env)
	if err != nil {
		return err
	}
	cfg := spec.Config
	cfg.Command = cfg.Check
	c := &Spec{
		Config: cfg, Path: argv0, Dir: spec.Dir, Env: spec.Env, UID: spec.UID, GID: spec.GID, Groups: spec.Groups,
	}
	h := &handout{service: cfg.Name, token: rand.Text()}
	var fds []int
	if checkWantsSockets(&cfg) {
		for i, sc := range cfg.Sockets {
			s := p.known[spec.Keys[i].Key]
			if s == nil {
				s = bound[spec.Keys[i].Key]
			}
			fds, h.names = append(fds, s.FD()), append(h.names, sc.Name)
		}
	}
	h.controlFD = -1
	sh, err := shimSpec(c, h, len(fds))
	if err != nil {
		return err
	}
	sh.Env = slices.DeleteFunc(sh.Env, func(e string) bool {
		return strings.HasPrefix(e, "NOTIFY_SOCKET=") || strings.HasPrefix(e, "HANDOVER_FD=")
	})
	return p.runCheck(sh, fds, h.token, cfg.Ready.InitGrace)
}

func checkWantsSockets(cfg *ServiceConfig) bool {
	return cfg.CheckSockets || slices.Contains(cfg.Dialects, "haproxy")
}

func (p *preparation) runCheck(sh *shim.Spec, fds []int, token string, limit time.Duration) error {
	out, err := os.CreateTemp(filepath.Join(p.loop.dir.path, "log"), ".check-*")
	if err != nil {
		return err
	}
	defer func() { _, _ = os.Remove(out.Name()), out.Close() }()
	fd, closeFD, err := rawAppend(out.Name(), -1, -1)
	if err != nil {
		return err
	}
	defer closeFD()
	done := make(chan proc.Exit, 1)
	var child *shim.Process
	pid, err := p.loop.reaper.Start(func() (int, error) {
		var startErr error
		p.loop.thread.Do(func() { child, startErr = shim.Start(sh, fds, fd, fd) })
		if startErr != nil {
			return 0, startErr
		}
		return child.PID, nil
	}, func(e proc.Exit) { done <- e })
	if err != nil {
		return err
	}
	defer func() { _ = child.Close() }()
	execErr := child.Go()
	if execErr == nil {
		execErr = child.Result()
	}
	ctx, cancel := context.WithTimeout(p.ctx, limit)
	defer cancel()
	var exit proc.Exit
	select {
	case exit = <-done:
	case <-ctx.Done():
		_, _ = proc.KillMembers(pid, token, sigKillNumber)
		exit = <-done
		execErr = fmt.Errorf("killed after %v: %w", limit, ctx.Err())
	}
	endCheck(pid, token)
	_ = p.loop.reaper.Release(pid)
	if execErr == nil && exit.Status.Exited() && exit.Status.ExitStatus() == 0 {
		return nil
	}
	if execErr == nil {
		execErr = errors.New(describeStatus(uint32(exit.Status)))
	}
	text, _ := os.ReadFile(out.Name())
	return fmt.Errorf("%w%s", execErr, lastLines(text, checkLines))
}

// endCheck ends what a check has left behind, until two passes find nothing: a
// process may fork while it is looked for. What the kernel has not ended after
// stuckAfter does not hold up the reload.
func endCheck(pid int, token string) {
	pause := time.NewTicker(sweepShortest)
	defer pause.Stop()
	begin := proc.Now()
	for empty := 0; empty < 2 && proc.Now() < begin.Add(stuckAfter); {
		if left, err := proc.KillMembers(pid, token, sigKillNumber); left == 0 && err == nil {
			empty++
			continue
		}
		empty = 0
		<-pause.C
	}
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
