package supervisor

import (
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/handoverd/handover/fdpass"
)

var updateConfigErrors = flag.Bool("update-config", false, "write testdata/config/*.err anew")

var testAccounts = accountFiles{passwd: "testdata/accounts/passwd", group: "testdata/accounts/group"}

func testHost() configHost {
	return configHost{accounts: testAccounts, uid: 0, workDir: "/srv"}
}

func parseText(t *testing.T, text string) *Config {
	t.Helper()
	c, err := parseConfig("test.toml", strings.NewReader(text), testHost())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Each file has its errors beside it, in .err; none means that it parses.
func TestConfigErrors(t *testing.T) {
	files, err := filepath.Glob("testdata/config/*.toml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c, err := parseConfig(filepath.Base(file), strings.NewReader(string(text)), testHost())
			got := ""
			if err != nil {
				got = err.Error() + "\n"
			}
			if (c == nil) != (err != nil) {
				t.Errorf("Config %v with error %v", c, err)
			}
			golden := strings.TrimSuffix(file, ".toml") + ".err"
			if *updateConfigErrors && got != "" {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("errors (-want +got):\n%s", d)
			}
		})
	}
}

func defaults(name string, command ...string) *ServiceConfig {
	return &ServiceConfig{
		Name: name, Command: command, Dialects: []string{"systemd"}, Handoff: "overlap", Log: "follow",
		Ready: ReadyConfig{When: "auto", InitGrace: 30 * time.Second, Settle: 100 * time.Millisecond, AliveFor: time.Second},
		Retire: RetireConfig{
			Signal: "auto", ParentShutdown: 15 * time.Minute, KillGrace: 5 * time.Second, AnswerTimeout: time.Second,
			MaxDraining: 3, OnMaxDraining: "wait", ReleaseTimeout: 5 * time.Second, OnNoRelease: "report",
		},
		Stop: StopConfig{
			LameDuck: LameDuckConfig{Until: "timer", Max: 10 * time.Second},
			Hold:     "0s", Deadline: 25 * time.Second,
		},
		Restart: RestartConfig{BackoffMin: 100 * time.Millisecond, BackoffMax: 30 * time.Second, OnCrashLoop: "hold", CrashLoopAfter: 5, KeepExecutable: "auto"},
	}
}

var diffConfig = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(fdpass.Addr{})}

// The design's sample, without the keys of later versions: what it writes
// out are the defaults, so a bare service gets the same.
func TestConfigDesignSample(t *testing.T) {
	text, err := os.ReadFile("testdata/config/design.toml")
	if err != nil {
		t.Fatal(err)
	}
	c := parseText(t, string(text))
	web := defaults("web", "/usr/sbin/haproxy", "-db", "-de", "-f", "/etc/haproxy/haproxy.cfg")
	web.Check = []string{"/usr/sbin/haproxy", "-c", "-f", "/etc/haproxy/haproxy.cfg"}
	web.User, web.Group, web.NoNewPrivs = "haproxy", "haproxy", true
	web.Env = map[string]string{"LANG": "C"}
	web.Dialects, web.After = []string{"haproxy"}, []string{"app"}
	http, _, err := fdpass.ParseAddr("tcp://0.0.0.0:80")
	if err != nil {
		t.Fatal(err)
	}
	stats, _, err := fdpass.ParseAddr("unix:///run/haproxy/stats.sock")
	if err != nil {
		t.Fatal(err)
	}
	web.Sockets = []SocketConfig{
		{Name: "http", Addr: http, Line: 19},
		{Name: "stats", Addr: stats, Options: fdpass.Options{Mode: new(uint32(0o660)), Group: "haproxy"}, Line: 20},
	}
	want := &Config{
		File: "test.toml", Digest: c.Digest, RuntimeDir: "/run/handoverd", Admin: "127.0.0.1:9902",
		Health: "0.0.0.0:9903", Keeper: "auto",
		Services: []*ServiceConfig{defaults("app", "./server"), web},
	}
	if d := cmp.Diff(want, c, diffConfig); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if len(c.Digest) != 12 || strings.Trim(c.Digest, "0123456789abcdef") != "" {
		t.Errorf("digest %q", c.Digest)
	}
}

const fullConfig = `
runtime_dir = "run"
admin = "localhost:1"
health = ":2"
keeper = "none"
[service.web]
command = ["nginx"]
check = ["nginx", "-t"]
check_sockets = true
directory = "sub/../dir"
env_file = "/etc/default/web"
env = { A = "1", B = "" }
user = "4711"
group = "4712"
no_new_privs = false
umask = "027"
rlimits = { nofile = 65536, core = "infinity" }
nice = -5
oom_score_adj = 500
ambient_caps = ["net_raw", "CAP_SYSLOG"]
log = "inherit"
adopt = "all"
[service.web.socket]
z = { listen = "tcp://:80", reuse_port = true, v6only = true, nonblocking = false, backlog = 7 }
a = "unix:///run/x.sock?mode=0600&owner=www&group=33"
[service.web.socket.m]
listen = "udp4://:53"
[service.web.ready]
when = "alive"
alive_for = "2s"
[service.web.retire]
signal = "USR2"
on_max_draining = "kill-oldest"
on_no_release = "terminate"
[service.web.stop]
lame_duck = { for = "5s" }
`

