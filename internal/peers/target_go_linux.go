package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// targets makes each contender's target, by name.
var targets = map[string]func(*bench) target{
	ownGo:                func(b *bench) target { return &supervised{b: b, setup: superviseGo} },
	ownHAProxy:           func(b *bench) target { return &supervised{b: b, setup: superviseHAProxy, config: haproxyFD} },
	ownNginx:             func(b *bench) target { return &supervised{b: b, setup: superviseNginx, config: nginxNumbered} },
	bareHolder:           newHolder,
	"tableflip-drain":    func(b *bench) target { return &tableflip{b: b, leave: "drain"} },
	"tableflip-shutdown": func(b *bench) target { return &tableflip{b: b, leave: "shutdown"} },
	"server-starter":     newStarter,
	"gunicorn":           func(b *bench) target { return &gunicorn{b: b} },
	"reuseport":          func(b *bench) target { return &overlap{b: b} },
	"reuseport-migrate":  func(b *bench) target { return &overlap{b: b, migrate: true} },
	"stop-start":         func(b *bench) target { return &restart{b: b, leave: "shutdown", gate: noGate{}} },
	"syn-drop":           func(b *bench) target { return &restart{b: b, leave: "drain", gate: synDrop{b}} },
	"syn-delay":          func(b *bench) target { return &restart{b: b, leave: "drain", gate: synDelay{b}} },
	"haproxy-sf":         func(b *bench) target { return &haproxy{b: b} },
	"haproxy-x":          func(b *bench) target { return &haproxy{b: b, fetch: true} },
	"haproxy-mw":         func(b *bench) target { return &haproxyMaster{b: b} },
	"nginx-hup":          func(b *bench) target { return &nginx{b: b} },
	"nginx-usr2":         func(b *bench) target { return &nginxUpgrade{b: b} },
}

// supervised is a program under handoverd. setup gives the keys of its service; config writes a generation's configuration.
type supervised struct {
	b      *bench
	setup  func(*bench) string
	config func(b *bench, generation int) error
	daemon *process
}

func superviseGo(b *bench) string { return fmt.Sprintf("command = [%q]", b.programs[programGoserver]) }

func (s *supervised) start(context.Context) error {
	if err := s.configure(1); err != nil {
		return err
	}
	text := fmt.Sprintf(`runtime_dir = %q
[service.web]
%s
[service.web.socket]
http = "tcp4://%s"
[service.web.retire]
parent_shutdown = "1m"
`, s.b.file("run"), s.setup(s.b), address)
	if err := s.b.write("handoverd.toml", text); err != nil {
		return err
	}
	var err error
	s.daemon, err = s.b.launch(nil, programHandoverd, "run", "-c", s.b.file("handoverd.toml"))
	return err
}

func (s *supervised) configure(generation int) error {
	if s.config == nil {
		return nil
	}
	return s.config(s.b, generation)
}

func (s *supervised) reload(_ context.Context, generation int) error {
	if err := s.configure(generation); err != nil {
		return err
	}
	return s.daemon.signal(unix.SIGHUP)
}

// hangup is a program that replaces what it started at each SIGHUP, without more.
type hangup struct {
	b       *bench
	program string
	args    []string
	running *process
}

func newHolder(b *bench) target {
	return &hangup{b: b, program: programHolder, args: []string{address, b.programs[programGoserver]}}
}

func newStarter(b *bench) target {
	return &hangup{b: b, program: programStarter, args: []string{"--port=" + address, "--", b.programs[programServer]}}
}

func (h *hangup) start(context.Context) (err error) {
	h.running, err = h.b.launch(nil, h.program, h.args...)
	return err
}

func (h *hangup) reload(context.Context, int) error { return h.running.signal(unix.SIGHUP) }

// tableflip is a server that upgrades itself.
type tableflip struct {
	b     *bench
	leave string
}

func (f *tableflip) start(context.Context) error {
	_, err := f.b.launch(nil, programTableflip, "-addr", address, "-pid-file", f.b.file("pid"), "-leave", f.leave)
	return err
}

func (f *tableflip) reload(context.Context, int) error {
	pid, err := pidIn(f.b.file("pid"))
	if err != nil {
		return err
	}
	return unix.Kill(pid, unix.SIGHUP)
}

func pidIn(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// serve starts the server that binds for itself.
func (b *bench) serve(generation int, args ...string) (*process, error) {
	return b.launch([]string{fmt.Sprintf("PEERS_GENERATION=%d", generation)}, programServer, append([]string{"-addr", address}, args...)...)
}

// overlap starts the new server beside the old one, with SO_REUSEPORT.
type overlap struct {
	b       *bench
	migrate bool
	running *process
}

func (o *overlap) start(context.Context) (err error) {
	if o.migrate {
		if err := os.WriteFile("/proc/sys/net/ipv4/tcp_migrate_req", []byte("1"), 0); err != nil {
			return err
		}
	}
	o.running, err = o.b.serve(1, "-reuseport")
	return err
}

func (o *overlap) reload(ctx context.Context, generation int) error {
	old := o.running
	var err error
	if o.running, err = o.b.serve(generation, "-reuseport"); err != nil {
		return err
	}
	if err := until(ctx, "two listeners", func() bool { return listening() == 2 }); err != nil {
		return err
	}
	return old.signal(unix.SIGTERM)
}

// gate keeps new connections from a port while nobody listens on it.
type gate interface {
	prepare(ctx context.Context) error
	shut(ctx context.Context) error
	open(ctx context.Context) error
}

type noGate struct{}

func (noGate) prepare(context.Context) error { return nil }
func (noGate) shut(context.Context) error    { return nil }
func (noGate) open(context.Context) error    { return nil }

// restart stops the old server and then starts the new one.
type restart struct {
	b       *bench
	leave   string
	gate    gate
	running *process
}

func (r *restart) start(ctx context.Context) (err error) {
	if err := r.gate.prepare(ctx); err != nil {
		return err
	}
	r.running, err = r.b.serve(1, "-leave", r.leave)
	return err
}

func (r *restart) reload(ctx context.Context, generation int) error {
	if err := r.gate.shut(ctx); err != nil {
		return err
	}
	if err := r.running.stop(ctx); err != nil {
		return err
	}
	var err error
	if r.running, err = r.b.serve(generation, "-leave", r.leave); err != nil {
		return err
	}
	if err := until(ctx, "a listener", func() bool { return listening() == 1 }); err != nil {
		return err
	}
	return r.gate.open(ctx)
}
