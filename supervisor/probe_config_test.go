package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What a probe or a gate runs is looked for when the configuration is checked, and the error has its line.
func TestPlanFindsProbes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "h.toml")
	text := `[service.web]
command = ["/bin/true"]
[service.web.ready]
when = "exec"
exec = ["/nowhere/probe"]
[service.two]
command = ["/bin/true"]
[service.two.ready]
gate = { exec = ["/nowhere/gate"] }
[service.three]
command = ["/bin/true"]
[service.three.ready]
when = "exec"
exec = ["/bin/true", "/nowhere/argument"]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	plans, err := c.Plan()
	var got []string
	for _, e := range AllConfigErrors(err) {
		got = append(got, strings.TrimPrefix(e.Error(), file))
	}
	want := []string{
		":5: service.web.ready.exec: lstat /nowhere: no such file or directory",
		":9: service.two.ready.gate: lstat /nowhere: no such file or directory",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || len(plans) != 1 {
		t.Errorf("%d plans, errors\n%s\nwant\n%s", len(plans), strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestConfigReady: what is written is what is asked, with every default.
func TestConfigReady(t *testing.T) {
	c := parseText(t, `[service.web]
command = ["a"]
[service.web.socket]
http = ":80"
own = { listen = "unix:///run/web.${HANDOVER_GENERATION}.sock", per_generation = true, mode = "0600" }
[service.web.ready]
when = "http"
http = { socket = "own", path = "/healthz", status = 204 }
successes = 2
bake = "1m"
gate = { http = "https://lb.example/state?g=${HANDOVER_GENERATION}" }
`)
	web := c.Services[0]
	if s := web.Sockets[1]; !s.PerGeneration || s.Options.Mode == nil || socketKey("web", s) == s.Addr.Key() {
		t.Errorf("the socket is %+v", s)
	}
	if p, want := *web.Ready.Probe, (ProbeConfig{
		Kind: "http", Socket: "own", Path: "/healthz", Host: "localhost", Status: 204,
		Interval: probeInterval, Timeout: probeTimeout, Successes: 2, Failures: 3,
	}); !sameProbe(p, want) {
		t.Errorf("the probe is %+v, want %+v", p, want)
	}
	if p, want := *web.Ready.Gate, (ProbeConfig{
		Kind: "http", URL: "https://lb.example/state?g=${HANDOVER_GENERATION}",
		Interval: gateInterval, Timeout: gateTimeout, Successes: 1, Failures: 1,
	}); !sameProbe(p, want) {
		t.Errorf("the gate is %+v, want %+v", p, want)
	}
	spec := &Spec{Config: *web, Keys: []SocketKey{{Name: "http", Key: "k"}, {Name: "own", Key: "o", Own: true}}}
	g2 := &Generation{N: 2, Spec: spec}
	if keys := g2.ownKeys(); len(keys) != 1 || keys[0].Key != "o#2" || !spec.shares() || len(sharedKeys(spec)) != 1 {
		t.Errorf("the keys of generation 2 alone are %v", keys)
	}
}

func sameProbe(a, b ProbeConfig) bool {
	return strings.Join(a.Exec, " ") == strings.Join(b.Exec, " ") && string(mustJSON(a)) == string(mustJSON(b))
}

// A probe that asks an address may meet an older generation there: check says so.
func TestWarnsOfSharedProbe(t *testing.T) {
	const head = "[service.web]\ncommand = [\"a\"]\nafter = []\n[service.web.ready]\nwhen = \"tcp\"\n"
	for address, warned := range map[string]bool{
		"127.0.0.1:9000": true,
		"unix:///run/web.${HANDOVER_GENERATION}.sock": false,
		"unix:///run/web.$HANDOVER_GENERATION":        false,
	} {
		c := parseText(t, head+`tcp = { address = "`+address+`" }`)
		if all := strings.Join(c.Warnings(), "\n"); strings.Contains(all, "the same for every generation") != warned {
			t.Errorf("%s: warnings %q", address, all)
		}
	}
}
