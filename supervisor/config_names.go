package supervisor

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// maxName is the length of a service's or socket's name: with the prefix it
// stays an environment variable and a file name everywhere.
const maxName = 63

// checkName holds names to [a-z][a-z0-9_-]{0,62}: they become environment
// variables (HANDOVER_FD_NAME), file names below runtime_dir and metric
// labels, and none of these should need quoting.
func checkName(name string) error {
	bad := strings.IndexFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && c != '-'
	})
	switch {
	case name == "":
		return fmt.Errorf("a name is empty")
	case len(name) > maxName:
		return fmt.Errorf("name of %d bytes: at most %d", len(name), maxName)
	case bad >= 0 || name[0] < 'a' || name[0] > 'z':
		return fmt.Errorf("%q is not a name: a lower-case letter, then lower-case letters, digits, _ and -", name)
	}
	return nil
}

// socketVariable is the environment variable that carries a socket's number.
func socketVariable(name string) string {
	return "HANDOVER_FD_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// signalNames are those a program can be asked to drain with. KILL and STOP
// are not among them: no program handles them. Signals the kernel sends for
// a fault or for a terminal's reader are not either.
var signalNames = []string{
	"SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGWINCH",
	"SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGURG", "SIGCONT", "SIGPWR",
	"SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGPIPE", "SIGCHLD",
}

// signalName returns the name with SIG.
func signalName(s string) (string, error) {
	name := s
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	switch {
	case name == "SIGKILL" || name == "SIGSTOP":
		return "", fmt.Errorf("%s cannot be caught, so no program drains on it", name)
	case slices.Contains(signalNames, name):
		return name, nil
	}
	hint := didYouMean(strings.ToUpper(name), signalNames)
	if isNumber(s) {
		hint = ": signals are given by name, since their numbers differ between architectures"
	}
	return "", fmt.Errorf("%q is not the name of a drain signal%s", s, hint)
}

// The dialects of this version and of later ones.
var (
	dialectsNow   = []string{"systemd", "native", "arguments", "haproxy", "nginx"}
	dialectsLater = []string{"tableflip", "server-starter", "einhorn", "multibinder"}
	// programDialects are one program's way each; at most one can be right.
	programDialects = []string{"haproxy", "nginx"}
)

// defaultDialects is chosen by the base name of the command alone: looking
// through an interpreter or a wrapper would be a guess.
func defaultDialects(command []string) []string {
	if len(command) > 0 {
		if base := filepath.Base(command[0]); slices.Contains(programDialects, base) {
			return []string{base}
		}
	}
	return []string{"systemd"}
}

// rlimitNames are those of getrlimit(2), in lower case without RLIMIT_.
var rlimitNames = []string{
	"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice",
	"nofile", "nproc", "rss", "rtprio", "rttime", "sigpending", "stack",
}

// capabilityNames are those of capabilities(7), in the order of their bits
// (include/uapi/linux/capability.h, Linux 5.9: 41 of them).
var capabilityNames = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE",
	"CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW",
	"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT",
	"CAP_SYS_PTRACE", "CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE",
	"CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE",
	"CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE",
	"CAP_MAC_ADMIN", "CAP_SYSLOG", "CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND",
	"CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
}

// ownVariables are set by handoverd for each generation; a value from the
// configuration would be replaced or, worse, believed.
var ownVariables = []string{
	"LISTEN_FDS", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDNAMES", "NOTIFY_SOCKET", "NGINX",
}

func checkVariable(name string) error {
	switch {
	case name == "" || strings.ContainsAny(name, "=\x00"):
		return fmt.Errorf("%q is not the name of an environment variable", name)
	case slices.Contains(ownVariables, name) || strings.HasPrefix(name, "HANDOVER_"):
		return fmt.Errorf("%s is set by handoverd", name)
	}
	return nil
}
