//go:build linux

package handover_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// HAProxy, which says nothing of itself here, is asked: its monitor-uri on a socket of each generation alone. It bakes,
// and the probe goes on. `haproxy -c` is run with the sockets, those of one generation among them.
func TestReadyHAProxyAsked(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	h := newHAProxy(t,
		"[service.web.socket]\n", "[service.web.ready]\nwhen = \"http\"\nhttp = { socket = \"health\", path = \"/health\" }\nbake = \"1500ms\"\n[service.web.socket]\n",
		"[service.web.retire]\n", fmt.Sprintf("health = { listen = \"unix:@handoverd-test-%d.${HANDOVER_GENERATION}\", per_generation = true }\n[service.web.retire]\n", FreePort(t)))
	h.config += "\nfrontend health\n    bind fd@${HANDOVER_FD_HEALTH}\n    monitor-uri /health\n"
	h.SetGeneration(1)
	h.Start()
	h.WaitReady()
	run := h.Load(limited(t), drill.Load{Mode: drill.ModeFresh, Rate: 200, Timeout: 30 * time.Second})
	for n := 2; n <= 4; n++ {
		if err := h.reload(limited(t), run, n, 50, "web"); err != nil {
			t.Fatal(err)
		}
		for _, g := range h.Service("web").Generations {
			if g.Generation == n && (g.ReadyBy != "http" || len(g.Sockets) != 1 || !strings.HasSuffix(g.Sockets[0].Address, fmt.Sprint(".", n))) {
				t.Errorf("generation %d: %+v", n, g)
			}
		}
	}
	report := run.Stop()
	t.Logf("%d requests, %d failures, by generation %v", report.Sent, report.Failed(), report.Generations)
	checkSent(t, &report)
	if report.Failed() > 0 {
		t.Errorf("%s", &report)
	}
	h.Stop()
}
