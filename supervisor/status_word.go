package supervisor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	sigTerm = int(unix.SIGTERM)
	sigKill = int(unix.SIGKILL)

	sigKillNumber = unix.SIGKILL
)

// describeStatus says how a process ended, from its wait status (wait(2)).
func describeStatus(status uint32) string {
	ws := unix.WaitStatus(status)
	switch {
	case status == statusUnknown:
		return "ended (its exit status went to nobody: it was started by an earlier handoverd)"
	case ws.Signaled():
		core := ""
		if ws.CoreDump() {
			core = ", core dumped"
		}
		return fmt.Sprintf("killed by %s%s", unix.SignalName(ws.Signal()), core)
	case ws.Exited():
		return fmt.Sprintf("exit status %d", ws.ExitStatus())
	}
	return fmt.Sprintf("wait status %#x", status)
}

// killedBy reports whether that signal ended the process.
func killedBy(status uint32, signal int) bool {
	ws := unix.WaitStatus(status)
	return ws.Signaled() && int(ws.Signal()) == signal
}
