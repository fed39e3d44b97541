package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/supervisor"
)

func eventsCommand(e *env) *cobra.Command {
	var w where
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "events [-c FILE | --runtime-dir DIR | --name NAME] [--json]",
		Short: "Print what happens, a line each, until handoverd ends",
		Long: `Print what happens from now on, a line each: every change of a generation's phase,
every warning, and how each reload ended. It ends when handoverd does, and goes on over an
upgrade of handoverd itself.

Exit codes: 0 handoverd has ended, 2 wrong arguments, 5 handoverd cannot be reached.`,
		Example: `  handoverd events
  handoverd events --json | jq 'select(.to == "serving")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := w.client()
			if err != nil {
				return err
			}
			return c.follow(cmd.Context(), func(ev *supervisor.Event) error {
				if asJSON {
					return json.NewEncoder(e.stdout).Encode(ev)
				}
				_, err := fmt.Fprintf(e.stdout, "%s  %s\n", ev.Time.Local().Format("2006-01-02 15:04:05.000"), eventText(ev))
				return err
			})
		},
	}
	w.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "one JSON object a line")
	return cmd
}

// follow calls each with every event until handoverd ends. Over an upgrade of handoverd none is left out.
func (c *client) follow(ctx context.Context, each func(*supervisor.Event) error) error {
	const path = "/v1/events"
	res, err := c.do(ctx, http.MethodGet, path, nil)
	query := url.Values{}
	for err == nil && res != nil {
		err = c.lines(ctx, res, func(l streamLine) (bool, error) {
			if l.Seq > 0 {
				query.Set("after", strconv.Itoa(l.Seq))
			}
			return true, each(&l.Event)
		})
		if err == nil {
			res, err = c.again(ctx, process(res), path, query)
		}
	}
	return err
}

// generationName is how a generation is called everywhere: service and number.
func generationName(service string, n int) string {
	if n == 0 {
		return service
	}
	return fmt.Sprintf("%s.%d", service, n)
}

// eventText is an event in one line.
func eventText(e *supervisor.Event) string {
	name := generationName(e.Service, e.Generation)
	switch e.Kind {
	case "transition":
		var b strings.Builder
		fmt.Fprintf(&b, "%s: %s", name, e.To)
		if e.Why != "" {
			fmt.Fprintf(&b, ", %s", e.Why)
		}
		if e.PID != 0 {
			fmt.Fprintf(&b, " (pid %d)", e.PID)
		}
		return b.String()
	case "note":
		if e.Level == "warn" || e.Level == "error" {
			return name + ": " + e.Level + ": " + e.Text
		}
		return name + ": " + e.Text
	case "reload":
		what := "reload"
		if e.Report.First {
			what = "start"
		}
		var parts []string
		for _, r := range e.Report.Results {
			parts = append(parts, resultText(&r))
		}
		return what + ": " + strings.Join(parts, "; ")
	case "upgrade":
		return upgradeText(e.Upgrade)
	case "lost":
		return fmt.Sprintf("%d events lost: this reader is too slow", e.Lost)
	}
	return e.Kind
}
