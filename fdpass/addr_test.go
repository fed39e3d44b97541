package fdpass

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var compareIP = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func TestParseAddr(t *testing.T) {
	any6, any4 := netip.IPv6Unspecified(), netip.IPv4Unspecified()
	local4 := netip.MustParseAddr("127.0.0.1")
	long := "/" + strings.Repeat("x", 106)
	tests := []struct {
		in   string
		addr Addr
		opts Options
		str  string
	}{
		{":8080", Addr{Kind: TCP, IP: any6, Port: 8080}, Options{}, "tcp://[::]:8080"},
		{"127.0.0.1:80", Addr{Kind: TCP, IP: local4, Port: 80}, Options{}, "tcp://127.0.0.1:80"},
		{"localhost:80", Addr{Kind: TCP, IP: local4, Port: 80}, Options{}, "tcp://127.0.0.1:80"},
		{"[::1]:80", Addr{Kind: TCP, IP: netip.IPv6Loopback(), Port: 80}, Options{}, "tcp://[::1]:80"},
		{"[fe80::1%eth0]:80", Addr{Kind: TCP, IP: netip.MustParseAddr("fe80::1%eth0"), Port: 80}, Options{}, "tcp://[fe80::1%eth0]:80"},
		{"[::ffff:127.0.0.1]:80", Addr{Kind: TCP, IP: local4, Port: 80}, Options{}, "tcp://127.0.0.1:80"},
		{"tcp://:80", Addr{Kind: TCP, IP: any6, Port: 80}, Options{}, "tcp://[::]:80"},
		{"tcp://:80?v6only=true", Addr{Kind: TCP6, IP: any6, Port: 80}, Options{V6Only: new(true)}, "tcp6://[::]:80"},
		{"tcp4://:80", Addr{Kind: TCP4, IP: any4, Port: 80}, Options{}, "tcp4://0.0.0.0:80"},
		{"tcp6://:80", Addr{Kind: TCP6, IP: any6, Port: 80}, Options{}, "tcp6://[::]:80"},
		{"udp://127.0.0.1:0", Addr{Kind: UDP, IP: local4}, Options{}, "udp://127.0.0.1:0"},
		{"udp4://:53", Addr{Kind: UDP4, IP: any4, Port: 53}, Options{}, "udp4://0.0.0.0:53"},
		{
			"tcp://:80?backlog=7&reuse_port=1&nonblocking=false",
			Addr{Kind: TCP, IP: any6, Port: 80},
			Options{Backlog: 7, ReusePort: true, Nonblocking: new(false)},
			"tcp://[::]:80",
		},
		{
			"unix:///run/a.sock?mode=0660&group=www&owner=7",
			Addr{Kind: Unix, Path: "/run/a.sock"},
			Options{Mode: new(uint32(0o660)), Owner: "7", Group: "www"},
			"unix:///run/a.sock",
		},
		{"unix:/run//b/../a.sock", Addr{Kind: Unix, Path: "/run/a.sock"}, Options{}, "unix:///run/a.sock"},
		{"unix:@name", Addr{Kind: Unix, Path: "@name"}, Options{}, "unix:@name"},
		{"unixgram:@n", Addr{Kind: Unixgram, Path: "@n"}, Options{}, "unixgram:@n"},
		{"unixpacket:///p", Addr{Kind: Unixpacket, Path: "/p"}, Options{}, "unixpacket:///p"},
		{"unix:///a%3Fb%25", Addr{Kind: Unix, Path: "/a?b%"}, Options{}, "unix:///a%3Fb%25"},
		{"unix:" + long, Addr{Kind: Unix, Path: long}, Options{}, "unix://" + long},
	}
	for _, tt := range tests {
		a, o, err := ParseAddr(tt.in)
		if err != nil {
			t.Errorf("ParseAddr(%q): %v", tt.in, err)
			continue
		}
		if d := cmp.Diff(tt.addr, a, compareIP); d != "" {
			t.Errorf("ParseAddr(%q) address (-want +got):\n%s", tt.in, d)
		}
		if d := cmp.Diff(tt.opts, o); d != "" {
			t.Errorf("ParseAddr(%q) options (-want +got):\n%s", tt.in, d)
		}
		if got := a.String(); got != tt.str {
			t.Errorf("ParseAddr(%q).String() = %q, want %q", tt.in, got, tt.str)
		}
	}
}

