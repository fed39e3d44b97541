package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/supervisor"
)

const lameDuckHelp = `Tell the routing layer to go elsewhere while the services, or those named, serve on: /ready
answers 503, what stop.announce says is done, and programs that speak the child protocol are
told. The command waits until the loop of stop.lame_duck has ended: its timer, the probes that
were seen to fail, or the balancer that was asked. Then nothing new should come, and the stop that
follows waits no more. It may be given again: it joins what is under way, and returns at once
where that is over. A reload and a restart work meanwhile, and do not end it.

With --off they are back: /ready is 200 again, and what was announced is taken back. A program
that was told over the child protocol cannot be told otherwise, and goes on telling its clients to
go elsewhere: a reload replaces it by one that was not told.

It needs no shell, so it can be the preStop hook of a container:
  lifecycle: { preStop: { exec: { command: ["/handoverd", "lame-duck"] } } }

Exit codes:
  0  the wait was ended by its loop; with --off: they are back
  1  failed: no such service, or with --off: a stop is under way
  2  wrong arguments
  4  the wait was ended by its max: whether the routing layer has noticed is not known; or it
     was called off meanwhile, or cut short by a stop at once
  5  handoverd cannot be reached, or ended meanwhile`

// exitUnacknowledged: a lame duck whose loop did not end it.
const exitUnacknowledged = 4

func lameDuckCommand(e *env) *cobra.Command {
	var w where
	var off, asJSON bool
	cmd := &cobra.Command{
		Use:   "lame-duck [-c FILE | --runtime-dir DIR | --name NAME] [--off] [SERVICE…]",
		Short: "Serve on, but tell the routing layer to go elsewhere, and wait until it has",
		Long:  lameDuckHelp,
		Example: `  handoverd lame-duck
  handoverd lame-duck web
  handoverd lame-duck --off`,
		RunE: func(cmd *cobra.Command, services []string) error {
			c, err := w.client()
			if err != nil {
				return err
			}
			return lameDuck(cmd.Context(), e, c, services, off, asJSON)
		},
	}
	w.flags(cmd)
	f := cmd.Flags()
	f.BoolVar(&off, "off", false, "the services are back")
	f.BoolVar(&asJSON, "json", false, "print how each wait ended as JSON")
	return cmd
}

func lameDuck(ctx context.Context, e *env, c *client, services []string, off, asJSON bool) error {
	query := url.Values{"service": services}
	if off {
		query.Set("off", "1")
	}
	var told []string
	if off {
		st, err := c.status(ctx)
		if err != nil {
			return err
		}
		told = lameTold(st, services)
	}
	report, err := c.lameDuck(ctx, query)
	if refused, ok := errors.AsType[*apiError](err); ok && refused.Code == "no such service" {
		if text := c.unknown(services); text != "" {
			return errors.New(text)
		}
	}
	if err != nil {
		return err
	}
	if asJSON {
		if err := writeJSON(e.stdout, report); err != nil {
			return err
		}
	} else {
		for i := range report.Services {
			if _, err := fmt.Fprintln(e.stdout, lameText(&report.Services[i], off)); err != nil {
				return err
			}
		}
	}
	for _, name := range told {
		fmt.Fprintf(e.stderr, "handoverd: the program of %s was told over the child protocol, which has no word to take it back: handoverd reload %s starts one that was not\n",
			name, name)
	}
	if !off && !report.Acknowledged() {
		return exitCode(exitUnacknowledged)
	}
	return nil
}

// lameTold are those of the services, or of all, whose programs were told of their lame duck.
func lameTold(st *supervisor.Status, services []string) []string {
	var names []string
	for i := range st.Services {
		s := &st.Services[i]
		d := s.LameDuck
		if d == nil || d.Ended && d.After == 0 { // one of 0 s is not told
			continue
		}
		if len(services) > 0 && !slices.Contains(services, s.Name) {
			continue
		}
		if slices.ContainsFunc(s.Generations, func(g supervisor.GenerationStatus) bool {
			return g.ReadyBy == "native" && (g.Phase == supervisor.PhaseServing || g.Phase == supervisor.PhaseBaking)
		}) {
			names = append(names, s.Name)
		}
	}
	return names
}

// lameDuck asks for lame ducks, or for their end, and waits until that is over. An upgrade of handoverd
// meanwhile does not end the wait.
func (c *client) lameDuck(ctx context.Context, query url.Values) (*supervisor.LameDuckReport, error) {
	res, err := c.do(ctx, http.MethodPost, "/v1/lame-duck", query)
	for err == nil && res != nil {
		var report supervisor.LameDuckReport
		bad := json.NewDecoder(res.Body).Decode(&report)
		_ = res.Body.Close()
		switch {
		case bad == nil:
			return &report, nil
		case !broken(bad):
			return nil, &reachError{c.path, bad}
		}
		// It begins when the request was taken: what was cut is the wait.
		res, err = c.again(ctx, process(res), "/v1/lame-duck", query)
	}
	if err != nil {
		return nil, err
	}
	return nil, &reachError{c.path, errors.New("handoverd ended before the lame duck did")}
}

// lameText says how one wait ended.
func lameText(r *supervisor.LameDuckResult, off bool) string {
	switch {
	case off:
		return r.Service + ": back"
	case r.Off:
		return r.Service + ": called off"
	}
	text := fmt.Sprintf("%s: lame duck, ended by %s after %s", r.Service, r.By, seconds(r.After))
	switch {
	case r.By == "timer" && r.After == 0:
		return text + "; nothing was waited for: stop.lame_duck has for = \"0s\""
	case r.Blind:
		return text + "; its connections cannot be looked at"
	case r.LastNew > 0:
		return text + "; the last new connection came after " + seconds(r.LastNew)
	}
	return text + "; no new connection was seen"
}

// seconds is a duration to the millisecond.
func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}
