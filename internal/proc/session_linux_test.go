package proc

import (
	"io"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

// TestMembersOfTheSameSession: of a session whose leader is gone those count as well that were started after the bound, if
// one is there that was started before it: its number cannot have been given to another session meanwhile.
func TestMembersOfTheSameSession(t *testing.T) {
	// The leader starts one, says so, and at the next line another one; neither has a token.
	leader := exec.Command("/bin/sh", "-c", `sleep 1000 & echo $!; read _; sleep 1000 & echo $!; read _`)
	leader.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := leader.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := leader.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := leader.Start(); err != nil {
		t.Fatal(err)
	}
	session := leader.Process.Pid
	defer func() { _, _ = KillMembers(session, "", syscall.SIGKILL) }()
	first := readNumber(t, out)
	started, err := StartTime(first)
	if err != nil {
		t.Fatal(err)
	}
	for { // the next one begins in a later tick
		if Ticks(Now()) > started {
			break
		}
	}
	if _, err := in.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	second := readNumber(t, out)
	_ = leader.Process.Kill()
	_ = leader.Wait()
	find := func(before uint64) (pids []int) {
		t.Helper()
		members, err := MembersBefore(session, "", before)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range members {
			pids = append(pids, m.PID)
		}
		slices.Sort(pids)
		return pids
	}
	want := []int{first, second}
	slices.Sort(want)
	if got := find(started); !slices.Equal(got, want) {
		t.Errorf("bound at the first: %v, want %v", got, want)
	}
	if got := find(started - 1); len(got) > 0 {
		t.Errorf("bound before both: %v: it may be another session by now", got)
	}
}

// readNumber reads one line of digits.
func readNumber(t *testing.T, r io.Reader) int {
	t.Helper()
	var text []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, b); err != nil {
			t.Fatal(err)
		}
		if b[0] == '\n' {
			break
		}
		text = append(text, b[0])
	}
	n, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
