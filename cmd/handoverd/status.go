package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/supervisor"
)

func statusCommand(e *env) *cobra.Command {
	var w where
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [-c FILE | --runtime-dir DIR | --name NAME] [--json]",
		Short: "Print the services, their generations and their sockets",
		Long: `Print the services, their living generations and their sockets: what serves, what drains
and until when, whether retired generations have let go of the sockets, what is waited for,
and what went wrong last. Arguments and environments of the programs are never shown.

Exit codes: 0 handoverd has answered (whether it is ready is in the answer), 2 wrong
arguments, 5 handoverd cannot be reached.`,
		Example: `  handoverd status
  handoverd status --json | jq .ready`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := w.client()
			if err != nil {
				return err
			}
			st, err := c.status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(e.stdout, st)
			}
			return printStatus(e.stdout, st)
		},
	}
	w.flags(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print all that is known as JSON")
	return cmd
}

func printStatus(out io.Writer, st *supervisor.Status) error {
	state := "not ready"
	switch {
	case st.Stopping:
		state = "stopping"
	case st.Ready:
		state = "ready"
	}
	fmt.Fprintf(out, "handoverd %s, pid %d, %s, %s\n", st.Version, st.PID, st.RuntimeDir, state)
	fmt.Fprintf(out, "configuration %s, digest %s\n", st.Config, st.Digest)
	if st.ConfigNote != "" {
		fmt.Fprintf(out, "warning: this file: %s\n", st.ConfigNote)
	}
	if st.StateError != "" {
		fmt.Fprintf(out, "warning: the state file cannot be written: %s\n", st.StateError)
	}
	printSurvival(out, st)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nSERVICE\tGENERATION\tPID\tPHASE\tAGE\tDEADLINE\tRELEASE\tNOTES")
	for _, s := range st.Services {
		if len(s.Generations) == 0 {
			fmt.Fprintf(t, "%s\t-\t-\tdown\t-\t-\t-\t\n", s.Name)
		}
		for _, g := range s.Generations {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Name, g.Generation, orDash(g.PID != 0, fmt.Sprint(g.PID)),
				g.Phase, shortSeconds(g.Age), orDash(g.Ends != 0, "in "+shortSeconds(g.Ends)),
				orDash(g.Release != "", string(g.Release)), strings.Join(generationNotes(&g), "; "))
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	printSockets(t, st)
	if err := t.Flush(); err != nil {
		return err
	}
	for i, line := range serviceNotes(st) {
		if i == 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintln(out, line)
	}
	return nil
}

func printSockets(t io.Writer, st *supervisor.Status) {
	title := "\nSERVICE\tSOCKET\tADDRESS\tQUEUED\tSTATE"
	line := func(owner string, sock *supervisor.SocketStatus) {
		if title != "" {
			fmt.Fprintln(t, title)
			title = ""
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", owner, sock.Name, sock.Address,
			orDash(sock.Queued >= 0, fmt.Sprint(sock.Queued)), socketState(sock))
	}
	for _, s := range st.Services {
		for i := range s.Sockets {
			line(s.Name, &s.Sockets[i])
		}
		for _, g := range s.Generations { // what is bound for each alone
			for i := range g.Sockets {
				line(generationName(s.Name, g.Generation), &g.Sockets[i])
			}
		}
	}
}

func socketState(s *supervisor.SocketStatus) string {
	var parts []string
	if s.Listening {
		parts = append(parts, "listening")
	} else {
		parts = append(parts, "bound")
	}
	if !s.Nonblocking {
		parts = append(parts, "blocking")
	}
	return strings.Join(parts, ", ")
}

func generationNotes(g *supervisor.GenerationStatus) []string {
	var notes []string
	add := func(is bool, text string) {
		if is {
			notes = append(notes, text)
		}
	}
	add(g.ReadyBy != "", "ready by "+g.ReadyBy)
	switch g.Adoption {
	case "", "seen":
	case "not visible":
		notes = append(notes, "cannot be looked at")
	default:
		notes = append(notes, g.Adoption)
	}
	add(g.Probe != "", "probe: "+g.Probe)
	add(g.Gate != "" && g.Phase == supervisor.PhaseStarting, "waits for the gate: "+g.Gate)
	add(len(g.Idle) > 0, "does not accept on "+strings.Join(g.Idle, ", "))
	add(g.StaleEpoll, "another process's epoll set keeps a socket of it")
	add(g.Stuck, "stuck: the kernel has not ended it")
	add(g.Phase != supervisor.PhaseServing && g.Reason != "", g.Reason)
	add(g.Text != "", fmt.Sprintf("says %q", g.Text))
	return notes
}

// serviceNotes are what the tables have no column for.
func serviceNotes(st *supervisor.Status) []string {
	var lines []string
	add := func(s *supervisor.ServiceStatus, format string, args ...any) {
		lines = append(lines, s.Name+": "+fmt.Sprintf(format, args...))
	}
	for i := range st.Services {
		s := &st.Services[i]
		if s.Removed {
			add(s, "removed from the configuration, draining")
		}
		if s.Stop != "" {
			add(s, "stop: %s", s.Stop)
		}
		if d := s.LameDuck; d != nil {
			add(s, "%s", lameNote(d))
		}
		if s.OpenAtExit > 0 {
			add(s, "%d connections were open when draining generations exited", s.OpenAtExit)
		}
		if s.Waiting != "" {
			add(s, "waiting for %s: %s", shortSeconds(s.WaitingFor), s.Waiting)
		}
		if s.CrashLoop != "" {
			add(s, "crash loop: %s", loopNote(s.CrashLoop))
		}
		if s.RestartIn > 0 {
			add(s, "restart in %s, after %d deaths in a row", shortSeconds(s.RestartIn), s.Failures)
		}
		if s.Rollback != nil {
			add(s, "%s", rollbackNote(s.Rollback))
		}
		if s.Digest != "" && s.Digest != st.Digest {
			add(s, "runs with an earlier configuration, digest %s", s.Digest)
		}
		if f := s.Failure; f != nil {
			add(s, "last failure %s ago: generation %d while %s: %s", shortSeconds(f.Ago), f.Generation, f.Phase, f.Reason)
		}
	}
	return lines
}

func orDash(is bool, text string) string {
	if is {
		return text
	}
	return "-"
}

// shortSeconds is a duration for people: two figures are enough.
func shortSeconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < 0:
		return "0s"
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		text := d.Round(time.Second).String()
		if whole, ok := strings.CutSuffix(text, "m0s"); ok {
			return whole + "m"
		}
		return text
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

func lameNote(d *supervisor.LameDuckStatus) string {
	text := "lame duck for " + shortSeconds(d.For)
	if d.Ended {
		text += fmt.Sprintf(", its wait ended by %s after %s", d.By, shortSeconds(d.After))
	} else {
		text += ", until " + d.Until
	}
	if d.LastNew > 0 {
		text += ", last new connection after " + shortSeconds(d.LastNew)
	}
	return text
}
