package supervisor

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConfigDiff(t *testing.T) {
	old := parseText(t, `
runtime_dir = "/run/a"
admin = "127.0.0.1:1"
[service.app]
command = ["a"]
[service.app.socket]
kept = ":80"
same = { listen = ":81", backlog = 4096, nonblocking = true }
tuned = { listen = "unix:///run/a.sock", mode = "0600" }
port = { listen = ":82", reuse_port = true }
gone = ":83"
zero = "127.0.0.1:0"
[service.two]
command = ["b"]
[service.two.socket]
shared = ":80"
`)
	now := parseText(t, `
runtime_dir = "/run/b"
health = ":2"
[service.app]
command = ["a"]
[service.app.socket]
same = ":81"
renamed = "tcp://[::]:80"
tuned = { listen = "unix:///run/a.sock", mode = "0660", group = "www", nonblocking = false }
port = ":82"
new = ":84"
nought = "127.0.0.1:0"
`)
	type one struct {
		Socket string
		Apply  bool
	}
	names := func(list []SocketDiff) []one {
		var out []one
		for _, s := range list {
			out = append(out, one{s.Service + "." + s.Socket.Name, s.Apply})
		}
		return out
	}
	d := Diff(old, now)
	got := [][]one{names(d.Added), names(d.Removed), names(d.Kept)}
	want := [][]one{
		{{"app.new", false}, {"app.nought", false}},
		{{"app.gone", false}, {"app.zero", false}},
		{{"app.same", false}, {"app.renamed", false}, {"app.tuned", true}, {"app.port", false}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("added, removed, kept (-want +got):\n%s", d)
	}
	wantErr := `test.toml: runtime_dir: cannot change at a reload ("/run/a" to "/run/b"): stop handoverd and start it again
test.toml: admin: cannot change at a reload ("127.0.0.1:1" to ""): stop handoverd and start it again
test.toml: health: cannot change at a reload ("" to ":2"): stop handoverd and start it again
test.toml:9: service.app.socket.tuned: nonblocking from true to false needs a new socket: remove it in one reload, add it in the next
test.toml:10: service.app.socket.port: reuse_port from true to false needs a new socket: remove it in one reload, add it in the next`
	if d.Refused == nil {
		t.Fatal("nothing refused")
	}
	if d := cmp.Diff(wantErr, d.Refused.Error()); d != "" {
		t.Errorf("refused (-want +got):\n%s", d)
	}
}

func TestConfigWarnings(t *testing.T) {
	c := parseText(t, `
admin = "0.0.0.0:9902"
[service.app]
command = ["/usr/sbin/haproxy"]
[service.app.socket]
http = { listen = ":80", reuse_port = true }
nb = { listen = "unix:@x", nonblocking = false }
[service.app.retire]
signal = "TERM"
[service.blue]
command = ["x"]
[service.blue.socket]
web = { listen = ":80", reuse_port = true }
[service.blue.stop]
lame_duck = { for = "5s" }
[service.blue.ready]
when = "alive"
[service.quiet]
command = ["x"]
[service.quiet.socket]
u = "unix:@y"
`)
	want := []string{
		"admin: 0.0.0.0:9902 can be reached from other hosts; health serves what balancers need",
		"service.app.stop.lame_duck: for = 0s: a stop tells no balancer before it drains; its clients are refused until it notices",
		"service.app.retire.signal: haproxy on SIGTERM exits at once and cuts what is in flight; auto drains it",
		"service.app.socket.http: reuse_port: closing a member loses the connections in its accept queue; one shared socket loses none",
		"service.app.socket.nb: nonblocking = false: an event loop hangs when another generation takes the connection first",
		"service.blue.ready.when: alive is no proof: a program that runs without serving replaces one that serves",
		"service.blue.socket.web: tcp://[::]:80 is shared with app.http: their programs take connections from one queue",
		"service.blue.socket.web: reuse_port: closing a member loses the connections in its accept queue; one shared socket loses none",
	}
	if d := cmp.Diff(want, c.Warnings()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
