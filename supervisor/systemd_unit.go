package supervisor

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/handoverd/handover/internal/proc"
	"github.com/handoverd/handover/internal/sdnotify"
	"github.com/handoverd/handover/internal/shim"
)

// askManagerLimit is how long an answer of systemctl may take.
const askManagerLimit = time.Second

// errNoUnit says that this process is in no service of systemd.
var errNoUnit = errors.New("handoverd runs in no unit of systemd (its control group is of none)")

// askUnit has systemctl answer about the unit that handoverd runs in. It is called
// beside the loop, or before its first turn.
func (l *loop) askUnit(verb string, args ...string) (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	unit, user := sdnotify.UnitOf(string(text))
	if unit == "" {
		return "", errNoUnit
	}
	argv := append([]string{"systemctl", verb}, args...)
	if user {
		argv = append([]string{"systemctl", "--user", verb}, args...)
	}
	if verb != "list-jobs" { // its argument is a pattern, and a name may hold what is special in one
		argv = append(argv, "--", unit)
	}
	token := rand.Text()
	env := setenv(inherited(), proc.TokenVariable, token)
	path, err := executable(argv[0], "/", env)
	if err != nil {
		return "", err
	}
	out, err := l.runBeside(l.ctx, &shim.Spec{Path: path, Argv: argv, Env: env, Dir: "/"}, nil, token, askManagerLimit)
	if err != nil {
		return "", fmt.Errorf("%s: %w%s", path, err, lastLines(out, hookLines))
	}
	if verb == "list-jobs" {
		return sdnotify.JobOf(string(out), unit), nil
	}
	return string(out), nil
}

// askedToStop takes a request to stop. Where the store keeps the sockets systemd is
// asked first whether it is going to start handoverd again: then they live on, and
// who waits in their queues waits for that start. Else they are closed as ever, when
// their queues are empty. That takes some 20 ms.
func (l *loop) askedToStop(e evStop) {
	if l.state.Stop != nil || !l.store.serves() {
		l.queue(e)
		return
	}
	e.Keeps = true
	if e.Now || l.stopAsked { // it is not waited for the answer
		l.queue(e)
		return
	}
	l.stopAsked = true
	l.up.flight.begin() // an upgrade of handoverd would forget that somebody has asked
	l.readers.Add(1)    // Run waits for it
	go l.askWhetherKept(e)
}

// askWhetherKept begins the stop once systemd has said what comes after it. An answer
// that cannot be had leaves the sockets open. Run waits for it.
func (l *loop) askWhetherKept(e evStop) {
	defer l.readers.Done()
	defer l.up.flight.end(l)
	restart := ""
	job, err := l.askUnit("list-jobs", "--plain", "--no-legend", "--full")
	if err == nil && job == "" {
		var text string
		text, err = l.askUnit("show", "--property=Restart")
		restart = sdnotify.Property(text, "Restart")
	}
	if err == nil {
		e.Keeps = !sdnotify.ClosesWith(job, restart)
	}
	l.call(func() {
		if err != nil {
			l.log.Warn("systemd does not say whether a start follows: the sockets are left open", "err", err)
		}
		if l.state.Stop == nil { // else a second request has begun it meanwhile
			l.queue(e)
		}
	})
}
