package supervisor

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// FlagOptions are the flags of a run without a file. Zero values stand for
// the defaults of the same keys of a file.
type FlagOptions struct {
	// Name of the one service, "web" when empty.
	Name           string
	Ready          string
	InitGrace      time.Duration
	ParentShutdown time.Duration
	Signal         string
	// RuntimeDir defaults to NAME below that of a file, so that two runs of
	// one user do not meet.
	RuntimeDir string
}

// FromFlags is the configuration of one service that runs command with the
// sockets listen, each NAME=ADDRESS, in their order. With a parent shutdown
// of at most twice the default kill grace, the kill grace is half of it.
// Errors are as of Parse, with the flag as Key.
func FromFlags(listen []string, o FlagOptions, command []string) (*Config, error) {
	return fromFlags(listen, o, command, thisHost())
}

func fromFlags(listen []string, o FlagOptions, command []string, host configHost) (*Config, error) {
	if o.Name == "" {
		o.Name = "web"
	}
	text, err := json.Marshal([]any{listen, o, command})
	if err != nil {
		return nil, &ConfigError{Err: err}
	}
	f := &flagDocument{
		service: map[string]any{},
		src:     &source{flags: map[string]string{}},
		prefix:  []string{"service", o.Name},
	}
	f.src.flags[toml.Key(f.prefix).String()] = "--name"
	args := make([]any, len(command))
	for i, a := range command {
		args[i] = a
	}
	f.set("-- COMMAND", args, "command")
	f.sockets(listen)
	f.policy(o)
	doc := map[string]any{"service": map[string]any{o.Name: f.service}}
	f.src.keys = append(f.src.keys, f.prefix)
	f.src.flags["runtime_dir"] = "--runtime-dir"
	if o.RuntimeDir != "" {
		doc["runtime_dir"] = o.RuntimeDir
	} else {
		doc["runtime_dir"] = filepath.Join(host.runtimeDir(), o.Name)
	}
	b := &builder{host: host, src: f.src}
	return b.build(doc, &Config{Digest: digest(text)})
}

// flagDocument writes flags as the document a file would be, so that one
// set of rules judges both.
type flagDocument struct {
	service map[string]any
	src     *source
	prefix  []string
}

// set stores a value at path below the service and remembers the flag that
// stands for it in errors.
func (f *flagDocument) set(flag string, value any, path ...string) {
	m := f.service
	for _, p := range path[:len(path)-1] {
		sub, ok := m[p].(map[string]any)
		if !ok {
			sub = map[string]any{}
			m[p] = sub
		}
		m = sub
	}
	m[path[len(path)-1]] = value
	key := append(append(toml.Key(nil), f.prefix...), path...)
	f.src.keys = append(f.src.keys, key)
	f.src.flags[key.String()] = flag
}

func (f *flagDocument) sockets(listen []string) {
	seen := map[string]bool{}
	for _, l := range listen {
		name, address, ok := strings.Cut(l, "=")
		var err error
		switch {
		case !ok:
			err = fmt.Errorf("is not NAME=ADDRESS, like http=:8080")
		case seen[name]:
			err = fmt.Errorf("the name %q is used twice", name)
		}
		if err != nil {
			f.src.errs = append(f.src.errs, &ConfigError{Key: "-l " + l, Err: err})
			continue
		}
		seen[name] = true
		f.set("-l "+l, address, "socket", name)
	}
}

func (f *flagDocument) policy(o FlagOptions) {
	if o.Ready != "" {
		f.set("--ready", o.Ready, "ready", "when")
	}
	if o.InitGrace != 0 {
		f.set("--init-grace", o.InitGrace.String(), "ready", "init_grace")
	}
	if o.Signal != "" {
		f.set("--signal", o.Signal, "retire", "signal")
	}
	if d := o.ParentShutdown; d != 0 {
		f.set("--parent-shutdown", d.String(), "retire", "parent_shutdown")
		if d > 0 && d <= 2*defaultKillGrace {
			f.set("--parent-shutdown", (d / 2).String(), "retire", "kill_grace")
		}
	}
}
