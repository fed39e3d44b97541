package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/handoverd/handover/drain"
)

// A queue hands out jobs by lease: a claim is a transaction of its own, and no
// transaction stays open while a job runs. A worker that dies keeps its jobs
// until the lease is over; then another one runs them, again perhaps.
type queue struct {
	pool   *pgxpool.Pool
	worker string
	lease  time.Duration
}

// A job is one that this process has claimed.
type job struct {
	id      int64
	attempt int
	takes   time.Duration
}

const (
	// Rows that another claim has locked are passed over, not waited for.
	claimJob = `
		UPDATE job SET attempt = attempt + 1, worker = $1, lease = now() + $2
		WHERE id = (
			SELECT id FROM job
			WHERE done IS NULL AND (lease IS NULL OR lease < now())
			ORDER BY id
			FOR UPDATE SKIP LOCKED LIMIT 1)
		RETURNING id, attempt, ms`

	// The attempt is the fence: who has lost the lease meanwhile changes nothing.
	finishJob = `UPDATE job SET done = now(), lease = NULL WHERE id = $1 AND attempt = $2`
	returnJob = `UPDATE job SET lease = NULL WHERE id = $1 AND attempt = $2 AND done IS NULL`

	recordEffect = `INSERT INTO effect (job, attempt, worker) VALUES ($1, $2, $3)`
)

// claim takes the oldest job that nobody has.
func (q *queue) claim(ctx context.Context) (*drain.Work, error) {
	ctx, cancel := statement(ctx)
	defer cancel()
	var j job
	var ms int
	err := q.pool.QueryRow(ctx, claimJob, q.worker, q.lease).Scan(&j.id, &j.attempt, &ms)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil // there is none now
	}
	if err != nil {
		return nil, err
	}
	j.takes = time.Duration(ms) * time.Millisecond
	return &drain.Work{
		Name:   fmt.Sprintf("job %d", j.id),
		Run:    func(ctx context.Context) error { return q.run(ctx, j) },
		Return: func(ctx context.Context) error { return q.giveBack(ctx, j) },
	}, nil
}

// run does the job. Before the effect it may be given up, and another worker
// begins anew; after it there is only forward.
func (q *queue) run(ctx context.Context, j job) error {
	if err := labour(ctx, j.takes/2); err != nil {
		return err
	}
	if err := q.change(ctx, recordEffect, j.id, j.attempt, q.worker); err != nil {
		return fmt.Errorf("effect: %w", err)
	}
	if err := labour(context.WithoutCancel(ctx), j.takes/2); err != nil {
		return err
	}
	if err := q.change(ctx, finishJob, j.id, j.attempt); err != nil {
		return fmt.Errorf("finish: %w", err)
	}
	return nil
}

// giveBack ends the lease, so that another worker need not wait for its end.
func (q *queue) giveBack(ctx context.Context, j job) error {
	if err := q.change(ctx, returnJob, j.id, j.attempt); err != nil {
		return fmt.Errorf("give back: %w", err)
	}
	return nil
}

// change changes one row.
func (q *queue) change(ctx context.Context, sql string, values ...any) error {
	ctx, cancel := statement(ctx)
	defer cancel()
	tag, err := q.pool.Exec(ctx, sql, values...)
	if err == nil && tag.RowsAffected() == 0 {
		err = errors.New("the lease is lost")
	}
	return err
}

// labour is the work of a job.
func labour(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// statement is the context of one statement: a few seconds, whatever ends
// meanwhile. One that is cancelled on its way may have been carried out or not:
// the job would be claimed, and nobody would know. And pgx breaks the connection
// then, so that its transaction may outlive the process.
func statement(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
}
