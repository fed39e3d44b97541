//go:build linux

package handover_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/supervisor"
)

// manySockets do not fit one message of descriptors, nor the usual limit of open files.
const manySockets = 1000

// TestManySockets: a generation gets a thousand sockets, each at its number, and so does the next; both have room for
// as many connections as the documentation says.
func TestManySockets(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts real programs with a thousand sockets; it runs without -short")
	}
	d := NewDaemon(t)
	seen := filepath.Join(d.Dir, "seen")
	// The program lists its own descriptors and limits, then becomes the server. Its number is put in by handoverd.
	script := fmt.Sprintf(`d=%s.$HANDOVER_GENERATION; ls -l /proc/self/fd >$d.fds; `+
		`ulimit -n >$d.limit; echo $LISTEN_FDNAMES >$d.names; exec %s`, seen, Program(t, testchildProgram))
	var b strings.Builder
	fmt.Fprintf(&b, "[service.web]\ncommand = [\"/bin/sh\", \"-c\", %q]\nenv = { TESTCHILD_MODE = \"accept-notify\" }\n[service.web.socket]\n", script)
	for i := range manySockets {
		fmt.Fprintf(&b, "s%d = \"tcp4://127.0.0.1:0\"\n", i)
	}
	d.Configure(b.String())
	d.Start()
	d.WaitReady()
	first := checkManySockets(t, d, seen, 1)
	d.MustReload()
	if diff := cmp.Diff(first, checkManySockets(t, d, seen, 2)); diff != "" {
		t.Errorf("the second generation has other sockets (-first +second):\n%s", diff)
	}
	d.Stop()
}

// checkManySockets compares what a generation saw of itself with what handoverd says, and returns the inodes.
func checkManySockets(t *testing.T, d *Daemon, seen string, generation int) []uint64 {
	t.Helper()
	read := func(what string) string {
		text, err := os.ReadFile(fmt.Sprintf("%s.%d.%s", seen, generation, what))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	held := map[string]string{} // by number
	for line := range strings.Lines(read("fds")) {
		// ls ends each line with NUMBER -> TARGET.
		if f := strings.Fields(line); len(f) > 3 && f[len(f)-2] == "->" {
			held[f[len(f)-3]] = f[len(f)-1]
		}
	}
	sockets := d.Service("web").Sockets
	if len(sockets) != manySockets {
		t.Fatalf("handoverd has %d sockets, want %d", len(sockets), manySockets)
	}
	var names []string
	var inodes []uint64
	for i, s := range sockets {
		names, inodes = append(names, s.Name), append(inodes, s.Inode)
		if got, want := held[fmt.Sprint(3+i)], fmt.Sprintf("socket:[%d]", s.Inode); got != want {
			t.Errorf("generation %d, socket %s: descriptor %d is %q, want %q", generation, s.Name, 3+i, got, want)
		}
		if !s.Listening || !s.Nonblocking {
			t.Errorf("generation %d, socket %s: %+v", generation, s.Name, s)
		}
	}
	if got, want := read("names"), strings.Join(names, ":"); got != want {
		t.Errorf("generation %d: LISTEN_FDNAMES is %q, want %q", generation, got, want)
	}
	// Sockets + 1,024, or what it was before if that is more.
	var limit int
	if _, err := fmt.Sscan(read("limit"), &limit); err != nil || limit < manySockets+1024 {
		t.Errorf("generation %d: RLIMIT_NOFILE is %q, want at least %d", generation, read("limit"), manySockets+1024)
	}
	if g := d.Service("web").Generations; len(g) == 0 || g[len(g)-1].Phase != supervisor.PhaseServing || g[len(g)-1].Generation != generation {
		t.Errorf("generation %d does not serve: %+v", generation, g)
	}
	return inodes
}
