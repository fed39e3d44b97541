package drill_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/drill"
)

// TestGenerationHeader: the generation of a proxy is the one that counts where it is asked for, and an answer that does not
// carry it is wrong, since then nothing tells which configuration of the proxy was in force.
func TestGenerationHeader(t *testing.T) {
	const header = "X-Proxy-Generation"
	tests := []struct {
		name, load, field string // field is what the server adds
		generations       map[int]int
		failures          map[drill.Kind]int
	}{
		{"proxy", header, header + ": 7\r\n", map[int]int{7: 10}, map[drill.Kind]int{}},
		{"another case", "x-proxy-generation", header + ":8\r\n", map[int]int{8: 10}, map[drill.Kind]int{}},
		{"not asked for", "", header + ": 7\r\n", map[int]int{1: 10}, map[drill.Kind]int{}},
		{"missing", header, "", map[int]int{}, map[drill.Kind]int{drill.KindWrongBody: 10}},
		{"no number", header, header + ": new\r\n", map[int]int{}, map[drill.Kind]int{drill.KindWrongBody: 10}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr := breakable(t, func(p *peer) {
				for req := p.next(); req != nil; req = p.next() {
					n := req.URL.Query().Get("n")
					p.write(reply(200, 1, n, body(1, n), tt.field))
				}
			})
			rep := run(t, drill.Load{
				Address: addr, Mode: drill.ModeKeepAlive, Clients: 2, Requests: 10, GenerationHeader: tt.load,
			})
			if d := cmp.Diff(tt.generations, rep.Generations); d != "" {
				t.Errorf("generations (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.failures, rep.Failures); d != "" {
				t.Errorf("failures (-want +got):\n%s\n%s", d, rep.String())
			}
		})
	}
	for _, mode := range []drill.Mode{drill.ModeTCP, drill.ModeUDP} {
		l := drill.Load{Network: "tcp", Address: "127.0.0.1:9", Mode: mode, GenerationHeader: header}
		if mode == drill.ModeUDP {
			l.Network, l.Rate = "udp", 1
		}
		r, err := drill.Start(t.Context(), l)
		if want := fmt.Sprintf("load: mode %s has no header %s", mode, header); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", mode, err, want)
		}
		if r != nil {
			r.Stop()
		}
	}
}
