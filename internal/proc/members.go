package proc

import "bytes"

// TokenVariable is the name of the environment variable by which a generation's strays are found.
const TokenVariable = "HANDOVER_TOKEN"

// Process is one living process. It is a snapshot: PID and StartTime name the process, the rest may change.
type Process struct {
	PID       int    `json:"pid"`
	PPID      int    `json:"ppid"`
	PGID      int    `json:"pgid"`
	Session   int    `json:"session"`
	StartTime uint64 `json:"start_time"` // clock ticks since boot
	State     byte   `json:"state"`      // as in man proc_pid_stat(5): 'R', 'S', 'D', 'T' …
	UID       int    `json:"uid"`        // effective; -1 where it cannot be seen
}

// hasVariable reports whether the entries of environ, separated by NUL, contain exactly this one.
func hasVariable(environ, entry []byte) bool {
	for e := range bytes.SplitSeq(environ, []byte{0}) {
		if bytes.Equal(e, entry) {
			return true
		}
	}
	return false
}
