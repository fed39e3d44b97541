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

	lastTick = `SELECT coalesce(max(tick), $1) FROM job`
	addTicks = `INSERT INTO job (ms, tick) SELECT 5, generate_series($1::bigint, $2::bigint)`
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
		if err := s.scan(conn, &have, tryLock); err != nil {
			return err
		}
		if !have && labour(s.ctx, lockWait) != nil {
			return nil
		}
	}
	log.Print("has the scheduler's lock")
	if err := s.ticks(conn); err != nil {
		return err
	}
	// The end of the session would release it, too, but at a time of its own: pgx
	// does not wait until the server has seen that.
	var had bool
	return s.scan(conn, &had, unlock)
}

// ticks adds the ticks as they fall due, with those that nobody has added since
// the last one. It keeps the last in memory, and may, since nobody else adds
// any: that is what the lock is for.
func (s *scheduler) ticks(conn *pgx.Conn) error {
	var last int64
	if err := s.scan(conn, &last, lastTick, due()-1); err != nil {
		return err
	}
	for s.ctx.Err() == nil {
		if now := due(); now > last {
			if err := s.add(conn, last+1, now); err != nil {
				return err
			}
			last = now
		}
		_ = labour(s.ctx, period)
	}
	return nil
}

// due is the number of the present tick.
func due() int64 { return time.Now().UnixMilli() / period.Milliseconds() }

// scan asks for one value.
func (s *scheduler) scan(conn *pgx.Conn, value any, sql string, args ...any) error {
	ctx, cancel := statement(s.ctx)
	defer cancel()
	return conn.QueryRow(ctx, sql, args...).Scan(value)
}

// add adds the ticks from first to last.
func (s *scheduler) add(conn *pgx.Conn, first, last int64) error {
	ctx, cancel := statement(s.ctx)
	defer cancel()
	_, err := conn.Exec(ctx, addTicks, first, last)
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
