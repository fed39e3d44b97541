//go:build linux

package handover_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestIdle: a handoverd that serves and has nothing to do does nothing, and is small.
func TestIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("it watches a real process for ten seconds; it runs without -short")
	}
	const mostCalls, mostRSS = 3, 20 << 10 // system calls in ten seconds, KiB
	d := StartDaemon(t, fmt.Sprintf(`
admin = "127.0.0.1:%d"
health = "127.0.0.1:%d"

[service.web]
command = [%q]
[service.web.socket]
http = "tcp4://127.0.0.1:%d"

[service.raw]
command = [%q]
env = { TESTCHILD_MODE = "accept-raw" }
[service.raw.socket]
http = "tcp4://127.0.0.1:%d"
`, FreePort(t), FreePort(t), Program(t, goserverProgram), FreePort(t), Program(t, testchildProgram), FreePort(t)))
	// It has been used before it idles: a reload, and clients that have gone.
	d.MustReload()

	calls := d.trace(t)
	if len(calls) > mostCalls {
		t.Errorf("%d system calls in 10 s of idleness, at most %d are allowed:\n%s", len(calls), mostCalls, strings.Join(calls, "\n"))
	}
	for _, c := range calls {
		if !strings.HasPrefix(c, "futex(") && !strings.HasPrefix(c, "epoll_pwait(") {
			t.Errorf("an idle handoverd calls %s", c)
		}
	}
	rss := d.statusKiB("VmRSS")
	t.Logf("idle: %d system calls in 10 s, RSS %d KiB", len(calls), rss)
	if rss > mostRSS {
		t.Errorf("RSS is %d KiB, at most %d are allowed", rss, mostRSS)
	}
}

// tracedLine is what strace -f -r prints of a call or of its end: the thread, the seconds since the line before, the call.
var tracedLine = regexp.MustCompile(`^(?:\[pid +)?(\d+)\]? +([\d.]+) +(.*)$`)

// trace lists the system calls that handoverd begins within ten seconds, eight seconds after the trace began: until then
// the runtime comes to rest from what was before. It wakes once more for a timer that was stopped but had been the next
// one, as the limit of 5 s for a request's header is; and its scavenger returns memory bit by bit. What each thread sat in when the trace began is left out: the kernel
// interrupts it to attach (ptrace(2)), and strace shows it as begun again.
func (d *Daemon) trace(t *testing.T) []string {
	t.Helper()
	d.settle()
	out := d.Dir + "/strace"
	cmd := exec.Command("timeout", "--signal=INT", "18", "strace", "-f", "-r", "-o", out, "-p", strconv.Itoa(d.PID))
	// timeout(1) exits with 124 and ends the trace by SIGINT: strace lets the process go.
	text, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 124 {
		t.Fatalf("strace: exit status %d, %v: %s", code, err, text)
	}
	trace, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var calls []string
	var elapsed float64      // since the first line
	sat := map[string]bool{} // threads of which the call they sat in was seen
	for line := range strings.Lines(string(trace)) {
		m := tracedLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			t.Fatalf("strace: strange line %q", line)
		}
		since, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatalf("strace: strange line %q", line)
		}
		elapsed += since
		switch {
		case strings.HasPrefix(m[3], "<..."), strings.Contains(m[3], " detached"): // the end of a call
		case !sat[m[1]]:
			sat[m[1]] = true
		case elapsed >= 8:
			calls = append(calls, m[3])
		}
	}
	if len(sat) == 0 {
		t.Fatalf("strace saw no thread: %s", text)
	}
	return calls
}

// settle waits until every service has one generation and nothing is under way.
func (d *Daemon) settle() {
	d.t.Helper()
	d.WaitStatus("one generation of each service and no reload under way", settledStatus)
}

// statusKiB is a field of /proc/PID/status in KiB (proc_pid_status(5)).
func (d *Daemon) statusKiB(field string) int {
	d.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.PID))
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		if f := bytes.Fields(line); len(f) > 1 && string(f[0]) == field+":" {
			n, err := strconv.Atoi(string(f[1]))
			if err != nil {
				d.t.Fatal(err)
			}
			return n
		}
	}
	d.t.Fatalf("no %s in /proc/%d/status", field, d.PID)
	return 0
}
