// Command peers measures what a reload costs the clients: under handoverd, under a bare holder of the socket, under the other
// programs that hand sockets over, and with the tricks that handoverd replaces; all with the same load in one interleaved
// run. It writes the figures as JSON and the table docs/BENCHMARKS.md from them. "make bench-peers" installs what it needs and runs it.
//
// Each block of reloads runs in a process of its own, in a network, pid and mount namespace of its own: addresses are free,
// packet filters and sysctls of one contender touch no other, and nothing that a contender starts outlives its block.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// options are the command line.
type options struct {
	block      bool
	render     bool
	json, doc  string
	only       string
	own, peers int
	seed       uint64
}

func main() {
	var o options
	flag.BoolVar(&o.block, "block", false, "be the process of one block, which is described on standard input")
	flag.BoolVar(&o.render, "render", false, "measure nothing: write the table from the JSON")
	flag.StringVar(&o.json, "json", "docs/benchmarks.json", "the figures")
	flag.StringVar(&o.doc, "doc", "docs/BENCHMARKS.md", "the table")
	flag.StringVar(&o.only, "only", "", "names of contenders, with commas; empty: all")
	flag.IntVar(&o.own, "reloads", 200, "reloads of handoverd and the bare holder in each cell (also PEERS_RELOADS)")
	flag.IntVar(&o.peers, "peer-reloads", 50, "reloads of the others in each cell (also PEERS_PEER_RELOADS)")
	flag.Uint64Var(&o.seed, "seed", 1, "of the order of the blocks")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	err := run(ctx, o)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	switch {
	case o.block:
		return runBlock(ctx, os.Stdin, os.Stdout)
	case o.render:
		return renderFile(o.json, o.doc)
	}
	own, peers, err := reloadCounts()
	if err != nil {
		return err
	}
	if own > 0 {
		o.own = own
	}
	if peers > 0 {
		o.peers = peers
	}
	chosen, err := choose(o.only)
	if err != nil {
		return err
	}
	c, err := newCoordinator(ctx, chosen)
	if err != nil {
		return err
	}
	defer c.close()
	found, err := c.measure(ctx, o)
	if err != nil {
		return err
	}
	if err := found.write(o.json); err != nil {
		return err
	}
	if err := renderFile(o.json, o.doc); err != nil {
		return err
	}
	if len(found.Broken) > 0 {
		return fmt.Errorf("%d blocks were not measured:\n%s", len(found.Broken), strings.Join(found.Broken, "\n"))
	}
	return nil
}

// choose finds the contenders of -only, in the order of the tables.
func choose(only string) (chosen []contender, err error) {
	if only == "" {
		return contenders, nil
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(only, ",") {
		if _, ok := contenderNamed(name); !ok {
			err = errors.Join(err, fmt.Errorf("-only: no contender %q", name))
		}
		wanted[name] = true
	}
	for _, c := range contenders {
		if wanted[c.name] {
			chosen = append(chosen, c)
		}
	}
	return chosen, err
}

// say tells how far the run is.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
