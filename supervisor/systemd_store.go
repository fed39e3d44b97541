package supervisor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/keeper"
	"github.com/handoverd/handover/internal/sdnotify"
)

// The descriptor store of a service manager (sd_notify(3), FDSTORE; systemd 219) holds
// what the keeper would, over the death of handoverd as well as over an ordered restart.
// It says nothing: neither that it has kept a descriptor, nor that it is full, nor,
// before systemd 254, that there is one. It passes all that it has to the next start.

// storeUnknown is the room of a store of which nobody could be asked.
const storeUnknown = -1

// fdStore is what the loop knows of the store.
type fdStore struct {
	room  int    // descriptors that it keeps; storeUnknown
	off   string // why it is not relied upon; "": it is
	sent  map[string]uint64
	fault string // what it cannot hold
}

// serves reports whether the store is there.
func (s *fdStore) serves() bool { return s.room > 0 }

// findStore learns whether there is a store. It runs before the first turn.
func (l *loop) findStore() {
	st := &l.store
	st.sent = map[string]uint64{}
	switch given := l.opts.Manager; {
	case l.manager.to == nil:
		st.off = noManager
		return
	default:
		text, err := l.askUnit("show", "--property=FileDescriptorStoreMax", "--property=KillMode")
		st.room = given.Store
		if err == nil {
			l.warnOfUnit(text)
		}
		if err == nil && given.Store == 0 {
			st.room, err = strconv.Atoi(sdnotify.Property(text, "FileDescriptorStoreMax"))
		}
		if err != nil && given.Store == 0 {
			st.room, st.off = storeUnknown, fmt.Sprintf("the service manager does not say whether it keeps descriptors: %v", err)
			return
		}
	}
	if st.room == 0 {
		st.off = "the unit has no FileDescriptorStoreMax="
		return
	}
	if l.keep.off == "" {
		l.keep.off = "systemd's fd store holds what it would"
	}
}

// warnOfUnit names what in the unit would undo what handoverd is for.
func (l *loop) warnOfUnit(show string) {
	if mode := sdnotify.Property(show, "KillMode"); mode == "control-group" || mode == "mixed" {
		l.log.Warn("systemd ends all programs when handoverd is killed: set KillMode=process in the unit", "KillMode", mode)
	}
}

const noManager = "no service manager listens (NOTIFY_SOCKET is not set)"

// takePassed sorts what the service manager has passed: what handoverd had stored,
// by the names of the keeper, and what is left, which are the sockets of socket units.
// The caller owns the first; the loop keeps the others.
func (l *loop) takePassed() map[string]int {
	stored := map[string]int{}
	l.kept = map[string]bool{}
	digests := l.digestNames()
	for _, p := range l.opts.Manager.Sockets {
		unix.CloseOnExec(p.FD)
		name, ok := sdnotify.FDText(p.Name)
		if full := digests[p.Name]; full != "" {
			name, ok = full, true
		}
		if !ok || !slices.ContainsFunc(keptPrefixes, func(k string) bool { return strings.HasPrefix(name, k) }) {
			l.passed = append(l.passed, p)
			continue
		}
		if _, twice := stored[name]; twice {
			_ = unix.Close(p.FD)
			l.store.sent[name] = 0 // no identity: they are replaced by the one that is in use
			continue
		}
		stored[name], l.store.sent[name], l.kept[name] = p.FD, 1, true
		if strings.HasPrefix(name, keptSocket) {
			l.store.sent[name], _ = socketInode(p.FD) // 0 is no socket's: it is replaced
		}
	}
	l.opts.Manager.Sockets = nil
	l.unclaimed()
	return stored
}

// digestNames are the names for which a digest may stand.
func (l *loop) digestNames() map[string]string {
	out := map[string]string{}
	add := func(key string) { out[sdnotify.FDName(keptSocket+key)] = keptSocket + key }
	if l.found != nil {
		for key := range l.found.Held.Sockets {
			add(key)
		}
	}
	for _, svc := range l.s.cfg.Services {
		for _, sc := range svc.Sockets {
			add(socketKey(svc.Name, sc))
		}
	}
	return out
}

// syncStore gives the store what it has not yet, and takes out what it need not hold
// any more. Like syncKeeper it comes before a shim is told to go, and never fails the
// turn.
func (l *loop) syncStore() {
	st := &l.store
	if l.manager.to == nil || st.room == 0 || l.fault != nil || l.turned < l.manager.again {
		return
	}
	items, ids := l.keepable()
	for _, key := range l.state.Passed { // systemd holds them in their socket units
		delete(ids, keptSocket+key)
	}
	items = slices.DeleteFunc(items, func(it keeper.Item) bool { _, ok := ids[it.Name]; return !ok })
	for name, id := range st.sent {
		if now, still := ids[name]; still && now == id {
			continue
		}
		if !l.sendManager("FDSTOREREMOVE=1\nFDNAME=" + sdnotify.FDName(name)) {
			return
		}
		delete(st.sent, name)
	}
	for _, it := range items {
		if _, has := st.sent[it.Name]; has || st.serves() && len(st.sent) >= st.room {
			continue
		}
		// Without FDPOLL=0 it would drop a socket that a program has shut down, and each
		// channel whose other end is closed.
		if !l.sendManager("FDSTORE=1\nFDNAME="+sdnotify.FDName(it.Name)+"\nFDPOLL=0", it.FD) {
			return
		}
		st.sent[it.Name] = ids[it.Name]
	}
	l.storeFull(len(items))
}

// storeFull has a keeper hold what the store has no room for.
func (l *loop) storeFull(wanted int) {
	st := &l.store
	if !st.serves() || wanted <= st.room || st.fault != "" {
		return
	}
	st.fault = fmt.Sprintf("%d descriptors are to be kept, and the unit has FileDescriptorStoreMax=%d", wanted, st.room)
	l.log.Error("the fd store does not hold everything", "err", st.fault)
	if l.s.cfg.Keeper == "auto" {
		l.keep.off = ""
		l.startKeeper()
	}
}

// outlives reports whether the socket stays open when handoverd has ended: a socket
// unit has it, or the store keeps it for the start that follows.
func (l *loop) outlives(key string) bool {
	if slices.Contains(l.state.Passed, key) {
		return true
	}
	kept := l.store.serves() && (l.state.Stop == nil || l.state.Stop.Keeps)
	return kept && l.store.sent[keptSocket+key] != 0
}

// leaveStore empties the store at a stop that is not followed by a start: its sockets
// are to be closed, also where the unit preserves the store. A start that was refused
// leaves it as it is, for the next one.
func (l *loop) leaveStore(startErr error) {
	if l.manager.to == nil || startErr != nil || l.state.Stop == nil || l.state.Stop.Keeps {
		return
	}
	for name := range l.store.sent {
		if !l.sendManager("FDSTOREREMOVE=1\nFDNAME=" + sdnotify.FDName(name)) {
			return
		}
	}
}

// StoreStatus is how the fd store of the service manager stands.
type StoreStatus struct {
	Room int    `json:"room"`          // descriptors that it keeps; -1: not known
	Off  string `json:"off,omitempty"` // why it is not relied upon
	Held int    `json:"held"`          // that it was given
	// Fault is what it cannot hold, or why it was not given it.
	Fault string `json:"fault,omitempty"`
}

func (l *loop) storeStatus() *StoreStatus {
	st := &l.store
	out := &StoreStatus{Room: st.room, Off: st.off, Held: len(st.sent), Fault: st.fault}
	if out.Fault == "" {
		out.Fault = l.manager.fault
	}
	return out
}
