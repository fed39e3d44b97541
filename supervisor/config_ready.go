package supervisor

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/handoverd/handover/fdpass"
)

// probeKinds are the ways to become ready that ask the program.
var probeKinds = []string{"http", "tcp", "exec"}

func isProbe(when string) bool { return slices.Contains(probeKinds, when) }

// Defaults of probes and of the gate.
const (
	probeInterval = 250 * time.Millisecond
	probeTimeout  = time.Second
	probeFailures = 3
	gateInterval  = time.Second
	gateTimeout   = 5 * time.Second
)

// maxReadyFD is below what every program may have open: the shim raises a lower
// RLIMIT_NOFILE to 1024 beyond what it passes.
const maxReadyFD = 1023

func ready(t *table) ReadyConfig {
	r := ReadyConfig{
		When: t.oneOf("when", "auto",
			[]string{"auto", "native", "notify", "newline", "accepting", "http", "tcp", "exec", "alive"}, nil),
		InitGrace: t.duration("init_grace", 30*time.Second, time.Millisecond),
		Settle:    t.duration("settle", 100*time.Millisecond, 0),
		Bake:      t.duration("bake", 0, 0),
		AliveFor:  t.duration("alive_for", aliveFor, time.Millisecond),
		FD:        t.integer("fd", 0, firstFD, maxReadyFD),
	}
	r.Probe = probe(t, &r)
	if t.has("gate") {
		r.Gate = gate(t.sub("gate"))
	}
	// Init grace runs until ready and settled, so what must fit into it is
	// refused here rather than killed at every start.
	switch {
	case r.Settle >= r.InitGrace:
		t.fail(setKey(t, "settle", "init_grace"), "settle (%s) must be shorter than init_grace (%s), which contains it",
			r.Settle, r.InitGrace)
	case r.When == "alive" && r.AliveFor+r.Settle >= r.InitGrace:
		t.fail(setKey(t, "alive_for", "settle", "init_grace"),
			"alive_for (%s) + settle (%s) must be shorter than init_grace (%s), which contains them",
			r.AliveFor, r.Settle, r.InitGrace)
	}
	t.finish()
	return r
}

// probe reads what the program is asked: by one of three keys, and how often by
// four more.
func probe(t *table, r *ReadyConfig) *ProbeConfig {
	p := &ProbeConfig{
		Interval:  t.duration("interval", probeInterval, time.Millisecond),
		Timeout:   t.duration("timeout", probeTimeout, time.Millisecond),
		Successes: t.integer("successes", 1, 1, 1000),
		Failures:  t.integer("failures", probeFailures, 1, 1000),
	}
	for _, kind := range probeKinds {
		if _, set := t.get(kind); !set {
			continue
		}
		if p.Kind != "" {
			t.fail(kind, "%s asks already; a service has one probe", p.Kind)
			continue
		}
		p.Kind = kind
		if kind == "exec" {
			p.Exec = execArgs(t, kind)
		} else if sub := t.sub(kind); isTable(t.m[kind]) {
			whereToAsk(sub, p)
		}
	}
	switch {
	case p.Kind == "" && isProbe(r.When):
		t.fail("when", "%q needs the key %s, which says what is asked", r.When, r.When)
	case p.Kind == "":
		for _, key := range []string{"interval", "timeout", "successes", "failures"} {
			if t.has(key) {
				t.fail(key, "there is no probe: it needs one of %s", quoteList(probeKinds))
			}
		}
	case isProbe(r.When) && r.When != p.Kind:
		t.fail("when", "%q, but %s says what is asked", r.When, p.Kind)
	case !isProbe(r.When) && r.Bake == 0:
		t.fail(p.Kind, "is asked with when = %q, and while baking: without either it is never asked", p.Kind)
	default:
		probeFits(t, r, p)
		return p
	}
	return nil
}

// probeFits refuses a probe that has no time to succeed.
func probeFits(t *table, r *ReadyConfig, p *ProbeConfig) {
	least := time.Duration(p.Successes-1) * p.Interval
	switch {
	case isProbe(r.When) && least+r.Settle >= r.InitGrace:
		t.fail(setKey(t, "successes", "interval", "init_grace"),
			"%d successes, one each %s, + settle (%s) must be shorter than init_grace (%s), which contains them",
			p.Successes, p.Interval, r.Settle, r.InitGrace)
	case r.Bake > 0 && least+p.Timeout >= r.Bake:
		t.fail(setKey(t, "bake", "timeout", "interval"),
			"bake (%s) must be longer than a probe needs to succeed: %d in a row, one each %s, with a timeout of %s",
			r.Bake, p.Successes, p.Interval, p.Timeout)
	}
}

func isTable(v any) bool { _, ok := v.(map[string]any); return ok }

func execArgs(t *table, key string) []string {
	list := t.list(key)
	if _, ok := t.m[key].([]any); ok && (len(list) == 0 || list[0] == "") {
		t.fail(key, "names no program")
	}
	return list
}

