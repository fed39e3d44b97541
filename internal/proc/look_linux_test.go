package proc

import (
	"encoding/json"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/fdleak"
)

func look(t *testing.T, l *Looker, pid int, inode uint64) Sight {
	t.Helper()
	s, err := l.Look([]int{pid}, []uint64{inode})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLookSeesEachWayToWait(t *testing.T) {
	for _, program := range []string{"epoll", "poll", "ppoll", "select", "pselect", "accept", "accept4"} {
		t.Run(program, func(t *testing.T) {
			fdleak.Snapshot(t)
			fd, inode, _ := listen(t, 0)
			_, other, _ := listen(t, 0)
			k, _ := startChild(t, program, kidOptions{files: []int{fd}})
			var l Looker
			var s Sight
			k.until(t, "seen waiting", func() bool { s = look(t, &l, k.pid, inode); return s.Waiting(inode) })
			want := Sight{Polled: map[uint64]int{inode: 1}, Held: map[uint64]bool{inode: true}}
			if strings.HasPrefix(program, "accept") {
				want.Polled, want.Accepting = nil, want.Polled
			}
			if diff := cmp.Diff(marshal(t, want), marshal(t, s)); diff != "" {
				t.Error(diff)
			}
			if s := look(t, &l, k.pid, other); len(s.Polled)+len(s.Accepting)+len(s.Held)+len(s.Blind) > 0 {
				t.Errorf("a socket that it was not given: %+v", s)
			}
		})
	}
}

func marshal(t *testing.T, s Sight) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// An inherited descriptor proves nothing, nor does one that is only watched for its end.
func TestLookHolding(t *testing.T) {
	for _, program := range []string{"park", "hangup-only", "poll-out"} {
		t.Run(program, func(t *testing.T) {
			fdleak.Snapshot(t)
			fd, inode, _ := listen(t, 0)
			k, _ := startChild(t, program, kidOptions{files: []int{fd}})
			var l Looker
			var s Sight
			k.until(t, "asleep", func() bool { s = look(t, &l, k.pid, inode); return len(s.Busy) == 0 })
			if s.Waiting(inode) || !s.Held[inode] || len(s.Stale)+len(s.Blind) > 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A process whose main thread has ended is in state Z, and alive.
func TestLookHeadless(t *testing.T) {
	fdleak.Snapshot(t)
	fd, inode, _ := listen(t, 0)
	const token = "5e1f-headless"
	k, _ := startChild(t, "headless", kidOptions{files: []int{fd}, env: []string{TokenVariable + "=" + token}})
	var l Looker
	k.until(t, "accepting in state Z", func() bool {
		s, err := readStat(k.pid)
		return err == nil && s.state == 'Z' && look(t, &l, k.pid, inode).Accepting[inode] == 1
	})
	if list, err := Members(0, token); err != nil || len(list) != 1 || list[0].PID != k.pid {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := Listening([]int{k.pid}); err != nil || len(list) != 1 || list[0].Inode != inode {
		t.Errorf("%+v, %v", list, err)
	}
	if left, err := KillMembers(0, token, unix.SIGKILL); left != 1 || err != nil {
		t.Error(left, err)
	}
	if !ended(t, k.pidfd, 20_000) {
		t.Fatal("it lives")
	}
}

func TestLookBusy(t *testing.T) {
	fdleak.Snapshot(t)
	fd, inode, _ := listen(t, 0)
	k, _ := startChild(t, "spin", kidOptions{files: []int{fd}})
	var l Looker
	k.until(t, "seen busy", func() bool { return slices.Contains(look(t, &l, k.pid, inode).Busy, k.pid) })
}

func TestLookUring(t *testing.T) {
	fdleak.Snapshot(t)
	_, inode, _ := listen(t, 0)
	k, first := startChild(t, "uring", kidOptions{})
	var l Looker
	if blind := look(t, &l, k.pid, inode).Blind; slices.Contains(blind, k.pid) != (first == "ready") {
		t.Errorf("io_uring is %q: blind %v", first, blind)
	}
}

func TestLookVanished(t *testing.T) {
	fdleak.Snapshot(t)
	k, _ := startChild(t, "park", kidOptions{})
	_, inode, _ := listen(t, 0)
	k.in.Close()
	// The end of the child: a zombie, which its cleanup reaps.
	if err := unix.Waitid(unix.P_PID, k.pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	var l Looker
	s, err := l.Look([]int{k.pid, 1 << 22}, []uint64{inode})
	if err != nil || len(s.Blind) > 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// A process that has not run since is not looked at again; one that has is.
func TestLookerRemembers(t *testing.T) {
	fdleak.Snapshot(t)
	fd, inode, _ := listen(t, 0)
	k, _ := startChild(t, "accept", kidOptions{files: []int{fd}})
	var l Looker
	var first *view
	k.until(t, "twice the same", func() bool {
		look(t, &l, k.pid, inode)
		before := l.memory[k.pid].seen
		s := look(t, &l, k.pid, inode)
		first = l.memory[k.pid].seen
		return first == before && s.Accepting[inode] == 1
	})
	if err := SignalPidfd(k.pidfd, unix.SIGURG); err != nil { // its runtime handles it and goes on
		t.Fatal(err)
	}
	k.until(t, "looked at again", func() bool {
		look(t, &l, k.pid, inode)
		return l.memory[k.pid].seen != first
	})
	k.until(t, "accepting again", func() bool { return look(t, &l, k.pid, inode).Accepting[inode] == 1 })
}

func TestLookSkipsManyDescriptors(t *testing.T) {
	fdleak.Snapshot(t)
	fd, inode, _ := listen(t, 0)
	files := slices.Repeat([]int{fd}, deepLimit)
	k, _ := startChild(t, "epoll", kidOptions{files: files})
	var l Looker
	k.until(t, "skipped", func() bool {
		s := look(t, &l, k.pid, inode)
		return slices.Contains(s.Skipped, k.pid) && !s.Waiting(inode)
	})
	l.Deep = true
	k.until(t, "seen", func() bool { return look(t, &l, k.pid, inode).Polled[inode] == 1 })
}

// As root, a child of another user is seen by CAP_SYS_PTRACE. Without, it is not, but by a helper of that user.
func TestLookAtAnotherUser(t *testing.T) {
	for _, program := range []string{"epoll", "poll", "accept"} {
		t.Run(program, func(t *testing.T) {
			fdleak.Snapshot(t)
			fd, inode, _ := listen(t, 0)
			k, _ := startChild(t, program, kidOptions{files: []int{fd}, sys: syscall.SysProcAttr{
				Credential: &syscall.Credential{Uid: nobody, Gid: nobody},
			}})
			var l Looker
			k.until(t, "seen waiting", func() bool { return look(t, &l, k.pid, inode).Waiting(inode) })
			if why := Blindness(nobody); why != "" {
				t.Errorf("blindness with the capability: %s", why)
			}

			var got unprivileged
			if err := json.Unmarshal([]byte(withoutPtrace(t, k.pid, inode)), &got); err != nil {
				t.Fatal(err)
			}
			if len(got.Direct.Blind) != 1 || got.Direct.Waiting(inode) {
				t.Errorf("without the capability: %+v", got.Direct)
			}
			if !strings.Contains(got.Blindness, "CAP_SYS_PTRACE") {
				t.Errorf("blindness: %q", got.Blindness)
			}
			if len(got.Helped.Blind) > 0 || !got.Helped.Waiting(inode) {
				t.Errorf("with a helper: %+v", got.Helped)
			}
		})
	}
}

const nobody = 65534

type unprivileged struct {
	Direct, Helped Sight
	Blindness      string
}

// childUnprivileged looks at a process, then lets a helper look.
func childUnprivileged() error {
	pid, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	inode, err := strconv.ParseUint(os.Args[2], 10, 64)
	if err != nil {
		return err
	}
	var l Looker
	out := unprivileged{Blindness: Blindness(nobody)}
	if out.Direct, err = l.Look([]int{pid}, []uint64{inode}); err != nil {
		return err
	}
	helper := Helper{
		Args: []string{"helper"}, Env: []string{childVariable + "=look-helper"}, UID: nobody, GID: nobody,
		Timeout: 20 * time.Second,
	}
	helped, err := helper.Look([]int{pid}, []uint64{inode})
	if err != nil {
		return err
	}
	out.Helped = out.Direct
	out.Helped.Merge(helped, []int{pid})
	return json.NewEncoder(os.Stdout).Encode(out)
}

// withoutPtrace runs childUnprivileged as root without CAP_SYS_PTRACE and returns its answer. A capability that is
// out of the bounding set of the thread that forks is not gained again at execve (capabilities(7)).
func withoutPtrace(t *testing.T, pid int, inode uint64) string {
	t.Helper()
	answer := make(chan string, 1)
	go func() { // received from below
		defer close(answer)
		// Never unlocked: the thread ends with the goroutine, and nobody else gets it without the capability.
		runtime.LockOSThread()
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_SYS_PTRACE, 0, 0, 0); err != nil {
			t.Error(err)
			return
		}
		_, line := startChild(t, "unprivileged", kidOptions{
			args: []string{"child", strconv.Itoa(pid), strconv.FormatUint(inode, 10)},
		})
		answer <- line
	}()
	return <-answer
}

func TestHelperFails(t *testing.T) {
	fdleak.Snapshot(t)
	for name, h := range map[string]Helper{
		"ends":    {Args: []string{"helper"}, Env: []string{childVariable + "=no such program"}},
		"silent":  {Path: "/bin/sh", Args: []string{"sh", "-c", "read x; read y; exec cat /dev/null"}},
		"missing": {Path: "/nonexistent", Args: []string{"x"}},
		"hangs":   {Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Timeout: 1},
	} {
		if s, err := h.Look([]int{1}, []uint64{1}); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestHelperUnderReaper(t *testing.T) {
	r := running(t)
	fd, inode, _ := listen(t, 0)
	_ = fd
	h := Helper{Args: []string{"helper"}, Env: []string{childVariable + "=look-helper"}, Reaper: r, Timeout: 20 * time.Second}
	s, err := h.Look([]int{os.Getpid()}, []uint64{inode})
	if err != nil || !s.Held[inode] {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestHidepidOption(t *testing.T) {
	const before = "22 28 0:20 / /sys rw - sysfs sysfs rw\n23 28 0:21 / /proc rw,nosuid - proc proc rw"
	for options, want := range map[string]string{
		"": "", ",hidepid=0": "", ",hidepid=2": "2", ",gid=5,hidepid=invisible": "invisible", ",hidepid=off": "",
	} {
		if got := hidepidOption([]byte(before + options + "\n24 28 0:22 / /dev rw - tmpfs x rw\n")); got != want {
			t.Errorf("%q: %q", options, got)
		}
	}
}
