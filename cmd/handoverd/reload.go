package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/supervisor"
)

const reloadHelp = `Start a new generation of each service, or of those named, and retire the old ones.

The configuration is read anew, checks are run and new sockets are bound before anything is
touched. The command waits until every service serves anew and its old generation was seen to
let go of the sockets, or until the reload has failed: then the old generation has been serving
all the time. What happens meanwhile is on stderr, the outcome on stdout, of a failure on stderr.

With --abort what has not been committed yet is rolled back, as a new generation that bakes: the
old one, which serves, goes on. A reload that was remembered meanwhile begins then, and is waited
for; without one nothing is started. Whoever waits for the reload is told that it has failed.

A reload that has to wait for another one, or for a place below max_draining, says so. It goes
on when this command is interrupted.

Exit codes:
  0  serving (with a warning, if an old generation was not seen to let go); with --abort:
     rolled back, and the newer reload, if there was one, serves
  1  failed or refused: nothing was changed for the services that it names; with --abort:
     there was nothing to abort, or the newer reload has failed
  2  wrong arguments
  3  busy, with --no-queue
  4  serving, but an old generation was not seen to let go, with --strict
  5  handoverd cannot be reached, or ended meanwhile
  6  --timeout is over: the reload goes on

An upgrade of handoverd itself (handoverd upgrade) does not end the wait.`

// Exit codes of reload beside those of all commands.
const (
	exitBusy        = 3
	exitNotReleased = 4
	exitTimeout     = 6
)

type reloadFlags struct {
	noQueue, strict, asJSON, abort, rollback bool
	timeout                                  time.Duration
}

func reloadCommand(e *env) *cobra.Command {
	var w where
	var o reloadFlags
	cmd := &cobra.Command{
		Use:   "reload [-c FILE | --runtime-dir DIR | --name NAME] [SERVICE…]",
		Short: "Hand over to new generations, and wait for the outcome",
		Long:  reloadHelp,
		Example: `  handoverd reload
  handoverd reload web --no-queue
  handoverd reload --strict --timeout 2m
  handoverd reload --abort web`,
		RunE: func(cmd *cobra.Command, services []string) error {
			if o.abort && o.noQueue {
				return usage(errors.New("--abort starts no reload of its own, so there is no use for --no-queue"))
			}
			return o.run(cmd, e, &w, services)
		},
	}
	w.flags(cmd)
	o.flags(cmd)
	cmd.Flags().BoolVar(&o.abort, "abort", false, "roll back what is not committed yet; a newer reload that was remembered begins")
	return cmd
}

// flags are those of reload and of rollback.
func (o *reloadFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.noQueue, "no-queue", false, "do not wait for another reload, nor for max_draining: exit 3")
	f.BoolVar(&o.strict, "strict", false, "an old generation that was not seen to let go is a failure: exit 4")
	f.DurationVar(&o.timeout, "timeout", 0, "how long to wait for the outcome, as 90s or 2m (default: as long as it takes)")
	f.BoolVar(&o.asJSON, "json", false, "print the outcome as JSON")
}

func (o *reloadFlags) run(cmd *cobra.Command, e *env, w *where, services []string) error {
	if o.timeout < 0 {
		return usage(fmt.Errorf("--timeout %s is negative", o.timeout))
	}
	c, err := w.client()
	if err != nil {
		return err
	}
	return reload(cmd.Context(), e, c, *o, services)
}

func reload(ctx context.Context, e *env, c *client, o reloadFlags, services []string) error {
	if o.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	query, path := url.Values{"service": services}, "/v1/reload"
	switch {
	case o.abort:
		path = "/v1/abort"
	case o.rollback:
		path = "/v1/rollback"
	}
	if o.noQueue {
		query.Set("no_queue", "1")
	}
	p := &progress{to: e.stderr, client: c, services: services}
	stop := p.begin(ctx)
	report, err := c.reload(ctx, path, query, p.event)
	stop()
	var refused *apiError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		fmt.Fprintf(e.stderr, "handoverd: no outcome within %s: the reload goes on, see handoverd status\n", o.timeout)
		return exitCode(exitTimeout)
	case errors.As(err, &refused) && refused.Code == "busy":
		fmt.Fprintln(e.stderr, "handoverd: busy: another reload or an upgrade of handoverd is under way, or max_draining old generations are draining")
		return exitCode(exitBusy)
	case errors.As(err, &refused) && refused.Code == "nothing":
		fmt.Fprintln(e.stderr, "handoverd: "+o.nothing(c, services))
		return exitCode(exitFailed)
	case err != nil:
		return err
	case report == nil:
		return &reachError{c.path, errors.New("handoverd ended before the reload did")}
	}
	return outcome(e, o, report)
}

