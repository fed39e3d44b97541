//go:build linux

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
)

// insideNamespace marks the process that TestDrillPortClosed runs itself in, in a network namespace of its own: the
// kernel's count of resets is the test's alone there.
const insideNamespace = "HANDOVERD_TEST_NAMESPACE"

// TestDrillPortClosed: the port is closed for 50 ms at each trigger. The refused connections are those that the kernel
// answered with a reset, and so are the ones that waited in the queue of the closed socket.
func TestDrillPortClosed(t *testing.T) {
	if testing.Short() {
		t.Skip("runs itself in a network namespace; it runs without -short")
	}
	if os.Getenv(insideNamespace) == "" {
		runInNamespace(t)
		return
	}
	loopbackUp(t)
	s := startBroken(t, func(w io.Writer) { _, _ = io.WriteString(w, goodAnswer) })
	before := resetsSent(t)
	o := &drillFlags{rate: 1000, duration: 1200 * time.Millisecond, every: 300 * time.Millisecond, modes: []string{"fresh"}}
	r, reports := drillAgainst(t, s.addr, o, &fakeTrigger{do: func(ctx context.Context) error {
		s.close()
		defer s.open()
		return drill.Pause(ctx, 50*time.Millisecond)
	}})
	resets := resetsSent(t) - before
	f := r.Modes[0].Failures
	refused, reset := f[drill.KindRefused], f[drill.KindReset]+f[drill.KindResetConnect]
	t.Logf("the kernel sent %d resets; refused %d, reset %d of %d", resets, refused, reset, r.Sent)
	if refused+reset != resets || r.Failed != resets || refused == 0 {
		t.Errorf("the kernel sent %d resets, the clients saw %v: %s", resets, f, reports[0].String())
	}
	if r.Reloads == 0 || r.Modes[0].InsideFailed != r.Failed || len(r.Modes[0].Faults) != 0 {
		t.Errorf("want all losses in the windows of reloads: %+v", r)
	}
}

// runInNamespace runs this test again where nobody else has connections.
func runInNamespace(t *testing.T) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), insideNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: unix.SIGKILL}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("in a network namespace: %v", err)
	}
	t.Logf("%s", out)
}

func loopbackUp(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	lo.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		t.Fatal(err)
	}
}

// resetsSent is OutRsts of this network namespace (proc_pid_net(5), snmp).
func resetsSent(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/snmp")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case fields[0] != "Tcp:":
		case names == nil:
			names = fields
		default:
			for i, name := range names {
				if name == "OutRsts" {
					n, err := strconv.Atoi(fields[i])
					if err != nil {
						t.Fatal(err)
					}
					return n
				}
			}
		}
	}
	t.Fatal(errors.New("the kernel tells no OutRsts"))
	return 0
}
