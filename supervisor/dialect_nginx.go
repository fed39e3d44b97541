package supervisor

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// nginxDialect is nginx's own hand-over variable: the numbers of inherited
// sockets, each followed by a semicolon (nginx, src/core/nginx.c,
// ngx_add_inherited_sockets). nginx closes those that its configuration does
// not name, and deletes the path of a UNIX one. SIGQUIT is its graceful stop.
type nginxDialect struct{}

func (nginxDialect) environ(h *handout) []string {
	if len(h.names) == 0 {
		return nil
	}
	var b strings.Builder
	for i := range h.names {
		_, _ = fmt.Fprintf(&b, "%d;", h.fd(i))
	}
	return []string{"NGINX=" + b.String()}
}

func (nginxDialect) listenPID() bool          { return false }
func (nginxDialect) drainSignal() unix.Signal { return unix.SIGQUIT }
