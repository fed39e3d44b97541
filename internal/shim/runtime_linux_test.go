package shim

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The runtime of a shim that these tests start has its poller before the shim is dispatched, as it has in a binary with
// a package whose init opens a file (google.golang.org/protobuf/internal/detrand): variables come before init functions.
var _ = func() error {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return err
	}
	return f.Close()
}()

// A socket that took the number of the runtime's own epoll set ended the process: "runtime: netpoll failed".
func TestTheRuntimeKeepsItsDescriptors(t *testing.T) {
	for _, targets := range [][]int{{3}, {3, 4}, {3, 4, 5}, {3, 4, 5, 6, 7, 8}, {8, 5, 4}, {4, 300, 5}} {
		t.Run(fmt.Sprint(targets), func(t *testing.T) {
			fds, links := sockets(t, len(targets))
			s := held()
			s.Targets = targets
			p := startProgram(t, s, fds)
			want := map[int]string{}
			for i, n := range targets {
				want[n] = links[i]
			}
			var got map[int]string
			var poller int
			waitFor(t, func() bool { // it waits for go once everything is in its place
				got, poller = map[int]string{}, 0
				for n, link := range p.filesNow() {
					if _, ok := want[n]; ok {
						got[n] = link
					}
					if link == "anon_inode:[eventpoll]" {
						poller++
					}
				}
				return cmp.Equal(got, want)
			})
			if poller != 1 {
				t.Errorf("the shim has %d epoll sets while it waits, want its runtime's own: %v", poller, p.files())
			}
			if err := p.Result0(p.Go()); err != nil {
				t.Fatal(err)
			}
			if line := p.line(); line != "ready" {
				t.Errorf("output %q", line)
			}
			if err := unix.Kill(p.PID, unix.SIGKILL); err != nil {
				t.Error(err)
			}
		})
	}
}

// filesNow is files of a process that is opening and closing some.
func (p *program) filesNow() map[int]string {
	p.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", p.PID)
	entries, err := os.ReadDir(dir)
	if err != nil {
		p.t.Fatal(err)
	}
	m := make(map[int]string)
	for _, e := range entries {
		if link, err := os.Readlink(dir + e.Name()); err == nil {
			n, _ := strconv.Atoi(e.Name()) // they are numbers, proc_pid_fd(5)
			m[n] = link
		}
	}
	return m
}

// waitFor polls for what nothing tells by itself.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	ticker, deadline := time.NewTicker(time.Millisecond), time.After(30*time.Second)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatal("not within 30 s")
		}
	}
}
