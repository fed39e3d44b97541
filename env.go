package handover

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/handoverd/handover/internal/wire"
)

// The environment of socket activation, sd_listen_fds(3) and sd_notify(3).
const (
	envListenFDs     = "LISTEN_FDS"
	envListenPID     = "LISTEN_PID"
	envListenPIDFDID = "LISTEN_PIDFDID"
	envListenNames   = "LISTEN_FDNAMES"
	envNotifySocket  = "NOTIFY_SOCKET"

	// envSelf carries the number of the next generation from a standalone program to it.
	envSelf = "HANDOVER_STANDALONE_GENERATION"

	firstFD = 3 // SD_LISTEN_FDS_START
	maxFDs  = 1 << 16

	// unnamed is the name systemd gives to a descriptor that has none.
	unnamed = "unknown"
)

// environ is what the environment says. Nothing in it is checked against the
// kernel but the identity of this process.
type environ struct {
	supervised bool // HANDOVER_FD is set
	activated  bool // LISTEN_FDS is set and meant for this process
	ownMaster  bool // Standalone, and not supervised
	control    int  // HANDOVER_FD
	generation int
	next       int // envSelf, for Standalone; 0: none
	service    string
	notify     string
	fds        []passed // in order of descriptors
	byKey      bool     // names are those of HANDOVER_FD_<NAME>: compare by socketKey
	own        []string // sockets that no other generation has
}

type passed struct {
	name string
	fd   int
}

// consumeEnviron reads the environment and removes from it what is meant for
// this process alone, also when it is damaged. HANDOVER_GENERATION, _SERVICE
// and _TOKEN stay: by the token the supervisor finds every process that this
// one starts. NOTIFY_SOCKET stays for others that report status or feed a
// watchdog.
func consumeEnviron() (environ, error) {
	env, err := parseEnviron(os.Environ(), os.Getpid())
	for _, kv := range os.Environ() {
		key, _, _ := strings.Cut(kv, "=")
		switch key {
		case wire.EnvFD, wire.EnvPerGeneration, envSelf, envListenFDs, envListenPID, envListenPIDFDID, envListenNames:
		default:
			if !strings.HasPrefix(key, wire.EnvSocketPrefix) {
				continue
			}
		}
		if uerr := os.Unsetenv(key); uerr != nil {
			err = errors.Join(err, fmt.Errorf("handover: %w", uerr))
		}
	}
	return env, err
}

func parseEnviron(vars []string, pid int) (environ, error) {
	m := make(map[string]string, len(vars))
	for _, kv := range vars {
		if k, v, ok := strings.Cut(kv, "="); ok {
			m[k] = v
		}
	}
	env := environ{control: -1, notify: m[envNotifySocket]}
	control, supervised := m[wire.EnvFD]
	_, activated := m[envListenFDs]
	if activated {
		mine, err := forThisProcess(m, pid)
		if err != nil {
			return env, err
		}
		if !mine && supervised {
			return env, fmt.Errorf("handover: %s is %s but this is process %d: start the program itself, or let the script exec it",
				envListenPID, m[envListenPID], pid)
		}
		// For another process (left over in the environment of a parent):
		// taken by nobody, as sd_listen_fds(3) has it.
		env.activated = mine
	}
	if env.activated {
		fds, err := parseListenFDs(m)
		if err != nil {
			return env, err
		}
		env.fds = fds
	}
	if !supervised {
		return env, env.parseSelf(m)
	}
	env.supervised = true
	return env, env.parseSupervised(m, control)
}

// upgradesItself says that nobody passes sockets but this program to itself.
func (env *environ) upgradesItself() bool { return env.ownMaster && !env.activated }

// parseSelf reads what a standalone program tells the next generation of itself.
func (env *environ) parseSelf(m map[string]string) error {
	s, ok := m[envSelf]
	if !ok {
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return fmt.Errorf("handover: %s=%.40q is no generation", envSelf, s)
	}
	env.next = n
	return nil
}

// withNextGeneration calls f with the number in the environment, which what f starts inherits.
func withNextGeneration(n int, f func() error) error {
	if err := os.Setenv(envSelf, strconv.Itoa(n)); err != nil {
		return fmt.Errorf("handover: %w", err)
	}
	return errors.Join(f(), os.Unsetenv(envSelf))
}

