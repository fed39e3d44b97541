package main

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/handoverd/handover/internal/sdnotify"
	"github.com/handoverd/handover/supervisor"
)

// serviceManager reads what systemd says to a service in its environment: where it
// listens (sd_notify(3)), how often it wants a sign of life
// (sd_watchdog_enabled(3)), how many descriptors it keeps, and which it passes
// (sd_listen_fds(3)). What is wrong is said and passed over: handoverd runs without it.
//
// NOTIFY_SOCKET stays in the environment, since an upgrade of handoverd needs it
// again. The programs do not get it.
func serviceManager(getenv func(string) string, log *slog.Logger) supervisor.ServiceManager {
	m := supervisor.ServiceManager{NotifySocket: getenv("NOTIFY_SOCKET")}
	if text := getenv("WATCHDOG_USEC"); text != "" && forThisProcess(getenv("WATCHDOG_PID")) {
		usec, err := strconv.ParseUint(text, 10, 63)
		if err != nil || usec == 0 || usec > uint64(maxWatchdog.Microseconds()) {
			log.Warn("WATCHDOG_USEC is no time", "value", text)
		} else {
			m.Watchdog = time.Duration(usec) * time.Microsecond
		}
	}
	if text := getenv("FDSTORE"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			log.Warn("FDSTORE is no number", "value", text)
		} else {
			m.Store = n
		}
	}
	m.Sockets = passedSockets(getenv, log)
	return m
}

// tellNotStarted has systemctl status show why a start has failed before there was a
// Supervisor to tell it. Nobody may be there to hear it.
func tellNotStarted(getenv func(string) string, err error) {
	if socket := getenv("NOTIFY_SOCKET"); socket != "" {
		_ = sdnotify.Notify(socket, supervisor.NotStarted(err))
	}
}

// maxWatchdog is the longest that is believed: a year.
const maxWatchdog = 365 * 24 * time.Hour

// forThisProcess reports whether what a variable of that pid belongs to is meant for
// this process: "" is for whoever reads it.
func forThisProcess(pid string) bool { return pid == "" || pid == strconv.Itoa(os.Getpid()) }

// passedSockets takes the descriptors of LISTEN_FDS, and their variables out of the
// environment, so that nobody takes them again.
func passedSockets(getenv func(string) string, log *slog.Logger) []supervisor.PassedSocket {
	count, names := getenv("LISTEN_FDS"), getenv("LISTEN_FDNAMES")
	mine := getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) && ownPidfd(getenv("LISTEN_PIDFDID"))
	for _, name := range []string{"LISTEN_FDS", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // it fails for names that are none
	}
	if count == "" || !mine {
		return nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > maxPassed {
		log.Error("LISTEN_FDS is no number of descriptors: none is taken", "value", count)
		return nil
	}
	list := strings.Split(names, ":")
	var out []supervisor.PassedSocket
	for i := range n {
		name := "unknown" // what systemd calls one without a name
		if names != "" && i < len(list) {
			name = list[i]
		}
		out = append(out, supervisor.PassedSocket{Name: name, FD: firstPassed + i})
	}
	return out
}

const (
	firstPassed = 3 // SD_LISTEN_FDS_START
	maxPassed   = 1 << 16
)
