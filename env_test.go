package handover

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const testPID = 4711

func vars(s string) []string { return strings.Fields(s) }

func TestParseEnviron(t *testing.T) {
	const gen = " HANDOVER_GENERATION=2 HANDOVER_SERVICE=web"
	for _, c := range []struct {
		name, in string
		want     environ
	}{
		{"nothing", "HOME=/", environ{control: -1}},
		{"notify only", "NOTIFY_SOCKET=/n", environ{control: -1, notify: "/n"}},
		{"of a parent", "LISTEN_PID=1 LISTEN_FDS=2", environ{control: -1}},
		{"of a parent's generation", "HANDOVER_GENERATION=2 HANDOVER_TOKEN=t", environ{control: -1}},
		{"systemd", "LISTEN_PID=4711 LISTEN_FDS=2 LISTEN_FDNAMES=a:a", environ{
			activated: true, control: -1, fds: []passed{{"a", 3}, {"a", 4}},
		}},
		{"nameless", "LISTEN_PID=4711 LISTEN_FDS=1", environ{
			activated: true, control: -1, fds: []passed{{"unknown", 3}},
		}},
		{"supervised", "LISTEN_PID=4711 LISTEN_FDS=2 LISTEN_FDNAMES=a:b-c HANDOVER_FD=5 HANDOVER_FD_A=3 HANDOVER_FD_B_C=4" + gen, environ{
			supervised: true, activated: true, control: 5, generation: 2, service: "web", fds: []passed{{"a", 3}, {"b-c", 4}},
		}},
		{"one alone", "HANDOVER_FD=4 HANDOVER_FD_A=3 HANDOVER_PER_GENERATION=a:b-c" + gen, environ{
			supervised: true, byKey: true, control: 4, generation: 2, service: "web", fds: []passed{{"a", 3}}, own: []string{"a", "b-c"},
		}},
		{"no sockets", "HANDOVER_FD=3" + gen, environ{supervised: true, byKey: true, control: 3, generation: 2, service: "web"}},
		{"no sockets, with LISTEN_FDS", "LISTEN_PID=4711 LISTEN_FDS=0 LISTEN_FDNAMES= HANDOVER_FD=3" + gen, environ{
			supervised: true, activated: true, control: 3, generation: 2, service: "web", fds: []passed{},
		}},
	} {
		got, err := parseEnviron(vars(c.in), testPID)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if d := cmp.Diff(c.want, got, cmp.AllowUnexported(environ{}, passed{})); d != "" {
			t.Errorf("%s: -want +got:\n%s", c.name, d)
		}
	}
}

func TestParseEnvironDamaged(t *testing.T) {
	const sup = "HANDOVER_GENERATION=2 HANDOVER_FD=9 LISTEN_PID=4711 "
	for _, c := range []struct{ in, want string }{
		{"LISTEN_FDS=1", "LISTEN_FDS is set without LISTEN_PID"},
		{"LISTEN_FDS=1 LISTEN_PID=me", `LISTEN_PID="me" is no process number`},
		{"LISTEN_FDS=1 LISTEN_PID=4711x", "no process number"},
		{"LISTEN_FDS=1 LISTEN_PID=-4711", "no process number"},
		{"LISTEN_FDS=1 LISTEN_PID=4711 LISTEN_PIDFDID=x", `LISTEN_PIDFDID="x" is no number`},
		{"LISTEN_FDS=one LISTEN_PID=4711", `LISTEN_FDS="one" is no count`},
		{"LISTEN_FDS=-1 LISTEN_PID=4711", "no count"},
		{"LISTEN_FDS=9999999 LISTEN_PID=4711", "no count"},
		{"LISTEN_FDS= LISTEN_PID=4711", "no count"},
		{"LISTEN_FDS=2 LISTEN_FDNAMES=a LISTEN_PID=4711", "LISTEN_FDNAMES has 1 names, LISTEN_FDS is 2"},
		{"HANDOVER_FD=", `HANDOVER_FD="" is no descriptor`},
		{"HANDOVER_FD=x", "no descriptor"},
		{"HANDOVER_FD=2", "no descriptor from 3 on"},
		{"HANDOVER_FD=3", `HANDOVER_GENERATION="" is no generation`},
		{"HANDOVER_FD=3 HANDOVER_GENERATION=0", "no generation"},
		{"HANDOVER_FD=3 HANDOVER_GENERATION=1 HANDOVER_FD_A=b", `HANDOVER_FD_A="b" is no descriptor`},
		{"HANDOVER_FD=3 HANDOVER_GENERATION=1 HANDOVER_FD_A=3", "descriptor 3 is given twice"},
		{"HANDOVER_FD=3 LISTEN_FDS=1 LISTEN_PID=1", "LISTEN_PID is 1 but this is process 4711"},
		{sup + "LISTEN_FDS=2 LISTEN_FDNAMES=a:a", `"a" is empty or given twice`},
		{sup + "LISTEN_FDS=2 LISTEN_FDNAMES=a:", `"" is empty or given twice`},
		{sup + "LISTEN_FDS=1 LISTEN_FDNAMES=a HANDOVER_FD_A=4", `socket "a" is descriptor 3 by LISTEN_FDS, 4 by HANDOVER_FD_A`},
		{sup + "LISTEN_FDS=7 LISTEN_FDNAMES=a:b:c:d:e:f:g", "descriptor 9 is given twice"},
	} {
		_, err := parseEnviron(vars(c.in), testPID)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.in, err, c.want)
		}
	}
}

func FuzzParseEnviron(f *testing.F) {
	f.Add("LISTEN_PID=4711\nLISTEN_FDS=2\nLISTEN_FDNAMES=a:b\nHANDOVER_FD=5\nHANDOVER_GENERATION=1\nHANDOVER_FD_A=3")
	f.Add("HANDOVER_FD=3\nHANDOVER_GENERATION=1\nHANDOVER_FD_X=4")
	f.Fuzz(func(t *testing.T, s string) {
		env, err := parseEnviron(strings.Split(s, "\n"), testPID)
		if err != nil {
			return
		}
		var used []int
		for _, p := range env.fds {
			if p.fd < firstFD || slices.Contains(used, p.fd) || (env.supervised && p.fd == env.control) {
				t.Errorf("%q: descriptor %d", s, p.fd)
			}
			used = append(used, p.fd)
		}
		if env.supervised && (env.generation < 1 || env.control < firstFD) {
			t.Errorf("%q: %+v", s, env)
		}
	})
}