// whereToAsk reads the table of an http or tcp probe.
func whereToAsk(t *table, p *ProbeConfig) {
	p.Socket = t.str("socket", "")
	p.Address = t.str("address", "")
	if p.Kind == "http" {
		p.Path = t.str("path", "/")
		p.Host = t.str("host", "localhost")
		p.Status = t.integer("status", 0, 100, 599)
		if u, err := url.ParseRequestURI(p.Path); err != nil || u.Host != "" || !strings.HasPrefix(p.Path, "/") {
			t.fail("path", "%q is not the path of a URL, like \"/healthz\"", p.Path)
		}
	}
	switch {
	case p.Socket == "" && p.Address == "":
		t.src.fail(t.path, errNoTarget)
	case p.Socket != "" && p.Address != "":
		t.fail("address", "socket says where already; keep one")
	case p.Address != "":
		addr, _, err := fdpass.ParseAddr(inGeneration(p.Address, 1))
		switch {
		case err != nil:
			t.fail("address", "%w", err)
		case addr.Kind.Datagram() || addr.Kind == fdpass.Unixpacket:
			t.fail("address", "%s is no stream, which %s needs", addr.Kind, p.Kind)
		case isInet(addr.Kind) && addr.Port == 0:
			t.fail("address", "port 0 is nobody's")
		}
	}
	t.finish()
}

// gate reads who outside has to agree.
func gate(t *table) *ProbeConfig {
	p := &ProbeConfig{
		Interval:  t.duration("interval", gateInterval, time.Millisecond),
		Timeout:   t.duration("timeout", gateTimeout, time.Millisecond),
		Successes: 1, Failures: 1,
	}
	p.Exec = execArgs(t, "exec")
	p.URL = t.str("http", "")
	p.Status = t.integer("status", 0, 100, 599)
	switch {
	case t.has("exec") && t.has("http"):
		t.fail("http", "exec is the gate already; keep one")
	case t.has("exec"):
		p.Kind = "exec"
		if t.has("status") {
			t.fail("status", "is of http; exec opens the gate with exit status 0")
		}
	case t.has("http"):
		p.Kind = "http"
		if _, err := http.NewRequest(http.MethodGet, inGeneration(p.URL, 1), nil); err != nil || !isWebURL(p.URL) {
			t.fail("http", "is not a URL like \"http://127.0.0.1:9000/healthy?generation=${HANDOVER_GENERATION}\"")
		}
	default:
		t.src.fail(t.path, errNoGate)
	}
	t.finish()
	return p
}

func isWebURL(s string) bool {
	u, err := url.Parse(inGeneration(s, 1))
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// readyFits refuses a way to become ready that the service's sockets make
// impossible.
func readyFits(t *table, s *ServiceConfig) {
	r := &s.Ready
	switch {
	case r.FD != 0 && r.When != "newline":
		t.fail("fd", `is of when = "newline"`)
	case r.FD != 0 && r.FD < firstFreeFD(len(s.Sockets)):
		t.fail("fd", "%d is taken by a socket or by the control socket: the first that is free is %d", r.FD, firstFreeFD(len(s.Sockets)))
	}
	if r.Probe != nil && (r.Probe.Socket != "" || r.Probe.Address != "") {
		askedAlone(t.sub(r.Probe.Kind), s)
	}
	if r.When != "accepting" {
		return
	}
	switch {
	case !slices.ContainsFunc(s.Sockets, func(c SocketConfig) bool { return !c.PerGeneration }):
		t.fail("when", `"accepting" needs a socket that the generations share, and the service has none`)
	case acceptingHold+r.Settle >= r.InitGrace:
		t.fail(setKey(t, "settle", "init_grace", "when"), "%s of accepting + settle (%s) must be shorter than init_grace (%s), which contains them",
			acceptingHold, r.Settle, r.InitGrace)
	}
}

// askedAlone refuses a probe that any generation could answer, or the kernel.
func askedAlone(t *table, s *ServiceConfig) {
	p := s.Ready.Probe
	if p.Address != "" {
		addr, options, err := fdpass.ParseAddr(inGeneration(p.Address, 1))
		if err != nil {
			return // said
		}
		addr, _ = fdpass.Canonical(addr, options)
		for _, c := range s.Sockets {
			if !c.PerGeneration && (c.Addr.Key() == addr.Key() || c.Addr.Conflicts(addr)) {
				t.fail("address", "is that of socket %s, where the old generation answers too: ask a socket with per_generation = true", c.Name)
			}
		}
		return
	}
	i := slices.IndexFunc(s.Sockets, func(c SocketConfig) bool { return c.Name == p.Socket })
	if i < 0 {
		var names []string
		for _, c := range s.Sockets {
			names = append(names, c.Name)
		}
		t.fail("socket", "there is no socket %q%s", p.Socket, didYouMean(p.Socket, names))
		return
	}
	switch c := s.Sockets[i]; {
	case !c.PerGeneration:
		t.fail("socket", "%s is shared by all generations, so the old one answers too: ask one with per_generation = true", c.Name)
	case c.Addr.Kind.Datagram() || c.Addr.Kind == fdpass.Unixpacket:
		t.fail("socket", "%s is %s, no stream, which %s needs", c.Name, c.Addr.Kind, p.Kind)
	case p.Kind == "tcp" && !isInet(c.Addr.Kind):
		t.fail("socket", "%s is a UNIX socket that handoverd listens on: a connection proves nothing, since the kernel takes it before the program does; "+
			"use http or exec, or a TCP socket", c.Name)
	}
}

// warnProbe tells of a probe that may be answered by another generation.
func (s *ServiceConfig) warnProbe(warn func(key, format string, args ...any)) {
	p := s.Ready.Probe
	if p == nil || p.Address == "" {
		return
	}
	if inGeneration(p.Address, 1) == inGeneration(p.Address, 2) {
		warn("ready."+p.Kind, "address %s is the same for every generation: an old one that still drains may answer; "+
			"use a socket with per_generation = true", p.Address)
	}
}
