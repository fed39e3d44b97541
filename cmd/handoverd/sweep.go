package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/internal/sdnotify"
	"github.com/handoverd/handover/supervisor"
)

// systemctlLimit is how long systemd may take to say what comes next.
const systemctlLimit = 5 * time.Second

func sweepCommand(e *env) *cobra.Command {
	var w where
	var unit string
	var grace time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sweep [-c FILE | --runtime-dir DIR | --name NAME] [--unit UNIT] [--grace D]",
		Short: "End what a handoverd that was killed has left running",
		Long: `End what a handoverd that was killed has left running: its programs, all that they have
started, and its keeper. They get SIGTERM, and SIGKILL after --grace. Where a handoverd lives
nothing is touched.

With --unit it is for ExecStopPost= of that unit, which systemd runs whenever handoverd has
ended: it does nothing where systemd is about to start handoverd again, which then goes on
with these programs, and ends them where the unit really stops.

Exit codes: 0 nothing is left running, or it is left to the next start; 1 something could not be
ended, or a handoverd lives; 2 wrong arguments.`,
		Example: `  handoverd sweep -c /etc/handoverd.toml
  ExecStopPost=/usr/bin/handoverd sweep --unit %n`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := w.runtimeDir()
			if err != nil {
				return err
			}
			if unit != "" {
				why := startFollows(cmd.Context(), e, unit)
				if why != "" {
					_, err := fmt.Fprintf(e.stdout, "nothing is ended: %s\n", why)
					return err
				}
			}
			if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) && !asJSON {
				_, err := fmt.Fprintf(e.stdout, "nothing was left running: there is no runtime directory %s\n", dir)
				return err
			}
			report, err := supervisor.Sweep(cmd.Context(), dir, grace)
			if report != nil {
				printErr := printSweep(e.stdout, report, asJSON)
				if err == nil {
					err = printErr
				}
			}
			if errors.Is(err, supervisor.ErrLocked) {
				return fmt.Errorf("nothing is ended, since a handoverd lives (handoverd stop is for that): %w", err)
			}
			return err
		},
	}
	w.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&unit, "unit", "", "only if systemd does not start this unit again; in a unit file %n")
	f.DurationVar(&grace, "grace", 5*time.Second, "from SIGTERM to SIGKILL")
	f.BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}

// startFollows says why the unit is going to be started again, "" if it is not.
// Somebody's job decides, and where there is none Restart= with how handoverd has
// ended. Where systemd cannot be asked, what serves is left to serve unless handoverd
// has ended in order.
func startFollows(ctx context.Context, e *env, unit string) string {
	result := e.getenv("SERVICE_RESULT")
	jobs, err := systemctl(ctx, "list-jobs", "--plain", "--no-legend", "--full")
	restart := ""
	if err == nil {
		var show string
		show, err = systemctl(ctx, "show", "--property=Restart", "--", unit)
		restart = sdnotify.Property(show, "Restart")
	}
	job := sdnotify.JobOf(jobs, unit)
	switch {
	case err != nil && result != "" && result != "success":
		return fmt.Sprintf("systemd does not say what follows (%v), and handoverd did not end in order (%s)", err, result)
	case err != nil || job == "stop":
		return ""
	case job != "" && job != "start": // a start that has failed is begun again as Restart= says
		return fmt.Sprintf("a %s of %s is under way", job, unit)
	case sdnotify.RestartsAfter(restart, result):
		return fmt.Sprintf("%s is started again (Restart=%s, result %s)", unit, restart, result)
	}
	return ""
}

func systemctl(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, systemctlLimit)
	defer cancel()
	group, _ := os.ReadFile("/proc/self/cgroup") // none: the system's manager is asked
	if _, user := sdnotify.UnitOf(string(group)); user {
		args = append([]string{"--user"}, args...)
	}
	text, err := exec.CommandContext(ctx, "systemctl", args...).Output()
	if err != nil {
		return "", fmt.Errorf("systemctl %s: %w", strings.Join(args, " "), err)
	}
	return string(text), nil
}

func printSweep(out io.Writer, r *supervisor.SweepReport, asJSON bool) error {
	if asJSON {
		return writeJSON(out, r)
	}
	for _, p := range r.Ended {
		what := "a process that no state knows, or the keeper"
		if p.Service != "" {
			what = fmt.Sprintf("service %s, generation %d", p.Service, p.Generation)
		}
		if _, err := fmt.Fprintf(out, "ended: process %d (%s)\n", p.PID, what); err != nil {
			return err
		}
	}
	if len(r.Ended) == 0 {
		_, err := fmt.Fprintln(out, "nothing was left running")
		return err
	}
	return nil
}
