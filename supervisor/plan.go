package supervisor

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// maxSocketPath is the room for a path in a UNIX socket's address (unix(7)).
const maxSocketPath = 107

// ServicePlan is what a start of a service would come down to, here and now. It
// holds no arguments and no environment.
type ServicePlan struct {
	Name string `json:"name"`
	// Path is the program, found as a start would find it; Directory where it runs.
	Path      string `json:"path"`
	Directory string `json:"directory"`
	// UID is the user it runs as.
	UID int `json:"uid"`
	// DrainSignal is sent to an old generation that does not speak the child
	// protocol, or does not answer.
	DrainSignal string `json:"drain_signal"`
	// Blind says why its processes cannot be looked at from here, "" if they can.
	Blind string `json:"blind,omitempty"`
	// Sources say where its sockets would come from if handoverd were killed.
	Sources Sources `json:"sources"`
	// CheckPath is the program of its check command, "" for none.
	CheckPath string `json:"check_path,omitempty"`
}

// Plan says what a start of the services would come down to, in their order. It
// looks at the file system and the user database and runs nothing. Errors are
// *ConfigErrors, joined; the plans are of the services without one.
func (c *Config) Plan() ([]ServicePlan, error) {
	var plans []ServicePlan
	var errs []*ConfigError
	src := &source{file: c.File, lines: c.keyLines()}
	fail := func(service, key string, err error) {
		path := append([]string{"service", service}, strings.Split(key, ".")...)
		errs = append(errs, &ConfigError{File: c.File, Line: src.line(path), Key: strings.Join(path, "."), Err: err})
	}
	if path := ControlPath(c.RuntimeDir); len(path) > maxSocketPath {
		errs = append(errs, &ConfigError{
			File: c.File, Line: src.line([]string{"runtime_dir"}), Key: "runtime_dir",
			Err: fmt.Errorf("%s is %d bytes long, and the path of a socket has at most %d", path, len(path), maxSocketPath),
		})
	}
	dir := thisHost().workDir
	for _, s := range c.Services {
		spec, err := resolve(s, c.Digest, dir)
		if err != nil {
			for _, e := range AllConfigErrors(err) {
				fail(s.Name, strings.TrimPrefix(e.Key, "service."+s.Name+"."), e.Err)
			}
			continue
		}
		p := ServicePlan{
			Name: s.Name, Path: spec.Path, Directory: spec.Dir, UID: os.Geteuid(),
			DrainSignal: unix.SignalName(unix.Signal(spec.Drain)),
		}
		if spec.UID != nil {
			p.UID = int(*spec.UID)
		}
		p.Blind = proc.Blindness(p.UID)
		p.Sources = sourcesFor(p.UID, keeperOff(c))
		if len(s.Check) > 0 {
			p.CheckPath, err = executable(s.Check[0], spec.Dir, spec.Env)
			if err != nil {
				fail(s.Name, "check", err)
			}
		}
		plans = append(plans, p)
	}
	return plans, joinConfigErrors(errs)
}

// placed gives the mistakes in err that a look at the host has found, as a program that is not there, their file and line.
func (c *Config) placed(err error) error {
	if c.File == "" {
		return err
	}
	src := &source{file: c.File, lines: c.keyLines()}
	for _, e := range AllConfigErrors(err) {
		if e.File == "" {
			e.File, e.Line = c.File, src.line(strings.Split(e.Key, "."))
		}
	}
	return err
}

// keyLines reads the file again, for the lines of its keys. None are known of a
// file that is gone or has become another.
func (c *Config) keyLines() map[string]int {
	if c.File == "" {
		return nil
	}
	text, err := os.ReadFile(c.File)
	if err != nil || digest(text) != c.Digest {
		return nil
	}
	lines, _ := scanKeyLines(string(text)) // it was parsed before: not too deep
	return lines
}
