package main

import (
	"fmt"
	"io"

	"github.com/handoverd/handover/supervisor"
)

// printSurvival says what there is for the case that handoverd is killed.
func printSurvival(out io.Writer, st *supervisor.Status) {
	switch f := st.Store; {
	case f == nil:
	case f.Fault != "":
		fmt.Fprintf(out, "warning: fd store: %s\n", f.Fault)
	case f.Off != "":
		fmt.Fprintf(out, "fd store: none (%s)\n", f.Off)
	default:
		fmt.Fprintf(out, "fd store: systemd's, holds %d descriptors of at most %d\n", f.Held, f.Room)
	}
	switch k := st.Keeper; {
	case k == nil:
	case k.Off != "":
		fmt.Fprintf(out, "keeper: none (%s)\n", k.Off)
	case k.PID == 0:
		fmt.Fprintf(out, "warning: keeper: none at the moment: %s\n", k.Fault)
	case k.Fault != "":
		fmt.Fprintf(out, "warning: keeper: pid %d, does not hold everything: %s\n", k.PID, k.Fault)
	default:
		fmt.Fprintf(out, "keeper: pid %d, holds %d descriptors\n", k.PID, k.Held)
	}
	if u := st.Upgrade; u != nil {
		fmt.Fprintln(out, upgradeText(u))
	}
	if t := &st.Terminations; t.Last != "" {
		fmt.Fprintf(out, "ended before: %d whole, %d cut, %d without notice; the last one: %s\n", t.Whole, t.Cut, t.NoNotice, t.Last)
	}
}
