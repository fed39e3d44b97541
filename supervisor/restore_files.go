package supervisor

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// endBesides ends the checks, probes and hooks that a handoverd that was killed has left running.
func (l *loop) endBesides() {
	open := map[int]int{} // pidfds by pid
	defer func() {
		for _, fd := range open {
			_ = unix.Close(fd)
		}
	}()
	pids := besides(l.dir)
	for _, pid := range pids {
		if fd, err := proc.OpenPidfd(pid); err == nil {
			open[pid] = fd
		}
	}
	if len(open) == 0 {
		return
	}
	l.log.Info("checks, probes and hooks of the earlier handoverd are ended", "pids", pids)
	for _, pid := range besides(l.dir) { // looked at again: what was opened is what has the variable
		if fd, ok := open[pid]; ok {
			if err := proc.SignalPidfd(fd, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				l.log.Error("not ended", "pid", pid, "err", err)
			}
		}
	}
}

// sweepFiles removes what generations have left below the runtime directory that are gone, and no longer in
// the state: an earlier handoverd wrote that, and was killed before it had removed them. What they had
// written is passed on first. It is called when everything that lives has been adopted.
func (l *loop) sweepFiles() {
	for _, name := range filesIn(l.dir.file("notify")) {
		if a, ok := parseAt(name); ok && l.children[a] == nil {
			// One that stays is in nobody's way: its number is not used again.
			_ = os.Remove(l.dir.file("notify", name))
		}
	}
	for _, name := range filesIn(l.dir.file("exe")) {
		if a, ok := parseAt(name); ok && l.children[a] == nil {
			_ = os.RemoveAll(l.dir.file("exe", name))
		}
	}
	for _, name := range filesIn(l.dir.file("log")) {
		if strings.HasPrefix(name, besidePrefix) { // of a check or a probe, whose outcome nobody waits for any more
			_ = os.Remove(l.dir.file("log", name))
			continue
		}
		a, ok := parseAt(strings.TrimSuffix(name, markSuffix))
		if !ok || l.children[a] != nil {
			continue
		}
		if strings.HasSuffix(name, markSuffix) {
			// Its file comes before it, so that either both have gone by now or it was left alone.
			_ = os.Remove(l.dir.file("log", name))
			continue
		}
		if err := l.output.resume(a, &Spec{}); err != nil {
			l.log.Warn("its last output is lost", "service", a.Service, "gen", a.Gen, "err", err)
			_ = os.Remove(l.dir.file("log", name))
		}
		l.output.end(a)
	}
}

// filesIn are the names in a directory, in order.
func filesIn(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // made at each start, so that it is empty at worst
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// parseAt reads what at.String has written.
func parseAt(name string) (at, bool) {
	service, number, ok := strings.Cut(name, ".")
	n, err := strconv.Atoi(number)
	return at{service, n}, ok && err == nil && n > 0 && service != ""
}
