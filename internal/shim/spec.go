package shim

import "slices"

import "syscall"

// Spec says what a program is started as. It is plain data; the zero value of
// each field but Path and Argv means "as handoverd itself".
type Spec struct {
	// Path is what execve gets, resolved after Dir was entered and as the
	// target user. It is not looked up in PATH.
	Path string
	// Argv holds at least the program's own name.
	Argv []string
	// Env is the whole environment, NAME=value each; nothing is inherited.
	Env []string
	// Dir is the working directory; empty: the one of handoverd.
	Dir string

	// UID and GID are set as real, effective and saved ids. A UID that differs
	// from the present one needs a GID: keeping root's group is refused.
	UID *uint32
	GID *uint32
	// Groups are the supplementary groups, set when UID differs from the
	// present user (also to none), or when SetGroups says so.
	Groups    []uint32
	SetGroups bool

	Umask *uint32
	// Rlimits are set exactly. Without an entry for RLIMIT_NOFILE its soft
	// value is raised to len(Targets)+1024 as far as the hard one allows, and
	// is never lowered.
	Rlimits []Rlimit
	// Nice is the absolute nice value, -20 to 19.
	Nice *int
	// OOMScoreAdj is -1000 to 1000, proc_pid_oom_score_adj(5).
	OOMScoreAdj *int
	// NoNewPrivs sets PR_SET_NO_NEW_PRIVS.
	NoNewPrivs bool
	// AmbientCaps are capability numbers the program keeps although it is not
	// root. With a change of user they are all it keeps.
	AmbientCaps []uintptr

	// Targets are the numbers the passed descriptors get, in the order they
	// are passed; all different.
	Targets []int
	// ExecTarget, unless 0, is one of Targets: the descriptor of the program itself, which
	// Path then leads to, as /proc/self/fd/N. The program does not find it open.
	ExecTarget int
	// ListenPID sets LISTEN_PID to the program's pid and removes
	// LISTEN_PIDFDID, which would name another process.
	ListenPID bool
}

// spareFiles is what a program gets beyond its sockets.
const spareFiles = 1024

// Room is the least soft RLIMIT_NOFILE with which the program has descriptors left beside
// those that it is given.
func (s *Spec) Room() uint64 {
	room := len(s.Targets) + spareFiles
	for _, t := range s.Targets {
		room = max(room, t+1)
	}
	return uint64(room)
}

// Infinity is RLIM_INFINITY.
const Infinity = ^uint64(0)

// Rlimit is one resource limit, setrlimit(2). Resource is an RLIMIT_ number;
// Soft and Hard are in that resource's unit.
type Rlimit struct {
	Resource   int
	Soft, Hard uint64
}

const (
	// unchangedID is what setresuid(2) and setresgid(2) take as "leave it":
	// asking for it would silently keep root.
	unchangedID = ^uint32(0)
	// maxTarget is the highest value that fs.nr_open can have by default.
	maxTarget = 1 << 20
	// maxCap is one above the highest number the two words of capset(2) hold.
	maxCap = 64
)

// check refuses what execve would refuse later, and what it would not refuse
// but do wrongly.
func (s *Spec) check(nfds int) *StartError {
	switch {
	case s == nil || s.Path == "":
		return invalid("no path")
	case len(s.Argv) == 0:
		return invalid("no argv")
	case len(s.Targets) != nfds:
		return invalid("the number of targets is not the number of descriptors")
	case s.UID != nil && *s.UID == unchangedID, s.GID != nil && *s.GID == unchangedID:
		return invalid("user and group -1 mean none")
	}
	for _, c := range s.AmbientCaps {
		if c >= maxCap {
			return invalid("no such capability")
		}
	}
	for _, l := range s.Rlimits {
		if l.Soft > l.Hard {
			return invalid("rlimit: soft above hard")
		}
	}
	if hasNUL(s.Path) || hasNUL(s.Dir) || anyNUL(s.Argv) || anyNUL(s.Env) {
		return invalid("NUL byte in path, directory, argv or environment")
	}
	seen := make(map[int]bool, len(s.Targets))
	for _, t := range s.Targets {
		if t < 0 || t >= maxTarget || seen[t] {
			return invalid("targets must be different descriptor numbers")
		}
		seen[t] = true
	}
	return nil
}

func invalid(detail string) *StartError {
	return &StartError{Op: "spec", Detail: detail, Err: syscall.EINVAL}
}

func hasNUL(s string) bool {
	for i := range len(s) {
		if s[i] == 0 {
			return true
		}
	}
	return false
}

func anyNUL(list []string) bool {
	return slices.ContainsFunc(list, hasNUL)
}

// programEnv is the environment for execve: without the shim's own marker and,
// with ListenPID, with the pid in place.
func (s *Spec) programEnv(pid string) []string {
	env := make([]string, 0, len(s.Env)+1)
	for _, kv := range s.Env {
		if named(kv, marker) || s.ListenPID && (named(kv, "LISTEN_PID") || named(kv, "LISTEN_PIDFDID")) {
			continue
		}
		env = append(env, kv)
	}
	if s.ListenPID {
		env = append(env, "LISTEN_PID="+pid)
	}
	return env
}

func named(kv, name string) bool {
	return len(kv) > len(name) && kv[len(name)] == '=' && kv[:len(name)] == name
}
