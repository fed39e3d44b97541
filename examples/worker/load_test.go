//go:build linux

package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// rate is how many jobs a second the load adds. Each takes 5 to 50 ms, so that about six are in hand at any time.
const rate = 200

// A load adds jobs until it is ended.
type load struct {
	stop context.CancelFunc
	done chan struct{}
	sent int // valid when done
	err  error
}

func startLoad(t *testing.T, db *pgxpool.Pool) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{stop: cancel, done: make(chan struct{})}
	go l.run(ctx, db) // waited for by end
	t.Cleanup(func() { l.end() })
	return l
}

// run keeps to the rate also after it was held up.
func (l *load) run(ctx context.Context, db *pgxpool.Pool) {
	defer close(l.done)
	begin := time.Now()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		due := int(time.Since(begin).Seconds()*rate) - l.sent
		const sql = `INSERT INTO job (ms) SELECT 5 + (random() * 45)::int FROM generate_series(1, $1)`
		if _, l.err = db.Exec(context.WithoutCancel(ctx), sql, due); l.err != nil {
			return
		}
		l.sent += due
	}
}

// end ends it and returns how many jobs it has added.
func (l *load) end() (int, error) {
	l.stop()
	<-l.done
	return l.sent, l.err
}

// An account is what became of the jobs of a run.
type account struct {
	stops   int
	inHand  int // jobs under way at the stops
	held    int // jobs neither finished nor given back, right after an exit
	locks   int // held right after an exit by sessions of the process
	open    int // transactions, likewise
	jobs    int
	lost    int // without effect
	twice   int // with more than one effect
	doubled int // ticks of the scheduler that are there more than once
	missing int // ticks of the scheduler that are not there
}

const accountRow = "| %-31s | %5s | %5s | %7s | %4s | %9s | %13s | %12s | %15s | %14s |\n"

func accountHead() string {
	return fmt.Sprintf(accountRow, "how they end", "stops", "jobs", "in hand", "lost", "run twice", "ticks doubled", "ticks missed", "at exit: leases", "locks, txs") +
		fmt.Sprintf(accountRow, "---", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:", "---:")
}

func (a account) row(name string) string {
	n := func(i int) string { return fmt.Sprint(i) }
	return fmt.Sprintf(accountRow, name, n(a.stops), n(a.jobs), n(a.inHand), n(a.lost), n(a.twice), n(a.doubled), n(a.missing), n(a.held), n(a.locks)+", "+n(a.open))
}
