package proc

import "time"

// helperTimeout is how long a Helper may take if its Timeout is zero.
const helperTimeout = 2 * time.Second

// lookRequest is what LookHelper reads.
type lookRequest struct {
	PIDs   []int    `json:"pids"`
	Inodes []uint64 `json:"inodes"`
	Deep   bool     `json:"deep,omitempty"`
}

// lookAnswer is what LookHelper writes.
type lookAnswer struct {
	Sight Sight  `json:"sight"`
	Error string `json:"error,omitempty"`
}

// Helper looks at processes as another user, for a caller that has no CAP_SYS_PTRACE: each Look runs a program, this
// one again, that calls LookHelper. It cannot see a process that gave up root by itself, which is not dumpable.
type Helper struct {
	Path string   // of the program; "" is /proc/self/exe
	Args []string // from argv[0] on, such that the program calls LookHelper
	Env  []string // its environment; nil is an empty one

	UID, GID uint32
	Groups   []uint32

	Deep    bool          // as Looker.Deep
	Timeout time.Duration // after which the helper is killed; zero is 2 s

	// Reaper waits for the helper, and has to be running; nil is for a process in which no Reaper runs.
	Reaper *Reaper
}
