package proc

import (
	"encoding/json"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/fdleak"
)

func TestInstant(t *testing.T) {
	a := Now()
	if a <= 0 || Now().Before(a) {
		t.Error("the clock does not go forward")
	}
	b := a.Add(time.Hour)
	if b.Sub(a) != time.Hour || !b.After(a) || b.IsZero() || b.Until() > time.Hour || b.Until() < 59*time.Minute {
		t.Error(a, b)
	}
	text, err := json.Marshal(Instant(12))
	if err != nil || string(text) != "12" {
		t.Error(string(text), err)
	}
	id, err := BootID()
	if err != nil || len(id) != 36 {
		t.Error(id, err)
	}
}

func TestStartTime(t *testing.T) {
	fdleak.Snapshot(t)
	k, _ := startChild(t, "park", kidOptions{})
	own, err := StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := StartTime(k.pid)
	if err != nil || theirs < own {
		t.Error(own, theirs, err)
	}
	boot := time.Duration(theirs) * time.Second / ticksPerSecond
	if age := time.Duration(Now()) - boot; age < -time.Second || age > time.Minute {
		t.Errorf("started %v ago", age)
	}
	if rss, err := RSS(k.pid); err != nil || rss < 1<<16 {
		t.Error(rss, err)
	}
	if _, err := StartTime(1 << 22); !gone(err) {
		t.Error(err)
	}
	if _, err := OpenPidfd(1 << 22); !gone(err) {
		t.Error(err)
	}
}

func TestCPUTime(t *testing.T) {
	fdleak.Snapshot(t)
	k, _ := startChild(t, "spin", kidOptions{})
	k.until(t, "50 ms used", func() bool {
		d, err := CPUTime(k.pid)
		if err != nil {
			t.Fatal(err)
		}
		return d >= 50*time.Millisecond
	})
}

// A grandchild in a session of its own, whose parent has ended, is found by its environment only.
func TestMembersByToken(t *testing.T) {
	if err := SetSubreaper(); err != nil {
		t.Fatal(err)
	}
	defer unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	fdleak.Snapshot(t)
	const token = "5e1f-members-by-token"
	k := start(t, kidOptions{
		path: "/bin/sh",
		args: []string{"sh", "-c", "exec 4<&0; (setsid sh -c 'echo $$; exec cat' <&4 &) ; echo leader; cat"},
		env:  []string{TokenVariable + "=" + token, "PATH=/usr/bin:/bin"},
	})
	find := func(leader int, token string) map[int]Process {
		list, err := Members(leader, token)
		if err != nil {
			t.Fatal(err)
		}
		found := make(map[int]Process)
		for _, m := range list {
			found[m.PID] = m
		}
		return found
	}
	var stray Process
	k.until(t, "the stray is an orphan, beside the leader and its cat", func() bool {
		all := find(k.pid, token)
		for pid, m := range all {
			if m.Session == pid && pid != k.pid && m.PPID == os.Getpid() {
				stray = m
			}
		}
		return stray.PID != 0 && len(all) == 3
	})
	if leader := find(k.pid, "")[k.pid]; leader.Session != k.pid || leader.PPID != os.Getpid() || leader.UID != 0 {
		t.Errorf("%+v", leader)
	}
	family, err := Descendants(k.pid)
	if err != nil || len(family) != 2 { // the leader and its cat
		t.Errorf("%+v, %v", family, err)
	}
	if _, ok := find(k.pid, "")[stray.PID]; ok {
		t.Error("the stray was found without its token")
	}
	if _, ok := find(0, token+"x")[stray.PID]; ok {
		t.Error("the stray was found by another token")
	}
	if _, ok := find(0, token)[stray.PID]; !ok {
		t.Error("the stray was not found by its token alone")
	}
	pidfd, err := OpenPidfd(stray.PID)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	// Signal 0 reaches all three and ends none, so the number is exact. With SIGKILL a member may go with another's
	// death before its own turn.
	if left, err := KillMembers(k.pid, token, 0); err != nil || left != 3 {
		t.Errorf("%d, %v", left, err)
	}
	if left, err := KillMembers(k.pid, token, unix.SIGKILL); err != nil || left == 0 {
		t.Errorf("%d, %v", left, err)
	}
	if !ended(t, pidfd, 20_000) {
		t.Fatal("the stray lives")
	}
	if err := reap(stray.PID); err != nil {
		t.Error(err)
	}
	// Dead or dying is not "left": the pass is repeated until it finds none. The leader's cat is now ours too.
	for deadline := time.Now().Add(20 * time.Second); ; {
		left, err := KillMembers(k.pid, token, unix.SIGKILL)
		if err != nil {
			t.Fatal(err)
		}
		if left == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d are left", left)
		}
	}
	dead, err := deadChildren()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range dead {
		if pid != k.pid {
			if err := reap(pid); err != nil {
				t.Error(err)
			}
		}
	}
}

// The number of a process that has ended may belong to another: its start time tells.
func TestSignalExactly(t *testing.T) {
	fdleak.Snapshot(t)
	k, _ := startChild(t, "park", kidOptions{})
	started, err := StartTime(k.pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := signalExactly(Process{PID: k.pid, StartTime: started + 1}, unix.SIGKILL); !gone(err) {
		t.Errorf("a stranger: %v", err)
	}
	if ended(t, k.pidfd, 0) {
		t.Fatal("the stranger was hit")
	}
	if err := signalExactly(Process{PID: k.pid, StartTime: started}, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if !ended(t, k.pidfd, 20_000) {
		t.Fatal("it lives")
	}
	if err := signalExactly(Process{PID: k.pid, StartTime: started}, unix.SIGKILL); !gone(err) {
		t.Errorf("a zombie: %v", err)
	}
}

func TestListening(t *testing.T) {
	for _, c := range []struct{ network, address, kind string }{
		{"tcp4", "127.0.0.1:0", "tcp4"},
		{"tcp6", "[::1]:0", "tcp6"},
		{"tcp", "[::]:0", "tcp"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			fdleak.Snapshot(t)
			fd, inode, port := listen(t, 0)
			k, first := startChild(t, "listen", kidOptions{
				files: []int{fd}, env: []string{"NETWORK=" + c.network, "ADDRESS=" + c.address},
			})
			own := netip.MustParseAddrPort(first)
			list, err := Listening([]int{k.pid, 1 << 22})
			if err != nil {
				t.Fatal(err)
			}
			got := make(map[Listener]bool)
			for _, l := range list {
				if l.Inode != inode {
					l.Inode = 0 // chosen by the kernel
				}
				got[l] = true
			}
			want := map[Listener]bool{
				{PID: k.pid, Addr: own, Kind: c.kind}: true,
				{PID: k.pid, Inode: inode, Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port)), Kind: "tcp4"}: true,
			}
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestThreadTime: work counts, waiting does not.
func TestThreadTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const work = 20 * time.Millisecond
	began, at := ThreadTime(), time.Now()
	for ThreadTime()-began < work {
	}
	if took := time.Since(at); took < work {
		t.Errorf("%v of work in %v", work, took)
	}
	began = ThreadTime()
	<-time.After(100 * time.Millisecond)
	if got := ThreadTime() - began; got > 50*time.Millisecond {
		t.Errorf("a wait of 100 ms counts as %v of work", got)
	}
}