func TestConfigFull(t *testing.T) {
	c := parseText(t, fullConfig)
	w := c.Services[0]
	got := []any{
		c.RuntimeDir, c.Admin, c.Health, c.Keeper, w.Dialects, w.Directory, w.EnvFile, w.Env, w.User, w.Group,
		w.NoNewPrivs, *w.Umask, w.Rlimits, *w.Nice, *w.OOMScoreAdj, w.AmbientCaps, w.Log, w.Adopt,
		w.Ready.When, w.Ready.AliveFor, w.Retire.Signal, w.Retire.OnMaxDraining, w.Retire.OnNoRelease,
		w.Stop.LameDuck.For, w.CheckSockets,
	}
	want := []any{
		"/srv/run", "127.0.0.1:1", ":2", "none",
		[]string{"nginx"},
		"/srv/dir", "/etc/default/web",
		map[string]string{"A": "1", "B": ""},
		"4711", "4712",
		false, uint32(0o27),
		map[string]uint64{"nofile": 65536, "core": RlimitInfinity},
		-5, 500,
		[]string{"CAP_NET_RAW", "CAP_SYSLOG"},
		"inherit", "all",
		"alive", 2 * time.Second, "SIGUSR2", "kill-oldest", "terminate", 5 * time.Second, true,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	var names []string
	for _, s := range w.Sockets {
		names = append(names, s.Name)
	}
	if d := cmp.Diff([]string{"z", "a", "m"}, names); d != "" {
		t.Errorf("sockets are not in the order of the file (-want +got):\n%s", d)
	}
	wantOptions := fdpass.Options{Backlog: 7, ReusePort: true, V6Only: new(true), Nonblocking: new(false)}
	if d := cmp.Diff(wantOptions, w.Sockets[0].Options); d != "" {
		t.Errorf("options (-want +got):\n%s", d)
	}
	if k := w.Sockets[0].Addr.Kind; k != fdpass.TCP6 {
		t.Errorf("v6only wildcard is %s", k)
	}
}

// The state file keeps configurations.
func TestConfigJSON(t *testing.T) {
	c := parseText(t, fullConfig)
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var back *Config
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, back, cmpopts.EquateComparable(fdpass.Addr{})); d != "" {
		t.Errorf("(-before +after):\n%s", d)
	}
}

func TestConfigOrder(t *testing.T) {
	text := ""
	for _, s := range []string{"web=app,auth", "cron=", "app=db", "auth=", "db="} {
		name, after, _ := strings.Cut(s, "=")
		text += "[service." + name + "]\ncommand = ['x']\n"
		if after != "" {
			text += "after = ['" + strings.ReplaceAll(after, ",", "', '") + "']\n"
		}
	}
	var names []string
	for _, s := range parseText(t, text).Services {
		names = append(names, s.Name)
	}
	if d := cmp.Diff([]string{"cron", "auth", "db", "app", "web"}, names); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestConfigRuntimeDir(t *testing.T) {
	for _, tt := range []struct {
		uid             int
		xdg, file, flag string
	}{
		{0, "/run/user/0", "/run/handoverd", "/run/handoverd/web"},
		{1000, "/run/user/1000", "/run/user/1000/handoverd", "/run/user/1000/handoverd/web"},
		{1000, "", "/tmp/handoverd-1000", "/tmp/handoverd-1000/web"},
		{1000, "relative", "/tmp/handoverd-1000", "/tmp/handoverd-1000/web"},
	} {
		host := configHost{accounts: testAccounts, uid: tt.uid, xdgRuntimeDir: tt.xdg, workDir: "/srv"}
		c, err := parseConfig("x", strings.NewReader("[service.a]\ncommand=['x']"), host)
		if err != nil || c.RuntimeDir != tt.file {
			t.Errorf("%+v: %+v, %v", tt, c, err)
		}
		c, err = fromFlags(nil, FlagOptions{}, []string{"x"}, host)
		if err != nil || c.RuntimeDir != tt.flag {
			t.Errorf("%+v: %+v, %v", tt, c, err)
		}
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "handoverd.toml")
	_, err := Load(path)
	var ce *ConfigError
	if !errors.Is(err, os.ErrNotExist) || !errors.As(err, &ce) || ce.File != path {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte("[service.a]\ncommand = ['x']\nuser = 'root'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil || c.File != path || c.Services[0].User != "root" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestConfigTooLarge(t *testing.T) {
	_, err := Parse("big.toml", strings.NewReader(strings.Repeat("#", maxConfigSize+1)))
	if len(AllConfigErrors(err)) != 1 || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("%v", err)
	}
}

func TestConfigLaterIsErrNotYet(t *testing.T) {
	text, err := os.ReadFile("testdata/config/later.toml")
	if err != nil {
		t.Fatal(err)
	}
	_, err = parseConfig("later.toml", strings.NewReader(string(text)), testHost())
	for _, e := range AllConfigErrors(err) {
		if !errors.Is(e, errNotYet) {
			t.Errorf("%v is not errNotYet", e)
		}
	}
}

// FuzzParse: never a panic, and every error names file and line.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/config/*.toml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add(fullConfig)
	f.Add("a.\"b\\\"c\" = '''\n''''' # x\n[ x . \"y\" ]\nz=[{a=1},\n{b=2}]")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseConfig("fuzz.toml", strings.NewReader(text), testHost())
		if err == nil {
			c.Warnings()
			if d := Diff(c, c); d.Refused != nil || len(d.Added)+len(d.Removed) > 0 {
				t.Errorf("a configuration differs from itself: %+v", d)
			}
			return
		}
		all := AllConfigErrors(err)
		lines := strings.Count(text, "\n") + 1
		for _, e := range all {
			if e.File != "fuzz.toml" || e.Line < 1 || e.Line > lines || e.Err == nil {
				t.Errorf("%#v of %d lines", e, lines)
			}
		}
		if c != nil || len(all) == 0 {
			t.Errorf("%v with %d errors: %v", c, len(all), err)
		}
	})
}
