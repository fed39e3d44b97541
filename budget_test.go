//go:build linux

package handover_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// What handoverd adds to the start of a program, and to a reload. The same static server is started bare, with fork and
// exec and the listening socket at descriptor 3, and by handoverd, in turns, so that all meet the same machine; medians
// are compared, never single times.

// acceptingHold is how long a program that says nothing has to accept before it counts as ready (DESIGN, Ready).
const acceptingHold = 250 * time.Millisecond

// allowance is what handoverd may add to each of the two ways.
const allowance = 10 * time.Millisecond

// budget holds one time per round.
type budget struct {
	bare          []time.Duration   // fork and exec to the first answer
	restart       []time.Duration   // crash, spawn to the first answer
	reload        [][]time.Duration // HUP to commit, for each of budgetRows
	spawnToCommit [][]time.Duration
}

// budgetRows are the ways to become ready, and what each waits for on purpose.
var budgetRows = []struct {
	name, mode, when string
	hold             time.Duration
}{
	{"notify", "accept-notify", "notify", 0},
	{"native", "ok", "native", 0},
	{"accepting", "accept-raw", "accepting", acceptingHold},
}

func newBudget() *budget {
	return &budget{reload: make([][]time.Duration, len(budgetRows)), spawnToCommit: make([][]time.Duration, len(budgetRows))}
}

func TestBudget(t *testing.T) {
	if testing.Short() {
		t.Skip("times need the machine to themselves; it runs without -short")
	}
	rounds, slack := 10, 20*allowance // a machine that is busy with something else must not fail the short form
	if full() {
		rounds, slack = 100, 0
	}
	bench, b := newBudgetBench(t), newBudget()
	for range rounds {
		bench.round(b)
	}
	t.Log(b)
	bare := median(b.bare)
	if got, most := median(b.restart), bare+allowance+slack; got > most {
		t.Errorf("spawn to the first answer takes %v, at most %v are allowed", got, most)
	}
	for i, row := range budgetRows {
		if got, most := median(b.reload[i]), bare+allowance+row.hold+allowance+slack; got > most {
			t.Errorf("%s: HUP to commit takes %v, at most %v are allowed", row.name, got, most)
		}
	}
}

// BenchmarkBudget reports the medians in milliseconds.
func BenchmarkBudget(b *testing.B) {
	bench := newBudgetBench(b)
	times := newBudget()
	for b.Loop() {
		bench.round(times)
	}
	ms := func(v []time.Duration) float64 { return median(v).Seconds() * 1000 }
	b.ReportMetric(ms(times.bare), "bare-ms")
	b.ReportMetric(ms(times.restart), "restart-ms")
	for i, row := range budgetRows {
		b.ReportMetric(ms(times.reload[i]), row.name+"-reload-ms")
	}
}

func (b *budget) String() string {
	s := fmt.Sprintf("%d rounds, medians: bare %v  restart %v", len(b.bare), median(b.bare), median(b.restart))
	for i, row := range budgetRows {
		s += fmt.Sprintf("  %s: HUP to commit %v (spawn to commit %v)", row.name, median(b.reload[i]), median(b.spawnToCommit[i]))
	}
	return s
}

func median(v []time.Duration) time.Duration {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2].Round(10 * time.Microsecond)
}

// budgetBench has a daemon for each row, so that one reload does not wait for another.
type budgetBench struct {
	t        testing.TB
	daemons  []*Daemon
	events   []<-chan supervisor.Event
	crash    int // index of the daemon whose program is killed
	address  string
	listener int // descriptor of the socket for the bare start
	bareAddr string
}

func newBudgetBench(t testing.TB) *budgetBench {
	t.Helper()
	b := &budgetBench{t: t, crash: 2}
	for i, row := range budgetRows {
		port := FreePort(t)
		d := StartDaemon(t, fmt.Sprintf(`
[service.web]
command = [%q]
env = { TESTCHILD_MODE = %q }
[service.web.socket]
http = "tcp4://127.0.0.1:%d"
[service.web.ready]
when = %q
settle = "0s"
[service.web.restart]
backoff_min = "1ms"
backoff_max = "1ms"
`, Program(t, testchildProgram), row.mode, port, row.when))
		b.daemons, b.events = append(b.daemons, d), append(b.events, d.Follow())
		if i == b.crash {
			b.address = fmt.Sprintf("127.0.0.1:%d", port)
		}
	}
	b.listener, b.bareAddr = bareListener(t)
	return b
}

