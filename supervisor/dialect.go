package supervisor

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/wire"
)

// firstFD is the number of the first socket that a program gets.
const firstFD = 3

// handout is what one generation is given, as its dialects see it.
type handout struct {
	service    string
	generation int
	token      string
	names      []string // sockets in config order: names[i] is descriptor firstFD+i
	controlFD  int      // our end of the child protocol
	notify     string   // path of the notify socket
	readyFD    int      // what a newline is awaited on; 0: none is
	own        []ownSocket
}

// fd is the descriptor number of socket i.
func (h *handout) fd(i int) int { return firstFD + i }

// dialect is one way in which programs expect to be given sockets.
type dialect interface {
	// environ is what the program finds in its environment.
	environ(h *handout) []string
	// listenPID reports whether LISTEN_PID has to be set, which only the
	// process itself can do.
	listenPID() bool
	// drainSignal is the program's own, 0 for none of its own.
	drainSignal() unix.Signal
}

// dialectByName is the list of all, by the name in the configuration. native and
// arguments are always on.
var dialectByName = map[string]dialect{
	"systemd":   systemdDialect{},
	"native":    nativeDialect{},
	"arguments": argumentsDialect{},
	"haproxy":   haproxyDialect{},
	"nginx":     nginxDialect{},
}

// speaks lists the dialects of a service: its own and those always on.
func speaks(names []string) []dialect {
	out := []dialect{nativeDialect{}}
	for _, n := range names {
		if d := dialectByName[n]; d != nil && n != "native" && n != "arguments" {
			out = append(out, d)
		}
	}
	return out
}

// drainSignal is the first that a dialect names, else SIGTERM.
func drainSignal(names []string) unix.Signal {
	for _, d := range speaks(names) {
		if sig := d.drainSignal(); sig != 0 {
			return sig
		}
	}
	return unix.SIGTERM
}

// variable is a socket's name as part of an environment variable's.
func variable(name string) string {
	return wire.EnvSocketPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// expand replaces $HANDOVER_X and ${HANDOVER_X} by what vars says of them, and
// leaves every other dollar as it is.
func expand(arg string, vars map[string]string) string {
	var out strings.Builder
	for {
		i := strings.IndexByte(arg, '$')
		if i < 0 {
			return out.String() + arg
		}
		out.WriteString(arg[:i])
		name, size := variableAt(arg[i:])
		if v, ok := vars[name]; ok && size > 0 {
			out.WriteString(v)
		} else {
			size = max(size, 1)
			out.WriteString(arg[i : i+size])
		}
		arg = arg[i+size:]
	}
}

// variableAt reads the reference that s begins with: its name and its length.
func variableAt(s string) (string, int) {
	if strings.HasPrefix(s, "${") {
		if end := strings.IndexByte(s, '}'); end > 0 {
			return s[2:end], end + 1
		}
		return "", 0
	}
	n := 1
	for n < len(s) && (s[n] == '_' || s[n] >= 'A' && s[n] <= 'Z' || s[n] >= 'a' && s[n] <= 'z' || s[n] >= '0' && s[n] <= '9') {
		n++
	}
	return s[1:n], n
}

// vars splits an environment into names and values.
func vars(environ []string) map[string]string {
	m := make(map[string]string, len(environ))
	for _, e := range environ {
		if k, v, ok := strings.Cut(e, "="); ok && strings.HasPrefix(k, "HANDOVER_") {
			m[k] = v
		}
	}
	return m
}

// nativeDialect is the child protocol (internal/wire) and the numbers of the
// sockets, for whoever reads them.
type nativeDialect struct{}

func (nativeDialect) environ(h *handout) []string {
	env := []string{
		wire.EnvFD + "=" + strconv.Itoa(h.controlFD),
		wire.EnvGeneration + "=" + strconv.Itoa(h.generation),
		wire.EnvService + "=" + h.service,
		wire.EnvToken + "=" + h.token,
	}
	for i, name := range h.names {
		env = append(env, fmt.Sprintf("%s=%d", variable(name), h.fd(i)))
	}
	if h.readyFD != 0 {
		env = append(env, fmt.Sprintf("%s=%d", envReadyFD, h.readyFD))
	}
	var own []string
	for _, s := range h.own {
		own = append(own, s.name)
		env = append(env, envAddressPrefix+strings.TrimPrefix(variable(s.name), wire.EnvSocketPrefix)+"="+s.address)
	}
	if len(own) > 0 {
		env = append(env, wire.EnvPerGeneration+"="+strings.Join(own, ":"))
	}
	return env
}

// What the native dialect says beside what package wire needs.
const (
	// envReadyFD is the number of the descriptor on which a newline is awaited.
	envReadyFD = "HANDOVER_READY_FD"
	// envAddressPrefix precedes the name of a socket that is this generation's
	// alone: where a client on this host finds it.
	envAddressPrefix = "HANDOVER_ADDRESS_"
)

func (nativeDialect) listenPID() bool          { return false }
func (nativeDialect) drainSignal() unix.Signal { return 0 }

// argumentsDialect is the expansion in the command, which spawn does for all.
type argumentsDialect struct{}

func (argumentsDialect) environ(*handout) []string { return nil }
func (argumentsDialect) listenPID() bool           { return false }
func (argumentsDialect) drainSignal() unix.Signal  { return 0 }
