package supervisor

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// HookConfig is something that is done for a service: a program that is run, or
// an HTTP request. At most one of the two is set; the zero value is nothing.
type HookConfig struct {
	Exec []string `json:"exec,omitempty"`
	HTTP string   `json:"http,omitempty"` // a method and a URL
}

func (h *HookConfig) empty() bool { return len(h.Exec) == 0 && h.HTTP == "" }

// StopConfig is the stop of a whole service. Deadline counts from the
// request and contains everything.
type StopConfig struct {
	LameDuck LameDuckConfig `json:"lame_duck"`
	Announce AnnounceConfig `json:"announce,omitzero"`
	// Hold is "0s", or "quiet:" and the duration Quiet.
	Hold     string        `json:"hold"`
	Quiet    time.Duration `json:"quiet,omitempty"`
	Deadline time.Duration `json:"deadline"`
}

// LongestLameDuck is how long the lame duck of a stop may last. A timer that nothing has
// to be announced for ends it after For, which is 0 where no lame duck is set; whatever
// else ends it, or an announcement that hangs, may take until Max.
func (c *StopConfig) LongestLameDuck() time.Duration {
	if c.LameDuck.Until == "timer" && c.Announce.empty() {
		return c.LameDuck.For
	}
	return c.LameDuck.Max
}

// LameDuckConfig is the time in which a stopping service still serves and
// tells the routing layer to go elsewhere. The loop Until ends it: after For;
// when failed probes have been seen; when the hook Ask succeeds. Max ends it in any
// case.
type LameDuckConfig struct {
	Until  string        `json:"until"`
	For    time.Duration `json:"for"`
	Max    time.Duration `json:"max"`
	Probes ProbesConfig  `json:"probes,omitzero"`
	Ask    HookConfig    `json:"ask,omitzero"`
}

// ProbesConfig is how many failed probes each prober has to have seen, and how long
// the rest of the balancer's way then takes.
type ProbesConfig struct {
	Count int           `json:"count"`
	Per   string        `json:"per"` // "address"
	Then  time.Duration `json:"then"`
}

// AnnounceConfig is how a lame duck is announced: a file that is made, a program
// that is run, a request that is made. Off is how that is taken back; a file is
// removed.
type AnnounceConfig struct {
	File    string   `json:"file,omitempty"`
	Exec    []string `json:"exec,omitempty"`
	HTTP    string   `json:"http,omitempty"` // a method and a URL
	ExecOff []string `json:"exec_off,omitempty"`
	HTTPOff string   `json:"http_off,omitempty"`
}

func (a *AnnounceConfig) empty() bool { return a.File == "" && len(a.Exec) == 0 && a.HTTP == "" }

// undoes reports whether there is something by which it is taken back.
func (a *AnnounceConfig) undoes() bool { return a.File != "" || len(a.ExecOff) > 0 || a.HTTPOff != "" }

// hooks are what is done to announce, or to take it back.
func (a *AnnounceConfig) hooks(off bool) []HookConfig {
	exec, http := a.Exec, a.HTTP
	if off {
		exec, http = a.ExecOff, a.HTTPOff
	}
	var out []HookConfig
	for _, h := range []HookConfig{{Exec: exec}, {HTTP: http}} {
		if !h.empty() {
			out = append(out, h)
		}
	}
	return out
}

func (b *builder) stop(t *table) StopConfig {
	s := StopConfig{
		Hold:     t.str("hold", "0s"),
		Deadline: t.duration("deadline", 25*time.Second, time.Millisecond),
	}
	s.Hold, s.Quiet = hold(t, s.Hold)
	s.Announce = b.announce(t.sub("announce"))
	s.LameDuck = lameDuck(t.sub("lame_duck"))
	t.finish()
	return s
}

// hold reads "0s" or "quiet:5s".
func hold(t *table, text string) (string, time.Duration) {
	if d, err := time.ParseDuration(text); err == nil && d == 0 {
		return "0s", 0
	}
	rest, ok := strings.CutPrefix(text, "quiet:")
	d, err := time.ParseDuration(rest)
	switch {
	case !ok || err != nil:
		t.fail("hold", `%q is neither "0s" nor "quiet:" with a duration, like "quiet:5s"`, text)
	case d < time.Millisecond:
		t.fail("hold", "%s is too short: at least 1ms", rest)
	case d > maxDuration:
		t.fail("hold", "%s is longer than a year", rest)
	default:
		return text, d
	}
	return "0s", 0
}

func (b *builder) announce(t *table) AnnounceConfig {
	a := AnnounceConfig{
		File: b.path(t, "file", ""), Exec: execArgs(t, "exec"), HTTP: request(t, "http", "POST"),
		ExecOff: execArgs(t, "exec_off"), HTTPOff: request(t, "http_off", "POST"),
	}
	if len(a.ExecOff) > 0 && len(a.Exec) == 0 {
		t.fail("exec_off", "without exec takes nothing back")
	}
	if a.HTTPOff != "" && a.HTTP == "" {
		t.fail("http_off", "without http takes nothing back")
	}
	t.finish()
	return a
}