// forThisProcess says whether LISTEN_FDS is meant for this process.
func forThisProcess(m map[string]string, pid int) (bool, error) {
	s, ok := m[envListenPID]
	if !ok {
		return false, fmt.Errorf("handover: %s is set without %s", envListenFDs, envListenPID)
	}
	n, err := strconv.Atoi(s)
	if err != nil || n <= 0 {
		return false, fmt.Errorf("handover: %s=%.40q is no process number", envListenPID, s)
	}
	if n != pid {
		return false, nil
	}
	s, ok = m[envListenPIDFDID]
	if !ok {
		return true, nil
	}
	// From systemd 259 on the inode of the pidfd tells apart two processes
	// that had the same number one after the other.
	id, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return false, fmt.Errorf("handover: %s=%.40q is no number", envListenPIDFDID, s)
	}
	own, known := pidfdID(pid)
	return !known || own == id, nil
}

func parseListenFDs(m map[string]string) ([]passed, error) {
	n, err := strconv.Atoi(m[envListenFDs])
	if err != nil || n < 0 || n > maxFDs {
		return nil, fmt.Errorf("handover: %s=%.40q is no count of descriptors", envListenFDs, m[envListenFDs])
	}
	names := make([]string, n)
	for i := range names {
		names[i] = unnamed
	}
	if s, ok := m[envListenNames]; ok && (n > 0 || s != "") {
		names = strings.Split(s, ":")
		if len(names) != n {
			return nil, fmt.Errorf("handover: %s has %d names, %s is %d", envListenNames, len(names), envListenFDs, n)
		}
	}
	fds := make([]passed, n)
	for i, name := range names {
		fds[i] = passed{name: name, fd: firstFD + i}
	}
	return fds, nil
}

// parseSupervised reads what handoverd alone sets. Where another dialect has
// the numbers from 3, LISTEN_FDS is missing and the sockets are known only by
// HANDOVER_FD_<NAME>.
func (env *environ) parseSupervised(m map[string]string, control string) error {
	var err error
	if env.control, err = parseFD(wire.EnvFD, control); err != nil {
		return err
	}
	env.service = m[wire.EnvService]
	env.generation, err = strconv.Atoi(m[wire.EnvGeneration])
	if err != nil || env.generation < 1 {
		return fmt.Errorf("handover: %s=%.40q is no generation", wire.EnvGeneration, m[wire.EnvGeneration])
	}
	keyed := make(map[string]int)
	for k, v := range m {
		name, ok := strings.CutPrefix(k, wire.EnvSocketPrefix)
		if !ok || name == "" {
			continue
		}
		if keyed[name], err = parseFD(k, v); err != nil {
			return err
		}
	}
	if !env.activated {
		env.byKey = true
		for key, fd := range keyed {
			env.fds = append(env.fds, passed{name: strings.ToLower(key), fd: fd})
		}
		slices.SortFunc(env.fds, func(a, b passed) int { return a.fd - b.fd })
	}
	if s := m[wire.EnvPerGeneration]; s != "" {
		env.own = strings.Split(s, ":")
	}
	seen := make(map[string]bool)
	used := map[int]bool{env.control: true}
	for _, p := range env.fds {
		if p.name == "" || seen[p.name] {
			return fmt.Errorf("handover: the socket name %q is empty or given twice", p.name)
		}
		if used[p.fd] {
			return fmt.Errorf("handover: descriptor %d is given twice, the second time as %q", p.fd, p.name)
		}
		seen[p.name], used[p.fd] = true, true
		if fd, ok := keyed[socketKey(p.name)]; ok && fd != p.fd {
			return fmt.Errorf("handover: socket %q is descriptor %d by %s, %d by %s",
				p.name, p.fd, envListenFDs, fd, wire.EnvSocketPrefix+socketKey(p.name))
		}
	}
	return nil
}

func parseFD(key, value string) (int, error) {
	fd, err := strconv.Atoi(value)
	if err != nil || fd < firstFD || fd > 1<<30 {
		return -1, fmt.Errorf("handover: %s=%.40q is no descriptor from %d on", key, value, firstFD)
	}
	return fd, nil
}

// alone says whether no other generation has the socket called name.
func (env *environ) alone(name string) bool {
	return slices.ContainsFunc(env.own, func(s string) bool { return socketKey(s) == socketKey(name) })
}

// socketKey is the form of name in HANDOVER_FD_<NAME>.
func socketKey(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}
