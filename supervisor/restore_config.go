package supervisor

import (
	"github.com/handoverd/handover/internal/proc"
)

// A configuration that cannot be used refuses a reload and changes nothing. It is the same when handoverd is killed
// while the file is so: what runs is taken over, by the state, and nothing else is started until the file is mended.

// takesOver is what is needed of a configuration that cannot be used; nil where nothing has been left that could be
// taken over. It looks without the lock: Run finds out what is there.
func (o *Options) takesOver() *Config {
	if o.LoadTop == nil || o.Self.Handed != nil {
		return nil
	}
	cfg, err := o.LoadTop()
	if err != nil || !leftRunning(cfg.RuntimeDir) {
		return nil
	}
	return cfg
}

// leftRunning reports whether something lives that a state in the directory names.
func leftRunning(dir string) bool {
	d := &runtimeDir{path: dir}
	b, err := readRegular(d.file("state.json"), maxState)
	if err != nil {
		return false
	}
	s, err := decodeState(b)
	if err != nil {
		return false
	}
	boot, bootErr := proc.BootID()
	pidns, nsErr := proc.PIDNamespace()
	if bootErr != nil || nsErr != nil || s.BootID != boot || s.Held.PIDNS != pidns {
		return false
	}
	lives := func(p heldProcess) bool {
		now, err := proc.StartTime(p.PID)
		return p.PID != 0 && err == nil && now == p.StartTime
	}
	for _, svc := range s.Services {
		for _, g := range svc.Generations {
			if !g.Exited && lives(heldProcess{g.PID, g.StartTime}) {
				return true
			}
		}
	}
	return len(s.Order) > 0 && len(s.Held.Sockets) > 0 && lives(s.Held.Keeper)
}
