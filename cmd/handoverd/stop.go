package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/supervisor"
)

const stopHelp = `Stop every service, and then handoverd: what is in flight is finished inside each service's
stop.deadline. A stop that is under way is ended at once by a second one, as by a second SIGTERM.

Exit codes:
  0  the stop has begun; with --wait: handoverd is gone
  2  wrong arguments
  5  handoverd cannot be reached

What the stop had to cut off is told by the exit code of handoverd run: 3.`

func stopCommand(e *env) *cobra.Command {
	var w where
	var now, wait, asJSON bool
	cmd := &cobra.Command{
		Use:   "stop [-c FILE | --runtime-dir DIR | --name NAME] [--now] [--wait]",
		Short: "Stop the services and handoverd",
		Long:  stopHelp,
		Example: `  handoverd stop --wait
  handoverd stop --now`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := w.client()
			if err != nil {
				return err
			}
			return stop(cmd.Context(), e, c, now, wait, asJSON)
		},
	}
	w.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&now, "now", false, "kill what is running: requests in flight are cut")
	f.BoolVar(&wait, "wait", false, "wait until handoverd is gone")
	f.BoolVar(&asJSON, "json", false, "print the pid of handoverd, and whether it is gone, as JSON")
	return cmd
}

func stop(ctx context.Context, e *env, c *client, now, wait, asJSON bool) error {
	st, err := c.status(ctx)
	if err != nil {
		return err
	}
	gone := func() error { return nil }
	if wait {
		// The pidfd is taken before the stop, so that it cannot be of a later process.
		if gone, err = watchGone(st.PID); err != nil {
			return err
		}
	}
	query := url.Values{}
	if now {
		query.Set("now", "1")
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
	if asJSON {
		return writeJSON(e.stdout, struct {
			PID  int  `json:"pid"`
			Gone bool `json:"gone"`
		}{st.PID, wait})
	}
	text := "stopping"
	if wait {
		text = "stopped"
	}
	_, err = fmt.Fprintf(e.stdout, "handoverd %d: %s%s\n", st.PID, text, stopping(st))
	return err
}

// stopping says what a second stop did.
func stopping(st *supervisor.Status) string {
	if st.Stopping {
		return " at once: a stop was under way"
	}
	return ""
}
