package supervisor

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// systemdDialect is socket activation and readiness as systemd does it:
// sd_listen_fds(3), sd_notify(3).
type systemdDialect struct{}

func (systemdDialect) environ(h *handout) []string {
	env := []string{"NOTIFY_SOCKET=" + h.notify}
	if len(h.names) > 0 {
		env = append(env,
			"LISTEN_FDS="+strconv.Itoa(len(h.names)),
			"LISTEN_FDNAMES="+strings.Join(h.names, ":"))
	}
	return env
}

func (systemdDialect) listenPID() bool          { return true }
func (systemdDialect) drainSignal() unix.Signal { return 0 }
