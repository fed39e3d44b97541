//go:build linux

package handover_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
)

// TestTableflip drives a server that upgrades itself by tableflip, without handoverd, through the load in which leaving
// costs most: keep-alive POSTs at 10 ms round trip. Left by package drain it loses nothing, as under handoverd; left by
// http.Server.Shutdown, as tableflip's example does, it is seen to lose. So the loss is of the leave, and not of who
// passes the socket on.
func TestTableflip(t *testing.T) {
	if testing.Short() {
		t.Skip("load needs the machine to itself; it runs without -short")
	}
	upgrades := 3
	if os.Getenv("HANDOVERD_LOAD") == "full" {
		upgrades = 50
	}
	for _, leave := range []string{"drain", "shutdown"} {
		t.Run(leave, func(t *testing.T) {
			r := driveTableflip(t, leave, upgrades)
			t.Logf("%d upgrades, %d requests, failures %v", upgrades, r.Sent, r.Failures)
			switch {
			case leave == "drain" && r.Failed() > 0:
				t.Errorf("lost: %s", &r)
			case leave == "shutdown" && r.Failed() == 0:
				t.Errorf("http.Server.Shutdown lost nothing in %d requests: the test would not see a loss", r.Sent)
			}
			for g := 1; g <= upgrades+1; g++ {
				if r.Generations[g] == 0 {
					t.Errorf("no client saw generation %d", g)
				}
			}
		})
	}
}

// driveTableflip starts the server, upgrades it under load, and ends the process that is left.
func driveTableflip(t *testing.T, leave string, upgrades int) drill.Report {
	t.Helper()
	ctx := limited(t)
	dir := t.TempDir()
	pidFile := filepath.Join(dir, "pid")
	addr := fmt.Sprintf("127.0.0.1:%d", FreePort(t))
	var log bytes.Buffer
	cmd := exec.Command(Program(t, "./internal/tableflipserver"), "-addr", addr, "-pid-file", pidFile, "-leave", leave)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = time.Second // the later processes have the same standard error
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reaped := make(chan struct{})
	go func() { // waited for below
		defer close(reaped)
		_ = cmd.Wait()
	}()
	serving := func() int {
		b, _ := os.ReadFile(pidFile) // replaced by rename: empty only before the first
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		return pid
	}
	t.Cleanup(func() {
		if pid := serving(); pid > 0 {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		<-reaped
	})
	eventually(t, "the first process is ready", func() bool { return serving() > 0 })
	relay, err := drill.NewRelay(addr, 5*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = relay.Close() }()
	run, err := drill.Start(ctx, drill.Load{Network: "tcp", Address: relay.Addr(), Mode: drill.ModePost, Clients: 64})
	if err != nil {
		t.Fatal(err)
	}
	if err := run.WaitGeneration(ctx, 1); err != nil {
		t.Fatal(err)
	}
	for g := 2; g <= upgrades+1; g++ {
		old := serving()
		w := run.Mark(fmt.Sprint(g))
		if err := unix.Kill(old, unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if err := run.WaitGeneration(ctx, g); err != nil {
			t.Fatalf("%v\n%s", err, &log)
		}
		if err := w.Wait(ctx, 500); err != nil {
			t.Fatal(err)
		}
		w.End()
		// The next upgrade is refused as long as the parent lives.
		eventually(t, "the old process has ended", func() bool { return unix.Kill(old, 0) != nil || zombie(old) })
	}
	return run.Stop()
}

// zombie reports whether the process has ended and not been reaped.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, ok := bytes.Cut(b, []byte(") "))
	return err == nil && ok && rest[0] == 'Z'
}
