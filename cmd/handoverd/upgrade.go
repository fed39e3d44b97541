package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/supervisor"
)

const upgradeHelp = `Have another binary of handoverd take over the one that runs: in the same process, so with the
same pid, the same children and the same sockets. Nothing is started anew and nothing is closed.

First the new binary is tried: as a child it does all of its taking over, with copies of what the
running one has, up to where it would change something. Only if it says ok, and nothing is under
way that would be cut (a reload, a hook), it is executed in place of the running one. If it fails
before its first turn, the running one is executed again, with everything that it had.

Without --binary it is the file that handoverd was started from, as it is now: after a package was
upgraded, the new one. A configuration that was edited meanwhile is then reloaded, as by SIGHUP.
The command ends when the new one has answered. SIGUSR2 does the same, without an answer.

It has to be the program itself: a script that would run it is refused. A SIGTERM in the milliseconds
of the execution ends handoverd as SIGKILL would: its programs serve on, and the next start takes over.

Exit codes:
  0  the new binary runs, with the same pid
  1  refused or failed: the one that ran goes on as it was
  2  wrong arguments
  3  busy: a reload, a start or another upgrade is under way
  5  handoverd cannot be reached, or ended meanwhile
  6  --timeout is over: the upgrade goes on`

// backAfter is how long the new binary may take to answer.
const backAfter = time.Minute

type upgradeFlags struct {
	binary          string
	within, timeout time.Duration
	asJSON          bool
}

func upgradeCommand(e *env) *cobra.Command {
	var w where
	var o upgradeFlags
	cmd := &cobra.Command{
		Use:   "upgrade [-c FILE | --runtime-dir DIR | --name NAME] [--binary PATH]",
		Short: "Upgrade handoverd itself, in place, and wait for the outcome",
		Long:  upgradeHelp,
		Example: `  handoverd upgrade
  handoverd upgrade --binary /usr/local/bin/handoverd-1.3`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.timeout < 0 || o.within < 0 {
				return usage(errors.New("a duration is negative"))
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			if o.binary != "" {
				if o.binary, err = filepath.Abs(o.binary); err != nil {
					return err
				}
			}
			return upgrade(cmd.Context(), e, c, o)
		},
	}
	w.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.binary, "binary", "", "the new binary (default: the file that handoverd was started from)")
	f.DurationVar(&o.within, "within", 0, fmt.Sprintf("how long it may take when it is tried (default %s)", supervisor.PreflightLimit))
	f.DurationVar(&o.timeout, "timeout", 0, "how long to wait for the outcome (default: as long as it takes)")
	f.BoolVar(&o.asJSON, "json", false, "print the outcome as JSON")
	return cmd
}

// upgradeOutcome is what --json prints.
type upgradeOutcome struct {
	Done    bool   `json:"done"`
	PID     int    `json:"pid"`
	Version string `json:"version"`
	Before  string `json:"version_before"`
	Fault   string `json:"fault,omitempty"`
}

func upgrade(ctx context.Context, e *env, c *client, o upgradeFlags) error {
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	before, err := c.status(ctx)
	if err != nil {
		return err
	}
	out := upgradeOutcome{PID: before.PID, Before: before.Version, Version: before.Version}
	var after *supervisor.Status
	id, err := askUpgrade(ctx, e, c, o)
	if err == nil {
		after, err = c.upgraded(ctx, id)
	}
	var refused *apiError
	switch {
	case errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil:
		fmt.Fprintf(e.stderr, "handoverd: no outcome within %s: the upgrade goes on, see handoverd status\n", o.timeout)
		return exitCode(exitTimeout)
	case errors.As(err, &refused) && refused.Code == "busy":
		fmt.Fprintf(e.stderr, "handoverd: %s\n", refused.ControlError.Error)
		return exitCode(exitBusy)
	case errors.As(err, &refused):
		out.Fault = refused.ControlError.Error
	case err != nil:
		return err
	case after.PID != before.PID:
		return fmt.Errorf("handoverd has pid %d now and had %d: it was not upgraded but started anew", after.PID, before.PID)
	default:
		out.Done, out.Version, out.Fault = after.Upgrade.Done, after.Version, after.Upgrade.Fault
	}
	if o.asJSON {
		if err := writeJSON(e.stdout, out); err != nil {
			return err
		}
	}
	switch {
	case !out.Done:
		fmt.Fprintf(e.stderr, "handoverd: not upgraded: %s\n", out.Fault)
		return exitCode(exitFailed)
	case !o.asJSON:
		fmt.Fprintf(e.stdout, "handoverd %s runs, pid %d; before: %s\n", out.Version, out.PID, out.Before)
	}
	return nil
}

// askUpgrade asks for an upgrade and returns its number, once the handoverd that was
// asked is no more.
func askUpgrade(ctx context.Context, e *env, c *client, o upgradeFlags) (id int, err error) {
	query := url.Values{}
	if o.binary != "" {
		query.Set("binary", o.binary)
	}
	if o.within > 0 {
		query.Set("within", o.within.String())
	}
	err = c.stream(ctx, http.MethodPost, "/v1/upgrade", query, func(l streamLine) (bool, error) {
		if u := l.Upgrade; u != nil && u.Stage != "" {
			id = u.ID
			if l.Kind != "taken" {
				fmt.Fprintln(e.stderr, eventText(&l.Event))
			}
		}
		return true, nil
	})
	if err == nil && id == 0 {
		err = &reachError{c.path, errors.New("handoverd ended before the upgrade began")}
	}
	return id, err
}

// upgraded waits until an upgrade has ended. Who connects while the new binary begins
// waits in the queue of the control socket, which stays open.
func (c *client) upgraded(ctx context.Context, id int) (*supervisor.Status, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, backAfter, &reachError{c.path, errors.New("the new one does not answer")})
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		st, err := c.status(ctx)
		var cannot *reachError
		switch {
		case err != nil && (!errors.As(err, &cannot) || gone(err)):
			return nil, err
		case err == nil && st.Upgrade != nil && st.Upgrade.ID >= id && st.Upgrade.Stage == "":
			return st, nil
		case err == nil && st.Upgrade == nil:
			return nil, &reachError{c.path, errors.New("it was started anew meanwhile")}
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// gone reports whether nobody has the control socket any more.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}

// upgradeText says how far an upgrade of handoverd itself has got.
func upgradeText(u *supervisor.UpgradeStatus) string {
	text := fmt.Sprintf("upgrade %d of handoverd: ", u.ID)
	switch {
	case u.Done:
		return text + "done, this is " + u.To
	case u.Fault != "":
		return text + "failed: " + u.Fault
	case u.To != "":
		return text + u.Stage + ", to " + u.To
	}
	return text + u.Stage
}
