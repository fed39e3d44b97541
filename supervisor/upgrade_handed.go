package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// UpgradeVariable names the environment variable by which an image of handoverd tells
// the next one that it takes over: the number of a sealed memfd, and for a pre-flight
// rehearsalSuffix after it.
const UpgradeVariable = "HANDOVERD_UPGRADE"

const rehearsalSuffix = ":rehearsal"

// handedFormat is the version of what is in the memfd. It holds a state file, which has
// a version of its own; what is added here has a zero value that means as before.
const handedFormat = 1

// Names of what is handed over beside the sockets and channels, which have the names
// that they have in the keeper.
const (
	handedLock   = "lock"
	handedDir    = "runtime directory"
	handedOld    = "old image"
	handedFault  = "fault"
	handedAnswer = "answer"
	handedListen = "listen/" // and control, health or admin
	handedPassed = "passed/" // by a service manager: and a number, and its name
)

// handedOver is what is in the memfd.
type handedOver struct {
	Format  int            `json:"format"`
	PID     int            `json:"pid"`
	Version string         `json:"version"` // of the image that hands over
	Comm    string         `json:"comm"`    // the name that ps shows
	Args    []string       `json:"args"`    // that it was executed with
	FDs     map[string]int `json:"fds"`
	// Of the configuration: what these listen on does not change in an upgrade.
	RuntimeDir string `json:"runtime_dir"`
	Health     string `json:"health,omitempty"`
	Admin      string `json:"admin,omitempty"`

	State   json.RawMessage       `json:"state"` // as in the state file
	Sources map[string]string     `json:"sources,omitempty"`
	Missing map[string]heldSocket `json:"missing,omitempty"`
	Texts   map[string]string     `json:"texts,omitempty"` // STATUS= of the generations
	// For those who wait at the control socket, and come back.
	Events    []Event             `json:"events,omitempty"`
	LastEvent int                 `json:"last_event,omitempty"`
	Outcomes  []*ReloadReport     `json:"outcomes,omitempty"`
	Tails     map[string]keptTail `json:"tails,omitempty"`
}

// Handed is what an image of handoverd has handed over to this one: by execve in the
// same process, or for a pre-flight.
type Handed struct {
	handedOver
	memfd     int
	rehearsal bool
	fault     string // why a newer image has gone back to this one; "" if none has
	arrived   atomic.Bool
	mu        sync.Mutex // held while it arrives, or goes back
}

// ReadHanded reads what is handed over, by the text of UpgradeVariable. An empty text
// is nothing, and so is one that was meant for another process and came down to this one:
// nil.
func ReadHanded(text string) (*Handed, error) {
	if text == "" {
		return nil, nil
	}
	h := new(Handed)
	number, rehearsal := strings.CutSuffix(text, rehearsalSuffix)
	h.rehearsal = rehearsal
	if _, err := fmt.Sscanf(number, "%d", &h.memfd); err != nil {
		return nil, fmt.Errorf("%s=%q: no number", UpgradeVariable, text)
	}
	b, err := readSealed(h.memfd)
	if err == nil {
		err = json.Unmarshal(b, &h.handedOver)
	}
	if err != nil {
		return nil, fmt.Errorf("%s=%q: %w", UpgradeVariable, text, err)
	}
	if !rehearsal && h.PID != os.Getpid() {
		return nil, nil
	}
	if rehearsal { // a child of it, unless somebody else has passed it on
		h.PID = os.Getppid()
	}
	if fd, ok := h.FDs[handedFault]; ok {
		h.fault = readFault(fd)
	}
	if !rehearsal { // what this image starts gets none of it
		for _, fd := range h.all() {
			unix.CloseOnExec(fd)
		}
	}
	if h.Format > handedFormat {
		return h, fmt.Errorf("handed over in format %d, this build reads %d", h.Format, handedFormat)
	}
	return h, nil
}

// all are the descriptors that were handed over.
func (h *Handed) all() []int { return append(slices.Collect(maps.Values(h.FDs)), h.memfd) }

// Rehearsal reports whether this process is the pre-flight of an upgrade.
func (h *Handed) Rehearsal() bool { return h != nil && h.rehearsal }

// Pending reports whether this image could still go back to the one before it.
func (h *Handed) Pending() bool { return h != nil && !h.arrived.Load() }

// Returned reports whether a newer image has gone back to this one: then there is nothing left to
// go back to.
func (h *Handed) Returned() bool { return h != nil && h.fault != "" }

// take copies a descriptor that was handed over. The caller owns the copy, which is
// close-on-exec; the original stays for an image that is gone back to.
func (h *Handed) take(name string) (int, bool, error) {
	fd, ok := h.FDs[name]
	if !ok {
		return -1, false, nil
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return -1, true, fmt.Errorf("%s, handed over as descriptor %d: %w", name, fd, os.NewSyscallError("fcntl", err))
	}
	return dup, true, nil
}

