package supervisor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// serviceKeys says where keys of a service belong that were written in
// another table.
var serviceKeys = map[string]string{
	"command": "[service.NAME]", "check": "[service.NAME]", "user": "[service.NAME]",
	"group": "[service.NAME]", "env": "[service.NAME]", "after": "[service.NAME]",
	"socket":     "[service.NAME.socket]",
	"init_grace": "[service.NAME.ready]", "settle": "[service.NAME.ready]", "when": "[service.NAME.ready]",
	"parent_shutdown": "[service.NAME.retire]", "signal": "[service.NAME.retire]",
	"kill_grace": "[service.NAME.retire]", "max_draining": "[service.NAME.retire]",
	"answer_timeout":  "[service.NAME.retire]",
	"release_timeout": "[service.NAME.retire]",
	"lame_duck":       "[service.NAME.stop]", "deadline": "[service.NAME.stop]", "hold": "[service.NAME.stop]",
	"announce":    "[service.NAME.stop]",
	"backoff_min": "[service.NAME.restart]", "backoff_max": "[service.NAME.restart]",
	"on_crash_loop": "[service.NAME.restart]", "crash_loop_after": "[service.NAME.restart]",
	"keep_executable": "[service.NAME.restart]",
	"bake":            "[service.NAME.ready]", "gate": "[service.NAME.ready]",
}

func (b *builder) service(name string, t *table) *ServiceConfig {
	t.elsewhere = serviceKeys
	s := &ServiceConfig{Name: name}
	b.program(s, t)
	b.identity(s, t)
	b.limits(s, t)

	s.Dialects = dialects(t, s.Command)
	s.After = t.list("after")
	s.Handoff = t.oneOf("handoff", "overlap", []string{"overlap", exclusive}, []string{"self"})
	s.Log = t.oneOf("log", "follow", []string{"follow", "inherit"}, nil)
	if t.has("adopt") {
		s.Adopt = t.oneOf("adopt", "", []string{"", "all"}, nil)
	}
	s.Sockets = b.sockets(name, t.sub("socket"))
	s.Ready = ready(t.sub("ready"))
	readyFits(t.sub("ready"), s)
	retireTable, stopTable := t.sub("retire"), t.sub("stop")
	s.Retire = retire(retireTable)
	s.Stop = b.stop(stopTable)
	budget(stopTable, retireTable, s)
	stopFits(t, stopTable, retireTable, s)
	s.Restart = restart(t.sub("restart"))
	t.finish()
	return s
}

// program reads what is run and where.
func (b *builder) program(s *ServiceConfig, t *table) {
	s.Command = t.list("command")
	switch {
	case !t.has("command"):
		t.src.fail(t.path, fmt.Errorf("command is missing"))
	case len(s.Command) == 0 && isList(t.m["command"]), len(s.Command) > 0 && s.Command[0] == "":
		t.fail("command", "names no program")
	}
	s.Check = t.list("check")
	if len(s.Check) > 0 && s.Check[0] == "" {
		t.fail("check", "names no program")
	}
	s.CheckSockets = t.boolean("check_sockets", false)
	if s.CheckSockets && len(s.Check) == 0 {
		t.fail("check_sockets", "without check has nothing to give the sockets to")
	}
	if w := t.list("watch"); len(w) > 0 {
		t.notYet("watch")
	}
	s.Directory = b.path(t, "directory", "")
	s.EnvFile = b.path(t, "env_file", "")
	env := t.sub("env")
	for _, name := range env.names() {
		if err := checkVariable(name); err != nil {
			env.fail(name, "%w", err)
			continue
		}
		if s.Env == nil {
			s.Env = map[string]string{}
		}
		s.Env[name] = env.str(name, "")
	}
}

func isList(v any) bool { _, ok := v.([]any); return ok }

// identity reads whom it runs as. The names are resolved again at each
// spawn; here only that they can be.
func (b *builder) identity(s *ServiceConfig, t *table) {
	s.User = t.str("user", "")
	s.Group = t.str("group", "")
	if _, err := b.host.accounts.resolve(s.User, ""); err != nil && (s.Group == "" || !isNumber(s.User)) {
		t.fail("user", "%w", err)
	}
	if s.Group != "" {
		if _, err := b.host.accounts.gid(s.Group); err != nil {
			t.fail("group", "%w", err)
		}
	}
	// A program that was given another user has no business getting back.
	s.NoNewPrivs = t.boolean("no_new_privs", s.User != "")
	for _, name := range t.list("ambient_caps") {
		c := strings.ToUpper(name)
		if !strings.HasPrefix(c, "CAP_") {
			c = "CAP_" + c
		}
		switch {
		case !slices.Contains(capabilityNames, c):
			t.fail("ambient_caps", "%q is no capability%s", name, didYouMean(c, capabilityNames))
		case slices.Contains(s.AmbientCaps, c):
			t.fail("ambient_caps", "%s is named twice", c)
		default:
			s.AmbientCaps = append(s.AmbientCaps, c)
		}
	}
}

func (b *builder) limits(s *ServiceConfig, t *table) {
	s.Umask = t.octal("umask", 0o777)
	if t.has("nice") {
		n := t.integer("nice", 0, -20, 19)
		s.Nice = &n
	}
	if t.has("oom_score_adj") {
		n := t.integer("oom_score_adj", 0, -1000, 1000)
		s.OOMScoreAdj = &n
	}
	limits := t.sub("rlimits")
	for _, name := range limits.names() {
		if !slices.Contains(rlimitNames, name) {
			limits.fail(name, "is no resource limit%s", didYouMean(name, rlimitNames))
			continue
		}
		if s.Rlimits == nil {
			s.Rlimits = map[string]uint64{}
		}
		switch v := limits.m[name].(type) {
		case int64:
			if v < 0 {
				limits.fail(name, `%d is negative; no limit is "infinity"`, v)
			}
			s.Rlimits[name] = uint64(v)
		case string:
			if v != "infinity" {
				limits.fail(name, `%q is neither a number nor "infinity"`, v)
			}
			s.Rlimits[name] = RlimitInfinity
		default:
			limits.wrongType(name, `a number or "infinity"`, v)
		}
	}
}

// dialects are never empty: without the key they follow from the command.
func dialects(t *table, command []string) []string {
	list := t.list("dialects")
	if len(list) == 0 {
		return defaultDialects(command)
	}
	var program string
	for i, d := range list {
		switch {
		case slices.Contains(dialectsLater, d):
			t.fail("dialects", "%q is %w; possible now: %s", d, errNotYet, quoteList(dialectsNow))
		case !slices.Contains(dialectsNow, d):
			all := append(slices.Clone(dialectsNow), dialectsLater...)
			t.fail("dialects", "%q is no dialect%s", d, didYouMean(d, all))
		case slices.Contains(list[:i], d):
			t.fail("dialects", "%q is named twice", d)
		case slices.Contains(programDialects, d) && program != "":
			t.fail("dialects", "%q and %q are two programs' ways; a service runs one", program, d)
		case slices.Contains(programDialects, d):
			program = d
		}
	}
	return list
}

// baseCommand is the name a service's program goes by.
func (s *ServiceConfig) baseCommand() string {
	if len(s.Command) == 0 {
		return ""
	}
	return filepath.Base(s.Command[0])
}