func TestParseAddrErrors(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", "it is empty"},
		{"8080", "it has no port"},
		{"tcp://127.0.0.1", "it has no port"},
		{"[::1]", "it has no port"},
		{"tcp:80", "after tcp: comes //"},
		{"http://:80", `unknown kind "http"`},
		{":http", `the port "http" is not a number`},
		{":65536", `the port "65536" is not a number from 0 to 65535`},
		{"example.org:80", "names are not looked up"},
		{"::1:80", "an IPv6 address is written in brackets"},
		{"tcp://::1:80", "an IPv6 address is written in brackets"},
		{"[127.0.0.1]:80", "without brackets"},
		{"[fe80::1%a/b]:80", "is no interface"},
		{"unix:/a%ff", "is not UTF-8"},
		{"unix:/a?owner=%ff", "is not UTF-8"},
		{"tcp4://[::1]:80", "tcp4 needs an IPv4 address"},
		{"tcp6://127.0.0.1:80", "tcp6 needs an IPv6 address"},
		{"tcp6://[::ffff:127.0.0.1]:80", "tcp6 needs an IPv6 address"},
		{"tcp6://:80?v6only=false", "tcp6 takes IPv6 only"},
		{"127.0.0.1:80?v6only=true", "v6only is for IPv6 addresses"},
		{":80?mode=0660", "mode, owner and group are for UNIX sockets"},
		{"/run/a.sock", "write unix:/run/a.sock"},
		{"@name", "write unix:@name"},
		{"unix:run/a.sock", "is not absolute"},
		{"unix:", "is not absolute"},
		{"unix:/run/", "names a directory"},
		{"unix:@", "the abstract name is empty"},
		{"unix:/a%00b", "NUL byte"},
		{"unix:/a%zz", "invalid URL escape"},
		{"unix:@n?mode=0660", "not for abstract ones"},
		{"unix:/a?reuse_port=true", "reuse_port and v6only are for IP sockets"},
		{"unix:/" + strings.Repeat("x", 107), "has 108 bytes, and at most 107 fit"},
		{"unix:@" + strings.Repeat("x", 108), "has 108 bytes, and at most 107 fit"},
		{"unix:/a?mode=9", "octal"},
		{"unix:/a?mode=1777", "permission bits only"},
		{"unix:/a?mode=", "has no value"},
		{":80?backlog=0", "at least 1"},
		{":80?backlog=99999999999", "backlog"},
		{":80?backlog=1&backlog=2", "given 2 times"},
		{":80?nonblocking=maybe", "true or false"},
		{":80?colour=red", `unknown option "colour"`},
	}
	for _, tt := range tests {
		_, _, err := ParseAddr(tt.in)
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "accepted: :8080") {
			t.Errorf("ParseAddr(%q) = %v, want %q and the accepted forms", tt.in, err, tt.want)
		}
	}
}

func parse(t testing.TB, s string) (Addr, Options) {
	t.Helper()
	a, o, err := ParseAddr(s)
	if err != nil {
		t.Fatal(err)
	}
	return a, o
}

func TestKeyAndConflicts(t *testing.T) {
	tests := []struct {
		a, b           string
		same, conflict bool
	}{
		{":80", "tcp://[::]:80", true, false},
		{"tcp://:80?v6only=1", "tcp6://:80", true, false},
		{"tcp4://:80", "tcp://0.0.0.0:80", true, false},
		{"tcp6://[::1]:80", "[::1]:80", true, false},
		{"[::ffff:127.0.0.1]:80", "127.0.0.1:80", true, false},
		{":80", "tcp6://:80", false, true},
		{":80", "tcp4://:80", false, true},
		{":80", "127.0.0.1:80", false, true},
		{":80", "[::1]:80", false, true},
		{"tcp6://:80", "tcp4://:80", false, false},
		{"tcp6://:80", "[::1]:80", false, true},
		{"tcp4://:80", "127.0.0.1:80", false, true},
		{"127.0.0.1:80", "127.0.0.2:80", false, false},
		{":80", ":81", false, false},
		{":80", "udp://:80", false, false},
		{":0", "tcp4://:0", false, false},
		{"unix:/a", "unix:///a", true, false},
		{"unix:/a", "unixgram:/a", false, true},
		{"unix:/a", "unix:/b", false, false},
		{"unix:@a", "unixgram:@a", false, false},
		{"unix:@a", "unix:/a", false, false},
		{"unix:/a", ":80", false, false},
	}
	for _, tt := range tests {
		a, _ := parse(t, tt.a)
		b, _ := parse(t, tt.b)
		if got := a.Key() == b.Key(); got != tt.same {
			t.Errorf("keys of %s and %s: %q, %q", tt.a, tt.b, a.Key(), b.Key())
		}
		if a.Conflicts(b) != tt.conflict || b.Conflicts(a) != tt.conflict {
			t.Errorf("%s conflicts with %s: %v, back %v, want %v", tt.a, tt.b, a.Conflicts(b), b.Conflicts(a), tt.conflict)
		}
	}
}

func TestOptionsDiff(t *testing.T) {
	base := Options{}
	kept, refused := base.Diff(Options{Backlog: DefaultBacklog, Nonblocking: new(true), Mode: new(uint32(DefaultMode)), V6Only: new(true)})
	if len(kept)+len(refused) != 0 {
		t.Errorf("spelled-out defaults differ: %v %v", kept, refused)
	}
	base.V6Only = new(false)
	kept, refused = base.Diff(Options{
		Backlog: 1, ReusePort: true, V6Only: new(true), Nonblocking: new(false),
		Mode: new(uint32(0o600)), Owner: "a", Group: "b",
	})
	if d := cmp.Diff([]string{"backlog", "mode", "owner", "group"}, kept); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"reuse_port", "v6only", "nonblocking"}, refused); d != "" {
		t.Error(d)
	}
}

func FuzzParseAddr(f *testing.F) {
	for _, s := range []string{
		":8080", "localhost:80", "[::1]:0", "tcp://[fe80::1%eth0]:1?v6only=1", "udp6://:53",
		"unix:///run/a.sock?mode=0660&group=www", "unix:@n", "unixgram:/a%3Fb", "unixpacket:/x?backlog=3",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, o, err := ParseAddr(s)
		if err != nil {
			if a != (Addr{}) {
				t.Fatalf("an address beside the error %v: %v", err, a)
			}
			return
		}
		again, _, err := ParseAddr(a.String())
		if err != nil || again != a || again.Key() != a.Key() {
			t.Fatalf("%q is %#v, its string %q is %#v, %v", s, a, a.String(), again, err)
		}
		b, err := json.Marshal(struct {
			A Addr
			O Options
		}{a, o})
		if err != nil {
			t.Fatal(err)
		}
		var back struct {
			A Addr
			O Options
		}
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		if back.A != a {
			t.Fatalf("JSON %s is %#v", b, back.A)
		}
		if kept, refused := o.Diff(back.O); len(kept)+len(refused) != 0 {
			t.Fatalf("options through JSON differ: %v %v", kept, refused)
		}
	})
}