// takeKept copies all that a keeper would hold, by name. The caller owns it.
func (h *Handed) takeKept() (map[string]int, error) {
	out := map[string]int{}
	for name := range h.FDs {
		if !isKept(name) {
			continue
		}
		fd, _, err := h.take(name)
		if err != nil {
			closeFDs(out)
			return nil, err
		}
		out[name] = fd
	}
	return out, nil
}

// takePassed copies what a service manager has passed and nobody has used yet.
func (h *Handed) takePassed() ([]PassedSocket, error) {
	var out []PassedSocket
	for _, name := range slices.Sorted(maps.Keys(h.FDs)) {
		numbered, ok := strings.CutPrefix(name, handedPassed)
		if !ok {
			continue
		}
		fd, _, err := h.take(name)
		if err != nil {
			return nil, err
		}
		_, text, _ := strings.Cut(numbered, "/")
		out = append(out, PassedSocket{Name: text, FD: fd})
	}
	return out, nil
}

func isKept(name string) bool {
	for _, p := range keptPrefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// listener is one that was handed over.
func (h *Handed) listener(name string) (net.Listener, error) {
	fd, ok, err := h.take(handedListen + name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("%s: the handoverd before does not listen there: a change of it needs a stop and a start", name)
	}
	f := os.NewFile(uintptr(fd), name)
	l, err := net.FileListener(f)
	_ = f.Close() // it has a copy
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(true) // as the one that has bound it
	}
	return l, nil
}

// runtimeDir goes on with the lock that was handed over: it belongs to the open file
// (flock(2)), which is the same.
func (h *Handed) runtimeDir(path string) (*runtimeDir, error) {
	if h.RuntimeDir != path {
		return nil, fmt.Errorf("runtime_dir is %s now and %s in the handoverd that runs: a change of it needs a stop and a start", path, h.RuntimeDir)
	}
	fd, ok, err := h.take(handedLock)
	if err != nil || !ok {
		return nil, errors.Join(errors.New("the lock of the runtime directory was not handed over"), err)
	}
	f := os.NewFile(uintptr(fd), path+"/lock")
	if err := flock(f); err != nil { // a no-op where this open file has it
		return nil, errors.Join(err, f.Close())
	}
	d := &runtimeDir{path: path, lock: f}
	if fd, ok, err = h.take(handedDir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if ok {
		d.dir = os.NewFile(uintptr(fd), path)
	}
	return d, nil
}

// saved is the state that was handed over.
func (h *Handed) saved(boot string, pidns uint64) (*savedState, error) {
	s, err := decodeState(h.State)
	switch {
	case err != nil:
		return nil, fmt.Errorf("state: %w", err)
	case s.BootID != boot || s.Held.PIDNS != pidns:
		return nil, fmt.Errorf("state: %w", errElsewhere)
	}
	return s, nil
}

// arrive ends the time in which this image can go back: what was handed over has been
// taken, and the first turn is about to be carried out. What was not wanted is closed.
func (h *Handed) arrive() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.arrived.Swap(true) {
		return
	}
	for _, fd := range h.all() {
		_ = unix.Close(fd)
	}
	h.handedOver = handedOver{Comm: h.Comm} // the rest is in use elsewhere, or of no use
}

// Back executes the image that has handed over again, with the same things: this one
// has failed before its first turn. It returns only if that fails, or if it may not be: in a
// pre-flight, after the first turn, and where a newer image has gone back to this one already.
func (h *Handed) Back(environ []string, reason string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.Pending() || h.rehearsal:
		return errors.New("there is nothing to go back to")
	case h.fault != "":
		return errors.New("the newer image has gone back to this one already")
	}
	old, ok := h.FDs[handedOld]
	fault, noted := h.FDs[handedFault]
	if !ok || !noted {
		return errors.New("the old image was not handed over")
	}
	if reason == "" {
		reason = "no reason"
	}
	if _, err := unix.Pwrite(fault, []byte(reason[:min(len(reason), maxFault)]), 0); err != nil {
		return os.NewSyscallError("pwrite", err)
	}
	defer forkLock()()
	for _, fd := range h.all() {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return os.NewSyscallError("fcntl F_SETFD", err)
		}
	}
	return execute(old, h.Args, append(environ, fmt.Sprintf("%s=%d", UpgradeVariable, h.memfd)))
}

// maxFault bounds the reason that is told.
const maxFault = 4 << 10

// rehearsalAnswer is what a pre-flight answers.
type rehearsalAnswer struct {
	Version string `json:"version"`
	Fault   string `json:"fault,omitempty"` // "": this image could take over
}

// Answer tells the handoverd that runs how the pre-flight has ended: nil, or why this
// image could not take over.
func (h *Handed) Answer(version string, fault error) error {
	a := rehearsalAnswer{Version: version}
	if fault != nil {
		a.Fault = fault.Error()
	}
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	fd, ok := h.FDs[handedAnswer]
	if !ok {
		return errors.New("nobody waits for an answer")
	}
	_, err = unix.Write(fd, append(b, '\n'))
	return os.NewSyscallError("write", err)
}