// bareListener is a listening socket with nothing of Go around it.
func bareListener(t testing.TB) (fd int, address string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 128); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, fmt.Sprintf("127.0.0.1:%d", name.(*unix.SockaddrInet4).Port)
}

// round measures each way once.
func (b *budgetBench) round(out *budget) {
	b.t.Helper()
	out.bare = append(out.bare, b.startBare())
	out.restart = append(out.restart, b.restart())
	for i := range budgetRows {
		all, spawned := b.reload(i)
		out.reload[i] = append(out.reload[i], all)
		out.spawnToCommit[i] = append(out.spawnToCommit[i], spawned)
	}
}

// waitingRequest connects and sends a request; answered waits for the first byte of its answer.
type waitingRequest struct {
	t    testing.TB
	conn net.Conn
}

func ask(t testing.TB, address string) *waitingRequest {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return &waitingRequest{t, conn}
}

func (w *waitingRequest) answered() time.Time {
	w.t.Helper()
	if _, err := bufio.NewReader(w.conn).ReadByte(); err != nil {
		w.t.Fatal(err)
	}
	at := time.Now()
	if err := w.conn.Close(); err != nil {
		w.t.Fatal(err)
	}
	return at
}

// startBare starts the server with fork and exec alone, ends it, and returns how long its first answer took.
func (b *budgetBench) startBare() time.Duration {
	b.t.Helper()
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = unix.Close(null) }()
	request := ask(b.t, b.bareAddr)
	program := Program(b.t, testchildProgram)
	n := uintptr(null)
	begin := time.Now()
	pid, err := syscall.ForkExec(program, []string{program}, &syscall.ProcAttr{
		Env: []string{"TESTCHILD_MODE=accept-raw"}, Files: []uintptr{n, n, n, uintptr(b.listener)},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	took := request.answered().Sub(begin)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		b.t.Fatal(err)
	}
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil {
		b.t.Fatal(err)
	}
	return took
}

// restart kills the serving program and returns how long it is from the spawn of the next to its first answer, to a
// client that came when nobody served.
func (b *budgetBench) restart() time.Duration {
	b.t.Helper()
	d := b.daemons[b.crash]
	b.drainEvents(b.crash)
	_, pid := d.Serving("web")
	killAndWait(b.t, pid)
	request := ask(b.t, b.address)
	spawn := d.WaitEvent(b.events[b.crash], "the spawn after the crash", func(e supervisor.Event) bool {
		return e.Kind == "transition" && e.To == supervisor.PhaseStarting
	})
	took := request.answered().Sub(spawn.Time)
	b.settled(b.crash)
	return took
}

// killAndWait sends SIGKILL and returns when the process cannot accept any more.
func killAndWait(t testing.TB, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	for { // a pidfd is readable once the process has ended (pidfd_open(2))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != 1 {
			t.Fatalf("process %d has not ended: %d, %v", pid, n, err)
		}
		return
	}
}

// reload sends SIGHUP and returns how long it was to the commit, and from the spawn to it.
func (b *budgetBench) reload(row int) (all, spawned time.Duration) {
	b.t.Helper()
	d := b.daemons[row]
	b.drainEvents(row)
	begin := time.Now()
	d.HUP()
	var spawn time.Time
	commit := d.WaitEvent(b.events[row], "the commit", func(e supervisor.Event) bool {
		if e.Kind == "transition" && e.To == supervisor.PhaseStarting {
			spawn = e.Time
		}
		return e.Kind == "transition" && e.To == supervisor.PhaseServing
	})
	b.settled(row)
	return commit.Time.Sub(begin), commit.Time.Sub(spawn)
}

// settled waits until one generation is left and it serves, and nothing is waited for.
func (b *budgetBench) settled(row int) {
	b.t.Helper()
	b.daemons[row].WaitStatus("one generation, which serves", func(s *supervisor.Status) bool {
		g := s.Services[0].Generations
		return len(g) == 1 && g[0].Phase == supervisor.PhaseServing && len(s.Reloads) == 0
	})
}

func (b *budgetBench) drainEvents(row int) {
	for {
		select {
		case <-b.events[row]:
		default:
			return
		}
	}
}
