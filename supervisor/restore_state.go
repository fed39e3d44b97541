package supervisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/proc"
)

// held is what stands in the state file beside the state: what the next handoverd
// needs to recognise what it takes back.
type held struct {
	// PIDNS is the pid namespace in which process numbers mean something.
	PIDNS   uint64                `json:"pid_namespace"`
	Sockets map[string]heldSocket `json:"sockets,omitempty"` // by key
	Keeper  heldProcess           `json:"keeper,omitzero"`
	// Writer is the handoverd that wrote the file.
	Writer heldProcess `json:"writer,omitzero"`
	// Closed are not open, and are bound again at the same address.
	Closed map[string]heldSocket `json:"closed,omitempty"`
	// Left are closed here as well, or have lost their path, but a generation still accepts on them
	// that was not told to drain: where a stop or a removal is called off they are asked of that.
	Left map[string]heldSocket `json:"left,omitempty"`
}

// heldSocket is a bound socket: where (port 0 is resolved), with what options, and
// the number by which its descriptors are recognised.
type heldSocket struct {
	Addr    fdpass.Addr    `json:"addr"`
	Options fdpass.Options `json:"options"`
	Inode   uint64         `json:"inode"`
}

type heldProcess struct {
	PID       int    `json:"pid"`
	StartTime uint64 `json:"start_time"`
}

// savedState is the state file.
type savedState struct {
	State
	// Saved is when it was written: handoverd lived then.
	Saved proc.Instant `json:"saved"`
	Held  held         `json:"held"`
}

// held describes what there is now.
func (l *loop) held() held {
	h := held{PIDNS: l.pidns, Writer: l.self, Sockets: map[string]heldSocket{}, Keeper: l.keep.process, Closed: l.missing}
	for key, s := range l.sockets.held() {
		h.Sockets[key] = heldSocket{Addr: s.Addr(), Options: s.Options(), Inode: s.Inode()}
	}
	h.Left = l.left(h.Sockets)
	return h
}

// left are the sockets of generations that drain and do not know it yet which are not among those that
// are held. What stands before the drain may take long: see the hold of a stop.
func (l *loop) left(have map[string]heldSocket) map[string]heldSocket {
	var out map[string]heldSocket
	for name, svc := range l.state.Services {
		for _, g := range svc.Generations {
			c := l.children[at{name, g.N}]
			if !g.Untold || c == nil {
				continue
			}
			for i, k := range g.keys() {
				if _, is := have[k.Key]; is || k.Own || i >= len(c.inodes) || c.inodes[i] == 0 {
					continue
				}
				if out == nil {
					out = map[string]heldSocket{}
				}
				out[k.Key] = heldSocket{Addr: c.addrs[i], Options: g.Spec.Config.Sockets[i].Options, Inode: c.inodes[i]}
			}
		}
	}
	return out
}

// encode is the state file but for its first key, the time of writing, so that a
// state that has not changed is recognised.
func encodeState(s *State, h held) ([]byte, error) {
	return json.Marshal(struct {
		*State
		Held held `json:"held"`
	}{s, h})
}

// stamped puts the time of writing first.
func stamped(b []byte, now proc.Instant) []byte {
	out := make([]byte, 0, len(b)+40)
	out = append(out, `{"saved":`...)
	out = strconv.AppendInt(out, int64(now), 10)
	return append(append(out, ','), b[1:]...)
}

// errNewer is wrapped by the error about a state file of a later version.
var errNewer = errors.New("written by a newer handoverd")

