//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// TestDrillHAProxy: the client's HTTP/2 against one that is not Go's. HAProxy is reloaded by SIGUSR2 meanwhile and sends its
// GOAWAYs; what it closes with one is no loss, so that all that could fail is misunderstood frames.
func TestDrillHAProxy(t *testing.T) {
	if testing.Short() {
		t.Skip("starts HAProxy; it runs without -short")
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	config := fmt.Sprintf(`defaults
  mode http
  timeout client 10s
  timeout server 10s
  timeout connect 2s
frontend f
  bind %s proto h2
  http-request return status 200 content-type text/plain string "page"
`, addr)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("haproxy", "-W", "-db", "-f", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its group: the master and its workers
		_ = cmd.Wait()                                      // killed
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		if _, err = drill.Probe(drill.Load{Network: "tcp", Address: addr, Mode: drill.ModeH2C}); err == nil {
			break
		}
		if drill.Pause(ctx, 20*time.Millisecond) != nil {
			t.Fatalf("HAProxy does not answer: %v", err)
		}
	}
	reload := &fakeTrigger{do: func(ctx context.Context) error {
		if err := cmd.Process.Signal(syscall.SIGUSR2); err != nil {
			return err
		}
		return drill.Pause(ctx, 300*time.Millisecond)
	}}
	o := &drillFlags{rate: 500, duration: 2500 * time.Millisecond, every: 500 * time.Millisecond, modes: []string{"h2c"}, expectBody: "page"}
	r, reports := drillAgainst(t, addr, o, reload)
	if r.Failed != 0 || r.OK < 1000 || r.Reloads < 3 || len(r.Modes[0].Faults) != 0 {
		t.Errorf("%d reloads: %s", r.Reloads, reports[0].String())
	}
	t.Logf("%d reloads, %d streams sent again", r.Reloads, r.Modes[0].RefusedStreams)
}
