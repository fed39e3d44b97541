package proc

import (
	"maps"
	"slices"
)

// Sight is what a look at some processes showed of some sockets, which it names by inode.
type Sight struct {
	// Polled says how many processes wait for connections on the socket by epoll, poll, ppoll, select or pselect6.
	Polled map[uint64]int `json:"polled,omitempty"`
	// Accepting says how many processes have a thread that sits in accept or accept4 on the socket.
	Accepting map[uint64]int `json:"accepting,omitempty"`
	// Held has the sockets of which a process has a descriptor. That proves nothing: descriptors are inherited.
	Held map[uint64]bool `json:"held,omitempty"`
	// Stale has the sockets that are in an epoll set of a process that has no descriptor of them any more. The
	// process cannot accept, but is woken by each connection (epoll(7), "Questions and answers", 6).
	Stale map[uint64]bool `json:"stale,omitempty"`
	// Blind has the processes of which nothing can be said: the kernel forbids the look, /proc hides them, or they
	// use io_uring, which shows nothing.
	Blind []int `json:"blind,omitempty"`
	// Skipped has the processes whose epoll sets were not read because they have too many descriptors; see
	// Looker.Deep.
	Skipped []int `json:"skipped,omitempty"`
	// Busy has the processes that hold a socket which they were not seen to wait on while a thread of theirs was
	// running: it may have been between two waits. Look again before believing that they let go.
	Busy []int `json:"busy,omitempty"`
}

// Waiting reports whether a process was seen to wait for connections on the socket, in whichever way.
func (s Sight) Waiting(inode uint64) bool { return s.Polled[inode] > 0 || s.Accepting[inode] > 0 }

// Merge adds what another look at other processes showed, for example that of a Helper at those in Blind. A process
// that the other look could see is then no longer in Blind; asked has the processes it was asked for. Nothing is
// shared with the Sights of before.
func (s *Sight) Merge(o Sight, asked []int) {
	s.Polled = sum(s.Polled, o.Polled)
	s.Accepting = sum(s.Accepting, o.Accepting)
	s.Held = union(s.Held, o.Held)
	s.Stale = union(s.Stale, o.Stale)
	blind := slices.DeleteFunc(slices.Clone(s.Blind), func(pid int) bool { return slices.Contains(asked, pid) })
	s.Blind = slices.Concat(blind, o.Blind)
	s.Skipped = slices.Concat(s.Skipped, o.Skipped)
	s.Busy = slices.Concat(s.Busy, o.Busy)
}

func sum(a, b map[uint64]int) map[uint64]int {
	all := make(map[uint64]int, len(a)+len(b))
	maps.Copy(all, a)
	for inode, n := range b {
		all[inode] += n
	}
	return all
}

func union(a, b map[uint64]bool) map[uint64]bool {
	all := make(map[uint64]bool, len(a)+len(b))
	maps.Copy(all, a)
	maps.Copy(all, b)
	return all
}

// view is a Sight of one process.
type view struct {
	polled, accepting, held, stale map[uint64]bool
	blind, skipped, busy           bool
}

func newView() *view {
	return &view{
		polled: make(map[uint64]bool), accepting: make(map[uint64]bool),
		held: make(map[uint64]bool), stale: make(map[uint64]bool),
	}
}

// idle reports whether there is a socket that the process holds and was not seen to wait on.
func (v *view) idle() bool {
	for inode := range v.held {
		if !v.polled[inode] && !v.accepting[inode] {
			return true
		}
	}
	return false
}

// add counts what one process showed.
func (s *Sight) add(pid int, v *view) {
	for inode := range v.polled {
		s.Polled[inode]++
	}
	for inode := range v.accepting {
		s.Accepting[inode]++
	}
	maps.Copy(s.Held, v.held)
	maps.Copy(s.Stale, v.stale)
	if v.blind {
		s.Blind = append(s.Blind, pid)
	}
	if v.skipped {
		s.Skipped = append(s.Skipped, pid)
	}
	if v.busy {
		s.Busy = append(s.Busy, pid)
	}
}
