package supervisor

import (
	"fmt"

	"github.com/handoverd/handover/fdpass"
)

// Spec is all that is needed to start one generation, resolved: what the
// configuration, the file system and the user database said at the time of the
// reload. A restart uses the spec that was last committed and never looks at
// the file again. It is written to the state file, environment included.
type Spec struct {
	Config ServiceConfig `json:"config"`
	Digest string        `json:"digest"` // of the configuration file it came from
	Path   string        `json:"path"`   // what execve gets; directory symlinks resolved
	Dir    string        `json:"dir"`
	Env    []string      `json:"env"` // without what differs by generation
	UID    *uint32       `json:"uid,omitempty"`
	GID    *uint32       `json:"gid,omitempty"`
	Groups []uint32      `json:"groups,omitempty"`
	Drain  int           `json:"drain"` // signal number of the drain signal
	Keys   []SocketKey   `json:"keys,omitempty"`
}

// SocketKey ties a socket's name in a service to the socket itself: identical
// binds have identical keys and share one socket.
type SocketKey struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// socketKey is the identity of a configured socket. Port 0 asks for a port of
// its own, so two such binds are never the same socket.
func socketKey(service string, c SocketConfig) string {
	if c.Addr.Port == 0 && isInet(c.Addr.Kind) {
		return fmt.Sprintf("%s#%s/%s", c.Addr.Key(), service, c.Name)
	}
	return c.Addr.Key()
}

func isInet(k fdpass.Kind) bool {
	switch k {
	case "unix", "unixgram", "unixpacket":
		return false
	}
	return true
}
