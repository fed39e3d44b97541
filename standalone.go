package handover

import (
	"fmt"
	"os"
	"time"
)

// Options are for a program that has no supervisor. The zero value is ready to use; a negative time is an error.
type Options struct {
	// UpgradeTimeout is how long the next generation may take until it calls Ready; then it is killed, and this one
	// serves on. Only that process is killed, not what it has started. 0: 30 s.
	UpgradeTimeout time.Duration
	// DrainTimeout is how long after an upgrade DrainContext lasts. 0: 15 min.
	DrainTimeout time.Duration
	// StopTimeout is how long after SIGTERM or SIGINT DrainContext lasts. 0: 25 s, below the 30 s after which many
	// platforms kill.
	StopTimeout time.Duration
	// KeepSignals leaves SIGTERM and SIGINT to the program, which then stops by itself: by a drain.Sequence with a lame duck,
	// say, whose Run gets a context of signal.NotifyContext. Draining is closed by an upgrade only. At the end call Close,
	// which removes the paths of UNIX sockets unless another generation has them.
	KeepSignals bool
	// PIDFile is written anew by each generation that is ready: the process number changes with each upgrade. Empty:
	// none.
	PIDFile string
	// Logf is told what is nobody's to return: that an upgrade has failed, or has to wait. It is called by one
	// goroutine at a time. nil: a line on standard error.
	Logf func(format string, args ...any)
}

// The defaults of Options, those of handoverd's init_grace, parent_shutdown and stop deadline.
const (
	defaultUpgradeTimeout = 30 * time.Second
	defaultDrainTimeout   = 15 * time.Minute
	defaultStopTimeout    = 25 * time.Second
)

// Standalone is [Inherit] for a program that is also run without a supervisor. Under handoverd it does what Inherit
// does, and Options mean nothing.
//
// Without any supervisor the program is its own: at SIGHUP it starts its executable anew, with the same arguments, by
// github.com/cloudflare/tableflip, and hands the sockets of Listen and ListenPacket over. A socket is handed over if
// name, network and address are the same. When the new process calls Ready, Draining is closed in this one; until then,
// and if the new one fails, this one serves. The listeners do not accept before Ready, so that a process which fails has
// taken no connection with it. Generation counts from 1.
//
// A SIGHUP before Ready, or while the generation before this one still drains, is remembered once and obeyed
// afterwards. SIGTERM and SIGINT close Draining for good; a second one ends the process. When the process that was
// started first ends, whoever has started it may think that the program has ended: a service manager needs PIDFile, or
// NotifyAccess=all (READY=1 goes with MAINPID, sd_notify(3)). That, and the time in which a crash closes the port, is what
// a supervisor is for.
//
// Under systemd socket activation the sockets are those of Inherit, SIGTERM and SIGINT close Draining, and there is no
// upgrade: systemd restarts the program while the socket waits.
//
// Call it once, early, instead of Inherit. It takes over the signals SIGTERM and SIGINT unless KeepSignals is set, and without
// socket activation SIGHUP, unless the program runs under handoverd. It works on Linux.
func Standalone(o Options) (*Child, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	if !inheritedBefore.CompareAndSwap(false, true) {
		return nil, ErrInherited
	}
	env, err := consumeEnviron()
	if err != nil {
		return nil, err
	}
	if env.ownMaster = !env.supervised; env.upgradesItself() {
		env.generation = max(1, env.next)
	}
	c, err := newChild(env)
	if err != nil || env.supervised {
		return c, err
	}
	if err := c.startSelf(o); err != nil {
		return nil, err
	}
	return c, nil
}

// setDefaults puts defaults in place of zeros.
func (o *Options) setDefaults() error {
	for _, d := range []struct {
		name  string
		value *time.Duration
		unset time.Duration
	}{
		{"UpgradeTimeout", &o.UpgradeTimeout, defaultUpgradeTimeout},
		{"DrainTimeout", &o.DrainTimeout, defaultDrainTimeout},
		{"StopTimeout", &o.StopTimeout, defaultStopTimeout},
	} {
		switch {
		case *d.value < 0:
			return fmt.Errorf("handover: Options.%s is %v: not positive", d.name, *d.value)
		case *d.value == 0:
			*d.value = d.unset
		}
	}
	if o.Logf == nil {
		o.Logf = logToStderr
	}
	return nil
}

func logToStderr(format string, args ...any) {
	// Nobody can be told that standard error is gone.
	_, _ = fmt.Fprintf(os.Stderr, "handover: "+format+"\n", args...)
}