// nothing says why there is nothing to roll back to, or to abort.
func (o *reloadFlags) nothing(c *client, services []string) string {
	switch text := c.unknown(services); {
	case text != "":
		return text
	case o.rollback:
		return "nothing to roll back to: nothing else has served before (a reload that failed has changed nothing), or it was rolled back already; " +
			"see handoverd status"
	}
	return "nothing to abort: no reload is under way beside a generation that serves"
}

// outcome prints how the reload ended and turns it into an exit code.
func outcome(e *env, o reloadFlags, r *supervisor.ReloadReport) error {
	if o.asJSON {
		if err := writeJSON(e.stdout, r); err != nil {
			return err
		}
	}
	for i := range r.Aborted {
		if !o.asJSON {
			fmt.Fprintln(e.stdout, abortText(&r.Aborted[i]))
		}
	}
	for i := range r.Results {
		res := &r.Results[i]
		good := res.Outcome == supervisor.OutcomeServing || res.Outcome == supervisor.OutcomeRemoved
		switch {
		case !good:
			fmt.Fprintf(e.stderr, "handoverd: %s\n", resultText(res))
			printOutput(e.stderr, res)
		case !o.asJSON:
			fmt.Fprintln(e.stdout, resultText(res))
		}
		if good && res.Release == supervisor.ReleaseNo {
			fmt.Fprintf(e.stderr, "handoverd: warning: %s still accepts new connections: it does not obey its drain signal; "+
				"set retire.signal to one that it obeys, or retire.on_no_release = \"terminate\"\n", generationName(res.Service, res.Old))
		}
	}
	switch {
	case !r.OK():
		return exitCode(exitFailed)
	case o.strict && !r.Released():
		return exitCode(exitNotReleased)
	}
	return nil
}

// abortText says what was rolled back of one service.
func abortText(r *supervisor.ServiceResult) string {
	if r.Generation == 0 {
		return r.Service + " was not begun: aborted"
	}
	return fmt.Sprintf("%s rolled back while %s: aborted", generationName(r.Service, r.Generation), r.Phase)
}

// resultText says in one line what became of one service.
func resultText(r *supervisor.ServiceResult) string {
	name := generationName(r.Service, r.Generation)
	switch r.Outcome {
	case supervisor.OutcomeServing:
		text := name + " serves"
		if r.Old == 0 {
			return text
		}
		old := generationName(r.Service, r.Old)
		switch r.Release {
		case supervisor.ReleaseYes:
			return text + ", " + old + " released"
		case supervisor.ReleaseNo:
			return text + ", " + old + " not released"
		case supervisor.ReleaseUnknown:
			return text + ", " + old + " cannot be looked at, so it is not known whether it has let go"
		}
		return text + ", " + old + " retired"
	case supervisor.OutcomeRemoved:
		return r.Service + " removed"
	case supervisor.OutcomeFailed:
		text := name + " failed"
		if r.Phase != "" {
			text += " while " + string(r.Phase)
		}
		return joinReasons(text, r.Reason, r.How)
	}
	text := "reload " + string(r.Outcome)
	if r.Service != "" {
		text = name + " " + string(r.Outcome)
	}
	return joinReasons(text, r.Reason)
}

// joinReasons adds what is known and not said yet.
func joinReasons(text string, reasons ...string) string {
	for _, r := range reasons {
		if r != "" && !strings.Contains(text, r) {
			text += ": " + r
		}
	}
	return text
}

// printOutput prints the last lines of a generation that failed.
func printOutput(w io.Writer, r *supervisor.ServiceResult) {
	if len(r.Output) == 0 {
		return
	}
	fmt.Fprintf(w, "last output of %s:\n", generationName(r.Service, r.Generation))
	for _, l := range r.Output {
		fmt.Fprintf(w, "  | %s\n", l)
	}
}
