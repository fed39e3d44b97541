package supervisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/keeper"
	"github.com/handoverd/handover/internal/proc"
)

// How a keeper that ends is replaced: at once, and after a pause that doubles when
// the one before has lived for less than keeperSteady.
const (
	keeperSteady  = 10 * time.Second
	keeperPause   = 100 * time.Millisecond
	keeperLongest = 30 * time.Second
	keeperEnd     = time.Second // for its end, when handoverd ends
	resendAfter   = 10 * time.Second
)

// keeping is what the loop knows of the keeper. Only the loop uses it.
type keeping struct {
	off    string // why there is none; "": there is to be one
	client *keeper.Client
	pid    int
	pidfd  int // -1: none
	began  time.Time
	pause  time.Duration     // before the next start
	sent   map[string]uint64 // by name: what is kept, by its identity
	fault  string            // what it could not do

	process heldProcess // for the state file
	behind  bool        // not everything could be sent to it
	claim   *os.File    // proves to a keeper that the runtime directory is ours
	resent  time.Time
}

// keeperOff says why handoverd runs without a keeper, "" if it runs with one.
func keeperOff(cfg *Config) string {
	switch {
	case cfg.Keeper == "none":
		return `keeper = "none"`
	case os.Getpid() == 1:
		return "handoverd is process 1: the kernel ends every process of a pid namespace with its first one"
	}
	return ""
}

// keepable is all that is to be kept, by name, with an identity: a name stands for
// another descriptor once the identity is another. The descriptors are borrowed.
func (l *loop) keepable() (items []keeper.Item, ids map[string]uint64) {
	ids = map[string]uint64{}
	add := func(name string, fd int, id uint64) {
		items, ids[name] = append(items, keeper.Item{Name: name, FD: fd}), id
	}
	for key, s := range l.sockets.held() {
		add(keptSocket+key, s.FD(), s.Inode())
	}
	for key, fd := range l.spare {
		if l.sockets.open[key] != nil {
			continue
		}
		if ino, err := socketInode(fd); err == nil {
			add(keptSocket+key, fd, ino)
		}
	}
	for a, c := range l.children {
		if c.ctl != nil {
			addConn(add, keptControl+a.String(), c.ctl)
		}
		if c.notify != nil {
			addConn(add, keptNotify+a.String(), c.notify)
		}
		if c.ready != nil {
			addConn(add, keptReady+a.String(), c.ready)
		}
	}
	l.keepablePrograms(add)
	return items, ids
}

// The names of what is kept begin with one of these.
const (
	keptSocket  = "socket/"
	keptControl = "control/" // handoverd's end of the child protocol
	keptNotify  = "notify/"
	keptReady   = "ready/"   // of the pipe for a newline
	keptProgram = "program/" // the file of a program, by digest
	keptCopy    = "copy/"    // a copy of it
)

// keptPrefixes are all of them.
var keptPrefixes = []string{keptSocket, keptControl, keptNotify, keptReady, keptProgram, keptCopy}

// String is the generation's name in file names and to the keeper.
func (a at) String() string { return fmt.Sprintf("%s.%d", a.Service, a.Gen) }

// addConn adds the descriptor of something that only the loop closes, so that its
// number stays valid until the loop has used it.
func addConn(add func(string, int, uint64), name string, c syscall.Conn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { add(name, int(fd), 1) }) // fails once it is closed
}

