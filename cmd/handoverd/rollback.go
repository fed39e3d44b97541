package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/supervisor"
)

const rollbackHelp = `Go back to what served before the last change: the command, environment and sockets of that time,
and the executable as it was, also when its file has been overwritten since. Of a script the
executable is its interpreter, and what a program reads by itself (its own configuration, its
libraries) is as it is now: for these use folders of releases.

Without a name those services go back that the last reload has changed. The configuration is not read,
and no check is run. Otherwise it is a reload: the command waits until the new generation
serves or has failed, and then what serves has been serving all the time. There is one step back: a second
rollback has nothing to go to until something else has been committed. The next reload goes by the
configuration again, so mend that as well.

Exit codes: those of reload.
  0  what served before serves again
  1  failed, or there is nothing to go back to: what serves serves on
  2  wrong arguments
  3  busy, with --no-queue
  4  serving, but an old generation was not seen to let go, with --strict
  5  handoverd cannot be reached, or ended meanwhile
  6  --timeout is over: the rollback goes on`

func rollbackCommand(e *env) *cobra.Command {
	var w where
	o := reloadFlags{rollback: true}
	cmd := &cobra.Command{
		Use:   "rollback [-c FILE | --runtime-dir DIR | --name NAME] [SERVICE…]",
		Short: "Go back to what served before the last change, and wait for the outcome",
		Long:  rollbackHelp,
		Example: `  handoverd rollback
  handoverd rollback web --timeout 2m`,
		RunE: func(cmd *cobra.Command, services []string) error { return o.run(cmd, e, &w, services) },
	}
	w.flags(cmd)
	o.flags(cmd)
	return cmd
}

// rollbackNote says what a rollback would go back to.
func rollbackNote(r *supervisor.RollbackStatus) string {
	text := fmt.Sprintf("a rollback goes back to generation %d (configuration %s", r.Generation, r.Digest)
	switch {
	case r.Program == "":
		return text + ", the program as it is at its path now)"
	case r.Copy == "":
		return text + ", program " + shortDigest(r.Program) + ", of which there is no copy)"
	}
	return text + ", program " + shortDigest(r.Program) + ")"
}

// shortDigest is enough to tell two apart.
func shortDigest(d string) string { return d[:min(12, len(d))] }
