package supervisor

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"unicode/utf8"

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
	Env    environ       `json:"env"` // without what differs by generation
	UID    *uint32       `json:"uid,omitempty"`
	GID    *uint32       `json:"gid,omitempty"`
	Groups []uint32      `json:"groups,omitempty"`
	Drain  int           `json:"drain"` // signal number of the drain signal
	Keys   []SocketKey   `json:"keys,omitempty"`
}

// SocketKey ties a socket's name in a service to the socket itself: identical
// binds have identical keys and share one socket. One that is bound anew for each
// generation (Own) has a key that each generation's number completes: see at.
type SocketKey struct {
	Name string `json:"name"`
	Key  string `json:"key"`
	Own  bool   `json:"own,omitempty"`
}

// socketKey is the identity of a configured socket. Port 0 asks for a port of
// its own, so two such binds are never the same socket, and neither are two that
// are bound for each generation.
func socketKey(service string, c SocketConfig) string {
	if c.PerGeneration {
		return fmt.Sprintf("%s#%s/%s", c.Addr.Key(), service, c.Name)
	}
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

// environ is a list of NAME=value. An environment is bytes, which JSON strings
// are not: encoding/json would replace what is no UTF-8, and a restart would get
// another value than the generation before it. Such an entry is written as
// {"base64": "…"}.
type environ []string

type encodedEntry struct {
	Base64 string `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (e environ) MarshalJSON() ([]byte, error) {
	out := make([]any, len(e))
	for i, s := range e {
		if utf8.ValidString(s) {
			out[i] = s
		} else {
			out[i] = encodedEntry{base64.StdEncoding.EncodeToString([]byte(s))}
		}
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *environ) UnmarshalJSON(b []byte) error {
	var raw []json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return err
	}
	*e = make(environ, len(raw))
	for i, r := range raw {
		if json.Unmarshal(r, &(*e)[i]) == nil {
			continue
		}
		var c encodedEntry
		if err := json.Unmarshal(r, &c); err != nil {
			return fmt.Errorf("environment entry %d: %w", i, err)
		}
		v, err := base64.StdEncoding.DecodeString(c.Base64)
		if err != nil {
			return fmt.Errorf("environment entry %d: %w", i, err)
		}
		(*e)[i] = string(v)
	}
	return nil
}

// owner is who the program runs as, as chown(2) has it: -1 for no change.
func (s *Spec) owner() (uid, gid int) {
	if s.UID == nil {
		return -1, -1
	}
	return int(*s.UID), int(*s.GID)
}