// syncKeeper gives the keeper what it has not yet, and has it drop what it need not
// hold any more. It comes after the actions of each turn, so a generation's channels are kept in the
// turn that made them, before the one that says go. It never fails the turn: without
// a keeper everything goes on as it is.
func (l *loop) syncKeeper() {
	k := &l.keep
	if k.client == nil || l.fault != nil { // a start that was refused changes nothing of what there was
		return
	}
	if k.fault != "" && !k.behind && time.Since(k.resent) > resendAfter {
		k.fault, k.resent, k.sent = "", time.Now(), map[string]uint64{}
	}
	items, ids := l.keepable()
	var gone []string
	for name := range k.sent {
		if _, still := ids[name]; !still {
			gone = append(gone, name)
		}
	}
	items = slices.DeleteFunc(items, func(it keeper.Item) bool {
		id, known := k.sent[it.Name]
		return known && id == ids[it.Name]
	})
	if len(gone) == 0 && len(items) == 0 {
		return
	}
	slices.Sort(gone)
	err := k.client.Drop(gone)
	if err == nil {
		for _, name := range gone {
			delete(k.sent, name)
		}
		err = k.client.Keep(items)
	}
	if errors.Is(err, unix.ETOOMANYREFS) {
		l.notKept(err)
		return
	}
	if err != nil {
		l.keeperLost(k.client, fmt.Errorf("it does not take what it is given: %w", err))
		return
	}
	k.sent = ids
	if k.behind {
		k.behind, k.fault = false, ""
		l.log.Info("the keeper holds everything again", "pid", k.pid)
	}
}

// notKept notes that descriptors cannot be sent now: there are more under way than
// RLIMIT_NOFILE, of all processes of this user together (unix(7)), which is no fault
// of the keeper's. What it has it holds, and the rest is sent again within tryAgain.
func (l *loop) notKept(err error) {
	k := &l.keep
	if !k.behind {
		l.log.Error("the keeper does not hold everything", "err", err)
	}
	k.behind, k.fault = true, err.Error()
}

// startKeeper starts a keeper, connects to it and gives it everything.
func (l *loop) startKeeper() {
	k := &l.keep
	if k.off != "" || k.client != nil || l.exit {
		return
	}
	if err := l.beginKeeper(); err != nil {
		l.log.Error("no keeper: what is not held by a program is lost if handoverd is killed now", "err", err)
		k.fault = err.Error()
		l.laterKeeper()
		return
	}
	_ = l.save(&l.state) // which process it is: the next handoverd may have to end it
	l.watchKeeper()
	l.syncKeeper()
}

func (l *loop) beginKeeper() error {
	k := &l.keep
	k.pidfd = -1
	pid, err := l.reaper.Start(func() (pid int, err error) {
		l.thread.Do(func() { pid, k.pidfd, err = keeper.Start(l.dir.path) })
		return pid, err
	}, nil)
	if err != nil {
		return err
	}
	_ = l.reaper.Release(pid) // reaped as soon as it ends, which its connection tells
	k.name(pid)
	if k.client, err = l.dialKeeper(); err != nil {
		l.killKeeper()
		return err
	}
	return nil
}

// dialKeeper connects to the keeper that there is.
func (l *loop) dialKeeper() (c *keeper.Client, err error) {
	if l.keep.claim == nil {
		if l.keep.claim, err = keeper.Claim(l.dir.path); err != nil {
			return nil, err
		}
	}
	cerr := control(l.keep.claim, func(fd int) error {
		c, err = keeper.Dial(l.dir.path, fd)
		return err
	})
	return c, cerr
}

// name notes which process it is.
func (k *keeping) name(pid int) {
	k.pid, k.began, k.process = pid, time.Now(), heldProcess{PID: pid}
	if started, err := proc.StartTime(pid); err == nil {
		k.process.StartTime = started
	}
}

// adoptKeeper goes on with the keeper that has just handed out what it holds: taken,
// by name. If none is wanted any more it is ended.
func (l *loop) adoptKeeper(c *keeper.Client, taken map[string]int) {
	k := &l.keep
	k.client, k.pidfd, k.began = c, -1, time.Now()
	if k.pidfd = keeper.Open(c.PID(), l.dir.path); k.pidfd >= 0 {
		k.name(c.PID())
	} else {
		l.log.Warn("the keeper of the earlier handoverd is a process that is not seen here: it ends once it holds nothing", "says", c.PID())
	}
	if k.off != "" || c.Version() != keeper.Version {
		l.log.Info("the keeper of the earlier handoverd is ended", "pid", k.pid)
		_ = c.Drop(slices.Collect(maps.Keys(taken)))
		_ = c.Close()
		k.client = nil
		l.killKeeper()
		return
	}
	l.watchKeeper()
	for name, fd := range taken {
		k.sent[name] = 1
		if strings.HasPrefix(name, keptSocket) {
			k.sent[name], _ = socketInode(fd) // 0 is no socket's: it is sent again
		}
	}
}