func lameDuck(t *table) LameDuckConfig {
	d := LameDuckConfig{
		Until: t.oneOf("until", "timer", []string{"timer", "probes", "exec", "http"}, nil),
		For:   t.duration("for", 0, 0),
		Max:   t.duration("max", 10*time.Second, 0),
		Ask:   HookConfig{Exec: execArgs(t, "exec"), HTTP: request(t, "http", "GET")},
	}
	probes := t.sub("probes")
	d.Probes = ProbesConfig{
		Count: probes.integer("count", 3, 1, 1000),
		Per:   probes.oneOf("per", "address", []string{"address"}, nil),
		Then:  probes.duration("then", 0, 0),
	}
	probes.finish()
	for _, k := range []struct{ key, until string }{{"for", "timer"}, {"probes", "probes"}, {"exec", "exec"}, {"http", "http"}} {
		switch {
		case t.has(k.key) && d.Until != k.until:
			t.fail(k.key, "is for until = %q, and until is %q", k.until, d.Until)
		case k.key == d.Until && !t.has(k.key) && k.key != "probes":
			t.fail("until", "%q needs the key %s", d.Until, k.key)
		}
	}
	switch {
	case d.Until == "timer" && d.For > d.Max:
		t.fail(setKey(t, "for", "max"), "for (%s) is longer than max (%s)", d.For, d.Max)
	case d.Until == "probes" && d.Probes.Then >= d.Max:
		t.fail(setKey(t, "probes", "max"), "probes.then (%s) must be shorter than max (%s), which contains it", d.Probes.Then, d.Max)
	}
	if d.Until != "probes" {
		d.Probes = ProbesConfig{}
	}
	t.finish()
	return d
}

// hook reads a table of which one of exec and http is set.
func hook(t *table, method string) HookConfig {
	h := HookConfig{Exec: execArgs(t, "exec"), HTTP: request(t, "http", method)}
	if t.has("exec") && t.has("http") {
		t.fail("http", "exec is there as well: one of the two")
	}
	t.finish()
	return h
}

var methodName = regexp.MustCompile(`^[A-Z]+$`)

// request reads an HTTP request: "POST http://…", or a URL with the method that is
// usual there.
func request(t *table, key, method string) string {
	text := t.str(key, "")
	if text == "" {
		if t.has(key) {
			t.fail(key, "is empty")
		}
		return ""
	}
	address := text
	if first, rest, ok := strings.Cut(text, " "); ok {
		method, address = first, strings.TrimSpace(rest)
	}
	u, err := url.Parse(address)
	switch {
	case !methodName.MatchString(method):
		t.fail(key, "%q is no method of HTTP: \"POST http://…\"", method)
	case err != nil:
		t.fail(key, "%w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		t.fail(key, "%q is no URL that begins with http:// or https://", address)
	default:
		return method + " " + address
	}
	return ""
}

// budget refuses a stop in which nothing is left for the drain: the
// deadline contains the lame duck, at its longest, and the grace before SIGKILL.
func budget(stop, retire *table, s *ServiceConfig) {
	duck, grace, deadline := s.Stop.LongestLameDuck(), s.Retire.KillGrace, s.Stop.Deadline
	key := "deadline"
	if duck+grace < deadline {
		if s.Stop.Quiet > 0 && s.Stop.Quiet >= deadline-grace {
			stop.fail(setKey(stop, "hold", "deadline"), "hold (%s) + kill_grace (%s) leave nothing of the stop's deadline (%s)",
				s.Stop.Quiet, grace, deadline)
		}
		return
	}
	t, longest := stop, "max"
	if duck == s.Stop.LameDuck.For && s.Stop.LameDuck.Until == "timer" {
		longest = "for"
	}
	lame, _ := stop.m["lame_duck"].(map[string]any)
	switch _, set := lame[longest]; {
	case stop.has("deadline"):
	case set:
		key = "lame_duck"
	case retire.has("kill_grace"):
		t, key = retire, "kill_grace"
	}
	if duck == 0 {
		t.fail(key, "kill_grace (%s) leaves nothing of the stop's deadline (%s) for the drain", grace, deadline)
		return
	}
	t.fail(key, "lame_duck.%s (%s) + kill_grace (%s) leave nothing of the stop's deadline (%s) for the drain",
		longest, duck, grace, deadline)
}

// maxExclusive bounds the drain of an exclusive handover, in which nothing serves.
const maxExclusive = 30 * time.Second

// stopFits refuses what the service's sockets and other keys make impossible.
func stopFits(t, stop, retire *table, s *ServiceConfig) {
	if s.Stop.Quiet > 0 && !slices.ContainsFunc(s.Sockets, func(c SocketConfig) bool { return isInet(c.Addr.Kind) && !c.Addr.Kind.Datagram() }) {
		stop.fail("hold", "needs a TCP socket: only of its connections the kernel tells when they were silent")
	}
	if s.Handoff == exclusive && (!retire.has("parent_shutdown") || s.Retire.ParentShutdown > maxExclusive) {
		t.fail("handoff", `"exclusive" needs retire.parent_shutdown of at most %s: nothing serves while the old generation drains`, maxExclusive)
	}
}
