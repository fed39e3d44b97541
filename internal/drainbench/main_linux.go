// Command drainbench measures what is lost when a Go program leaves: in several ways, with several kinds of clients, and
// behind a balancer that learns late. It writes the figures as JSON and the tables docs/DRAIN.md from them: "make drain-table".
//
// The program that leaves is this one again, as "drainbench server": see runServer. In the first table it is replaced under
// load, with the socket kept open by a holder that does no more than that; in the second one it is stopped, and another
// serves.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// options are the command line.
type options struct {
	json, doc string
	only      string
	brief     bool
	stops     int
	render    bool
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == serverVerb {
		os.Exit(runServer(os.Args[2:]))
	}
	var o options
	flag.StringVar(&o.json, "json", "docs/drain.json", "the figures")
	flag.StringVar(&o.doc, "doc", "docs/DRAIN.md", "the tables")
	flag.StringVar(&o.only, "only", "", "names of columns and rows to measure, with commas, and print; empty: all, and write the files")
	flag.BoolVar(&o.brief, "brief", false, "measure as the tests do, and print")
	flag.IntVar(&o.stops, "stops", 0, "measure with so many stops, and print; 0: all")
	flag.BoolVar(&o.render, "render", false, "measure nothing: write the tables from the figures")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	err := run(ctx, o)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "drainbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.render {
		return renderFile(o.json, o.doc)
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	s, p := full, fullPace
	if o.brief {
		s, p = brief, briefPace
	}
	if o.stops > 0 {
		s.stops, s.requests, s.streams, p.stops = o.stops, 0, 0, o.stops
	}
	found := newResults(s, p)
	columns, rows, err := choose(o.only, s.columns(), p.rows())
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "drainbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	servers := programs{own: exe}
	if slices.ContainsFunc(columns, func(c column) bool { return c.GRPC }) {
		if servers.grpc, err = buildGRPC(ctx, dir); err != nil {
			return err
		}
	}
	begin := time.Now()
	for _, c := range columns {
		say("%s: %d %s in each of %d cells", c.Name, c.Target, c.Unit, len(ways))
		cells, err := runColumn(ctx, servers, c, s, ways)
		if err != nil {
			return err
		}
		found.Cells = append(found.Cells, cells...)
	}
	if len(rows) > 0 {
		say("behind a balancer: %d rows, %d stops in each", len(rows), p.stops)
		if found.Lines, err = runRows(ctx, exe, p, rows); err != nil {
			return err
		}
	}
	found.Minutes = time.Since(begin).Minutes()
	if o.only != "" || o.brief || o.stops > 0 {
		fmt.Print(found.render())
		return found.check()
	}
	if err := found.write(o.json); err != nil {
		return err
	}
	return errors.Join(renderFile(o.json, o.doc), found.check())
}

// choose finds what -only names, in the order of the tables.
func choose(only string, columns []column, rows []row) (chosen []column, chosenRows []row, err error) {
	if only == "" {
		return columns, rows, nil
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(only, ",") {
		wanted[name] = true
	}
	for _, c := range columns {
		if wanted[c.Name] || wanted["columns"] {
			chosen = append(chosen, c)
			delete(wanted, c.Name)
		}
	}
	for _, r := range rows {
		if wanted[r.Name] || wanted["rows"] {
			chosenRows = append(chosenRows, r)
			delete(wanted, r.Name)
		}
	}
	delete(wanted, "columns")
	delete(wanted, "rows")
	for name := range wanted {
		err = errors.Join(err, fmt.Errorf("-only: no column or row %q", name))
	}
	return chosen, chosenRows, err
}

// say tells how far the run is.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
