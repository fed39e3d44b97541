package supervisor

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

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
	// CheckPath is the program of its check command, "" for none.
	CheckPath string `json:"check_path,omitempty"`
}

// Plan says what a start of the services would come down to, in their order. It
// looks at the file system and the user database and runs nothing. Errors are
// *ConfigErrors, joined; the plans are of the services without one.
func (c *Config) Plan() ([]ServicePlan, error) {
	var plans []ServicePlan
	var errs []*ConfigError
	dir := thisHost().workDir
	for _, s := range c.Services {
		spec, err := resolve(s, c.Digest, dir)
		if err != nil {
			errs = append(errs, &ConfigError{File: c.File, Err: err})
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
		if len(s.Check) > 0 {
			p.CheckPath, err = executable(s.Check[0], spec.Dir, spec.Env)
			if err != nil {
				errs = append(errs, &ConfigError{File: c.File, Key: "service." + s.Name + ".check", Err: err})
			}
		}
		plans = append(plans, p)
	}
	return plans, joinConfigErrors(errs)
}
