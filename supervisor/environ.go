package supervisor

import (
	"os"
	"slices"
	"strings"
)

// scrubbed are the variables by which an outer supervisor, or a program's own
// hand-over, speaks to its child. A generation that inherited them would take
// descriptors that are not its own (systemd/systemd#36899) or tell the wrong
// parent that it is ready.
var scrubbed = []string{
	"LISTEN_FDS", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDNAMES", "LISTEN_FDS_FIRST_FD",
	"NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "FDSTORE", "MAINPID", "MAINPIDFDID",
	"NGINX", "ANGIE", "RESTART_EPOCH", "HAPROXY_PROCESSES", "TABLEFLIP_HAS_PARENT_7DIU3",
	"SERVER_STARTER_PORT", "SERVER_STARTER_GENERATION", "MULTIBINDER_SOCK", "UNICORN_FD",
	"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID",
}

var scrubbedPrefixes = []string{
	"HANDOVER_", "HANDOVERD_", "GUNICORN_", "PUMA_INHERIT_", "HAPROXY_MWORKER", "EINHORN_", "ECDYSIS_", "OXY_",
}

// scrub returns what a generation may inherit of an environment.
func scrub(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(e string) bool {
		name, _, ok := strings.Cut(e, "=")
		return !ok || slices.Contains(scrubbed, name) ||
			slices.ContainsFunc(scrubbedPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
}

// inherited is handoverd's own environment without what is not for others.
func inherited() []string { return scrub(os.Environ()) }

// setenv sets a variable in an environment, replacing what it was.
func setenv(environ []string, name, value string) []string {
	environ = slices.DeleteFunc(environ, func(e string) bool { return strings.HasPrefix(e, name+"=") })
	return append(environ, name+"="+value)
}

// xdgRuntimeDir is where a user's runtime files belong (XDG base directory
// specification), or "".
func xdgRuntimeDir() string { return os.Getenv("XDG_RUNTIME_DIR") }
