// Command worker does jobs of a queue in PostgreSQL, and is replaced or stopped
// without a job lost or run twice.
//
// It has no socket. Everything that concerns its end is in main: package
// handover says when, package drain in which order. It runs under handoverd and
// by itself; then SIGTERM and Ctrl-C end it, and SIGHUP replaces it by its new
// executable.
//
// The database is named as for psql, by PGHOST, PGDATABASE and PGUSER, and has
// the tables of schema.sql.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/handoverd/handover"
	"github.com/handoverd/handover/drain"
)

func main() {
	name := flag.String("name", "worker", "what the log and pg_stat_activity call it")
	count := flag.Int("count", 4, "how many jobs at the same time")
	lease := flag.Duration("lease", 30*time.Second, "how long a job belongs to the worker that claimed it; longer than any job takes")
	pidFile := flag.String("pid-file", "", "written by each process that is ready, without a supervisor")
	flag.Parse()

	child, err := handover.Standalone(handover.Options{PIDFile: *pidFile})
	check(err)
	self := fmt.Sprintf("%s.%d", *name, os.Getpid())
	log.SetPrefix(self + " ")
	pool, err := connect(context.Background(), self, *count)
	check(err)

	queue := &queue{pool: pool, worker: self, lease: *lease}
	workers := &drain.Workers{Claim: queue.claim, Failed: failed, Count: *count, Idle: 100 * time.Millisecond}
	ticks := newScheduler(pool.Config().ConnConfig)

	end := &drain.Sequence{Supervisor: child, OnPhase: phase}
	end.Add("workers", workers) // claims no more, and finishes what is in hand
	end.Add("scheduler", ticks) // at the same time: the next generation waits for its lock
	end.OnClose("database", func(context.Context) error {
		pool.Close()
		return nil
	})

	// The old generation works until this one can: what has failed up to here has
	// claimed nothing.
	check(child.Ready())
	go workers.Run() // both end with the drain
	go ticks.run()
	log.Printf("generation %d works", child.Generation())

	if err := end.Run(context.Background()); err != nil {
		log.Print(err) // names the jobs that were cut
		os.Exit(3)
	}
}

// connect opens the pool, and asks whether the database answers.
func connect(ctx context.Context, self string, count int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["application_name"] = self
	config.MaxConns = int32(count) // no worker uses two
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return pool, pool.Ping(ctx)
}

func phase(t drain.Transition) { log.Printf("%v: %s", t.To, t.Cause) }

func failed(work *drain.Work, err error) {
	if work == nil {
		log.Printf("claim: %v", err)
		return
	}
	log.Printf("%s: %v", work.Name, err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
