package proc

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestStarved: where no descriptor can be had every question is answered by an error, never by "there is nobody". The limit
// is this process's own while it asks.
func TestStarved(t *testing.T) {
	k, _ := startChild(t, "park", kidOptions{})
	var looker Looker
	if _, err := looker.Look([]int{k.pid}, []uint64{1}); err != nil {
		t.Fatal(err)
	}
	zombie, _ := startChild(t, "park", kidOptions{})
	if err := unix.Kill(zombie.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ask := map[string]func() (any, error){
		"Members":       func() (any, error) { return Members(k.pid, "") },
		"KillMembers":   func() (any, error) { return KillMembers(k.pid, "", unix.SIGKILL) },
		"by token":      func() (any, error) { return Members(0, "nobody's") },
		"WithVariable":  func() (any, error) { return WithVariable("X=") },
		"Descendants":   func() (any, error) { return Descendants(k.pid) },
		"Look":          func() (any, error) { return looker.Look([]int{k.pid}, []uint64{1}) },
		"Listening":     func() (any, error) { return Listening([]int{k.pid}) },
		"Holds":         func() (any, error) { return Holds([]int{k.pid}, []uint64{1}) },
		"StartTime":     func() (any, error) { return StartTime(k.pid) },
		"OpenPidfd":     func() (any, error) { return OpenPidfd(k.pid) },
		"dead children": func() (any, error) { return deadChildren() },
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		got any
		err error
	}
	answers := map[string]answer{}
	none := unix.Rlimit{Cur: 0, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	for name, f := range ask {
		got, err := f()
		answers[name] = answer{got, err}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for name, a := range answers {
		if !Starved(a.err) {
			t.Errorf("%s: %v, %v", name, a.got, a.err)
		}
	}
	if Starved(os.ErrNotExist) || Starved(errors.Join(unix.ESRCH, unix.EACCES)) || Starved(nil) {
		t.Error("starved by what tells of the process")
	}
	if members, err := Members(k.pid, ""); err != nil || len(members) != 1 {
		t.Errorf("with descriptors again: %v, %v", members, err)
	}
}