// decodeState reads a state file. What transition could not go on from is an error.
func decodeState(b []byte) (*savedState, error) {
	var version struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(b, &version); err != nil {
		return nil, err
	}
	if version.Version > StateVersion {
		return nil, fmt.Errorf("%w: version %d, this build reads %d and %d", errNewer, version.Version, OldestState, StateVersion)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	s := new(savedState)
	if err := d.Decode(s); err != nil {
		return nil, err
	}
	if s.Version == OldestState {
		s.Version = StateVersion
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	if !sound(s.Saved) {
		return nil, fmt.Errorf("%w: when it was written", errState)
	}
	return s, nil
}

// errElsewhere is wrapped by the reasons why a good state is not gone on with.
var errElsewhere = errors.New("of another boot or pid namespace")

// readState reads the state of an earlier handoverd: nil if there is none. A file
// that is damaged or newer is set aside under another name, never obeyed: its error says so.
// Where the handoverd that wrote it lives the error wraps ErrLocked.
// One of another boot or pid namespace comes with an error that wraps errElsewhere:
// of it the numbers alone mean something.
func (d *runtimeDir) readState(boot string, pidns uint64) (*savedState, error) {
	path := d.file("state.json")
	b, err := readRegular(path, maxState)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if proc.Starved(err) {
		return nil, err // it says nothing of the file
	}
	var s *savedState
	if err == nil {
		s, err = decodeState(b)
	}
	switch {
	case err != nil:
		aside := path + ".damaged"
		if errors.Is(err, errNewer) {
			aside = path + ".newer"
		}
		if moveErr := setAside(path, aside); moveErr != nil {
			return nil, fmt.Errorf("%s: %w; it could not be set aside: %w", path, err, moveErr)
		}
		return nil, fmt.Errorf("%s: %w; set aside as %s, and nothing in it is used", path, err, aside)
	case s.BootID != boot:
		return s, fmt.Errorf("%s: %w: the machine was restarted since it was written", path, errElsewhere)
	case s.Held.PIDNS != pidns:
		return s, fmt.Errorf("%s: %w: process numbers in it are those of pid namespace %d, and here of %d",
			path, errElsewhere, s.Held.PIDNS, pidns)
	}
	if err := writerLives(s.Held.Writer, dying); err != nil {
		return nil, fmt.Errorf("runtime_dir %s: %w", d.path, err)
	}
	return s, nil
}

// maxState is how long a state file may be, in bytes: that of a thousand services has 3 MiB.
const maxState = 256 << 20

// setAside renames what is no state file, in place of what was set aside before.
func setAside(path, aside string) error {
	err := os.Rename(path, aside)
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		err = errors.Join(os.RemoveAll(aside), os.Rename(path, aside))
	}
	return err
}

// numbersOf is what a fresh start keeps of an earlier state: a number is never used again.
func numbersOf(s *State) map[string]int {
	n := map[string]int{}
	maps.Copy(n, s.Numbers)
	for name, svc := range s.Services {
		n[name] = svc.LastN
	}
	return n
}

// findState reads what an earlier handoverd has left, for restore. The error says
// that it cannot be read or gone on with now, and may be later.
func (l *loop) findState(boot string) error {
	found, err := l.dir.readState(boot, l.pidns)
	l.found, l.elsewhere = found, errors.Is(err, errElsewhere)
	switch {
	case proc.Starved(err):
		return fmt.Errorf("supervisor: %w", err)
	case errors.Is(err, ErrLocked):
		return err
	case err == nil && found != nil:
		return haveRoom(found.room())
	case l.elsewhere:
		l.log.Info("the state of an earlier handoverd is not gone on with", "why", err)
	case err != nil:
		l.log.Error("the state of an earlier handoverd cannot be used: a fresh start", "err", err)
	}
	return nil
}

// staysAlive reports whether a process has not ended, and does not within endsSoon.
func staysAlive(pid int) bool {
	fd, err := proc.OpenPidfd(pid)
	if err != nil {
		_, err = proc.StartTime(pid)
		return err == nil
	}
	defer func() { _ = unix.Close(fd) }()
	ended, err := endsWithin(fd, endsSoon)
	return !ended && err == nil
}

// endsSoon is how long a process that has been killed may take to end. Who asks for the lock of one that lives waits as long.
const endsSoon = 300 * time.Millisecond

// lockSoon takes the lock, and waits for it for a moment where its owner is dead, or about to be: a
// process that he had just forked has a copy of it until it calls execve.
func lockSoon(f *os.File) error {
	const pause, tries = 10 * time.Millisecond, 100
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for n := 0; ; n++ {
		err := flock(f)
		if !errors.Is(err, unix.EWOULDBLOCK) || n == tries {
			return err
		}
		text, readErr := os.ReadFile(f.Name())
		owner, parseErr := strconv.Atoi(strings.TrimSpace(string(text)))
		if readErr != nil || parseErr != nil || owner <= 0 {
			return err
		}
		if staysAlive(owner) {
			return err
		}
		<-ticker.C
	}
}
