package main

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
)

// A scheduler puts a job into the queue each period. Of all workers, of every
// generation, one at a time does so: the one that has the advisory lock. It is
// a drain.Target.
type scheduler struct {
	config *pgx.ConnConfig
	ctx    context.Context // ends when a drain begins
	stop   context.CancelFunc
	gone   chan struct{} // closed when the lock is released and the session closed
}

const (
	period   = 200 * time.Millisecond
	lockWait = 100 * time.Millisecond // from one attempt at the lock to the next

	tryLock = `SELECT pg_try_advisory_lock(72211)`
	unlock  = `SELECT pg_advisory_unlock(72211)`

	// All ticks since the last one, those missed included. Nothing but the lock
	// keeps two from adding the same.
	addTicks = `
		INSERT INTO job (ms, tick)
		SELECT 5, tick FROM (SELECT (extract(epoch FROM now()) / $1)::bigint AS now) AS clock,
			generate_series(coalesce((SELECT max(tick) FROM job), now - 1) + 1, now) AS tick`
)

func newScheduler(config *pgx.ConnConfig) *scheduler {
	s := &scheduler{config: config, gone: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// run schedules, or waits for its turn, until a drain begins.
func (s *scheduler) run() {
	defer close(s.gone)
	for s.ctx.Err() == nil {
		if err := s.session(); err != nil {
			log.Printf("scheduler: %v", err)
		}
		_ = labour(s.ctx, lockWait)
	}
}

// session is one connection. The lock belongs to it, so it is none of the
// pool's: that would lend it to others, lock and all. If it breaks, the server
// releases the lock, and so everything ends that relies on it.
func (s *scheduler) session() (err error) {
	ctx, cancel := statement(s.ctx)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, s.config)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := statement(s.ctx)
		defer cancel()
		err = errors.Join(err, conn.Close(ctx))
	}()
	for have := false; !have; {
		if err := s.scan(conn, tryLock, &have); err != nil {
			return err
		}
		if !have && labour(s.ctx, lockWait) != nil {
			return nil
		}
	}
	log.Print("has the scheduler's lock")
	for s.ctx.Err() == nil {
		if err := s.tick(conn); err != nil {
			return err
		}
		_ = labour(s.ctx, period)
	}
	// Closing the session would do, but later: the server sees it when it does.
	var had bool
	return s.scan(conn, unlock, &had)
}

// scan asks for one value.
func (s *scheduler) scan(conn *pgx.Conn, sql string, value *bool) error {
	ctx, cancel := statement(s.ctx)
	defer cancel()
	return conn.QueryRow(ctx, sql).Scan(value)
}

// tick adds what is due.
func (s *scheduler) tick(conn *pgx.Conn) error {
	ctx, cancel := statement(s.ctx)
	defer cancel()
	_, err := conn.Exec(ctx, addTicks, period.Seconds())
	return err
}

// Shutdown ends the scheduling and waits until the lock is free.
func (s *scheduler) Shutdown(ctx context.Context) error {
	s.stop()
	select {
	case <-s.gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the scheduling and waits for nothing.
func (s *scheduler) Close() error {
	s.stop()
	return nil
}
