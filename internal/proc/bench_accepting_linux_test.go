package proc

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkAccepting is one turn of what `ready.when = "accepting"` does, find the processes of a generation and see
// whether one of them accepts, by the number of those processes and by the number of descriptors of one. "first" is
// without anything remembered, as after a spawn; "later" is a turn in which nothing has changed.
func BenchmarkAccepting(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("descendants=%d", n), func(b *testing.B) { benchmarkAccepting(b, n, 1) })
	}
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("fds=%d", n), func(b *testing.B) { benchmarkAccepting(b, 1, n) })
	}
}

// family starts processes that hold a listener files times each; the first of them, the leader, accepts.
func family(b *testing.B, processes, files int) (leader int, inode uint64) {
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	// The shell is the leader: it starts the others and then becomes the program that accepts.
	script := strings.Repeat("sleep 1000 </dev/null >/dev/null &\n", processes-1) + `exec "$0" child`
	fd, inode, _ := listen(b, 0)
	k, _ := startChild(b, "accept", kidOptions{
		path: "/bin/sh", args: []string{"sh", "-c", script, exe}, files: slices.Repeat([]int{fd}, files),
	})
	b.Cleanup(func() { // before the one that reaps the leader; what it leaves behind is not our child
		for left := 1; left > 0; {
			if left, err = KillMembers(k.pid, "", unix.SIGKILL); err != nil {
				b.Error(err)
				return
			}
		}
	})
	return k.pid, inode
}

func benchmarkAccepting(b *testing.B, processes, files int) {
	leader, inode := family(b, processes, files)
	turn := func(l *Looker) {
		ps, err := Descendants(leader)
		if err != nil || len(ps) != processes {
			b.Fatalf("%d processes, want %d: %v", len(ps), processes, err)
		}
		pids := make([]int, 0, len(ps))
		for _, p := range ps {
			pids = append(pids, p.PID)
		}
		sight, err := l.Look(pids, []uint64{inode})
		if err != nil || len(sight.Accepting) != 1 {
			b.Fatalf("%d sockets accepted on, want 1: %v", len(sight.Accepting), err)
		}
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			turn(&Looker{})
		}
	})
	b.Run("later", func(b *testing.B) {
		var l Looker
		turn(&l)
		for b.Loop() {
			turn(&l)
		}
	})
}
