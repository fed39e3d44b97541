package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/supervisor"
)

const stopHelp = `Stop every service, and then handoverd: what is in flight is finished inside each service's
stop.deadline. A stop that is under way is ended at once by a second one, as by a second SIGTERM.

With --within the stop ends by then, where that is sooner than configured: lame duck, hold, drain
and kill grace each get the same share of what they have. It is for a short notice, as of a spot
instance, and also shortens a stop that is under way instead of ending it.

Exit codes:
  0  the stop has begun; with --wait: handoverd is gone
  2  wrong arguments
  5  handoverd cannot be reached

What the stop had to cut off is told by the exit code of handoverd run: 3.`

func stopCommand(e *env) *cobra.Command {
	var w where
	var o stopFlags
	cmd := &cobra.Command{
		Use:   "stop [-c FILE | --runtime-dir DIR | --name NAME] [--now | --within DURATION] [--wait]",
		Short: "Stop the services and handoverd",
		Long:  stopHelp,
		Example: `  handoverd stop --wait
  handoverd stop --within 10s --wait
  handoverd stop --now`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("within") && (o.within <= 0 || o.now) {
				return usage(errors.New("--within takes a duration longer than 0, and not --now as well"))
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			return stop(cmd.Context(), e, c, o)
		},
	}
	w.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.now, "now", false, "kill what is running: requests in flight are cut")
	f.DurationVar(&o.within, "within", 0, "the notice that is left: scale the stop down to end by then")
	f.BoolVar(&o.wait, "wait", false, "wait until handoverd is gone")
	f.BoolVar(&o.asJSON, "json", false, "print the pid of handoverd, and whether it is gone, as JSON")
	return cmd
}

type stopFlags struct {
	now, wait, asJSON bool
	within            time.Duration
}

func stop(ctx context.Context, e *env, c *client, o stopFlags) error {
	st, err := c.status(ctx)
	if err != nil {
		return err
	}
	gone := func() error { return nil }
	if o.wait {
		// Before the stop, so that it cannot be a later process; and asked of the kernel, since the number in the status
		// is of handoverd's own pid namespace: from outside of a container it is somebody else's.
		l, err := listenerOf(ctx, c.path)
		if err != nil {
			return fmt.Errorf("--wait: %w", err)
		}
		defer l.close()
		gone = l.wait
	}
	query := url.Values{}
	if o.now {
		query.Set("now", "1")
	}
	if o.within > 0 {
		query.Set("within", o.within.String())
	}
	ctxStop, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	res, err := c.do(ctxStop, http.MethodPost, "/v1/stop", query)
	switch {
	case err == nil:
		_ = res.Body.Close()
	case !errors.Is(err, io.EOF): // it may be gone before it could answer
		return err
	}
	if err := gone(); err != nil {
		return err
	}
	if o.asJSON {
		return writeJSON(e.stdout, struct {
			PID  int  `json:"pid"`
			Gone bool `json:"gone"`
		}{st.PID, o.wait})
	}
	text := "stopping"
	if o.wait {
		text = "stopped"
	}
	_, err = fmt.Fprintf(e.stdout, "handoverd %d: %s%s\n", st.PID, text, stopping(st, o))
	return err
}

// stopping says what a second stop did.
func stopping(st *supervisor.Status, o stopFlags) string {
	switch {
	case st.Stopping && o.within > 0:
		return fmt.Sprintf(" within %s: a stop was under way", o.within)
	case st.Stopping:
		return " at once: a stop was under way"
	}
	return ""
}