// watchKeeper begins to listen to a keeper that was just connected to.
func (l *loop) watchKeeper() {
	k := &l.keep
	k.sent = map[string]uint64{}
	l.readers.Add(1) // Run waits for it
	go l.hearKeeper(k.client)
}

// hearKeeper tells the loop what the keeper complains of, and its end. Run waits for
// it.
func (l *loop) hearKeeper(c *keeper.Client) {
	defer l.readers.Done()
	for {
		complaint, err := c.Wait()
		if err != nil {
			l.call(func() { l.keeperLost(c, err) })
			return
		}
		l.call(func() {
			if l.keep.client == c {
				l.keep.fault = complaint
				l.log.Error("the keeper does not hold everything", "err", complaint)
			}
		})
	}
}

// keeperLost has another keeper started in place of one that is of no use.
func (l *loop) keeperLost(c *keeper.Client, err error) {
	k := &l.keep
	if k.client != c || c == nil {
		return // of an earlier one
	}
	l.log.Warn("the keeper is lost, another one is started", "pid", k.pid, "err", err)
	_ = c.Close()
	k.client, k.sent, k.behind = nil, nil, false
	l.killKeeper()
	if time.Since(k.began) < keeperSteady {
		l.laterKeeper()
		return
	}
	k.pause = 0
	l.startKeeper()
}

// laterKeeper starts a keeper after a pause: the first time none.
func (l *loop) laterKeeper() {
	k := &l.keep
	pause := k.pause
	k.pause = min(max(2*k.pause, keeperPause), keeperLongest)
	time.AfterFunc(pause, func() { l.call(l.startKeeper) }) // does not hang after the end
}

// killKeeper ends the keeper's process.
func (l *loop) killKeeper() {
	k := &l.keep
	if k.pidfd >= 0 {
		_ = proc.SignalPidfd(k.pidfd, unix.SIGKILL)
		_ = unix.Close(k.pidfd)
	}
	k.pid, k.pidfd = 0, -1
}

// endKeeper ends the keeper with handoverd, and waits for its end: the ports are
// closed when handoverd is gone. A start that was refused leaves the keeper that it has found
// where programs still run that have its sockets: without it the next start could not bind them.
func (l *loop) endKeeper(startErr error) {
	k := &l.keep
	if k.client != nil {
		if k.pidfd < 0 { // it ends by itself then
			_ = k.client.Drop(slices.Collect(maps.Keys(k.sent)))
		}
		_ = k.client.Close()
		k.client = nil
	}
	if startErr != nil && l.strays {
		l.log.Info("the keeper of the earlier handoverd is left, since programs still run", "pid", k.pid)
		return
	}
	if k.pidfd >= 0 {
		_ = proc.SignalPidfd(k.pidfd, unix.SIGKILL)
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(k.pidfd), Events: unix.POLLIN}}, int(keeperEnd.Milliseconds()))
	}
	l.killKeeper()
	if k.claim != nil {
		_ = k.claim.Close()
	}
	if l.dir.ours() != nil {
		return
	}
	if err := keeper.Remove(l.dir.path); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		l.log.Warn("the keeper's socket was not removed", "err", err)
	}
}

// KeeperStatus is how the keeper stands.
type KeeperStatus struct {
	PID  int    `json:"pid,omitempty"`
	Off  string `json:"off,omitempty"` // why there is none
	Held int    `json:"held"`          // descriptors that it was given
	// Fault is what it could not do, "" if nothing.
	Fault string `json:"fault,omitempty"`
}

func (l *loop) keeperStatus() *KeeperStatus {
	k := &l.keep
	return &KeeperStatus{PID: k.pid, Off: k.off, Held: len(k.sent), Fault: k.fault}
}
