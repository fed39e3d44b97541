//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"
)

// A home is how the two workers a and b are run, and stopped.
type home struct {
	name string
	// start begins the workers; the end of the test ends them.
	start func(t *testing.T, log *os.File) (stop stopper)
	kills bool
}

// A stopper stops workers in the i-th way, without waiting for their end, and returns those that it stops. again brings
// back what it has ended.
type stopper func(i int, now []watched) (stopped []watched, again func())

// services is the configuration of the two workers, with more arguments for them.
func services(t *testing.T, more string) string {
	t.Helper()
	var text strings.Builder
	for _, name := range []string{"a", "b"} {
		fmt.Fprintf(&text, "[service.%s]\ncommand = [%q, \"-name\", %q%s]\n[service.%[1]s.restart]\nbackoff_max = \"100ms\"\n",
			name, binary(t, "worker"), name, more)
	}
	return text.String()
}

var homes = []home{
	{name: "handoverd reload", start: func(t *testing.T, log *os.File) stopper {
		d := startDaemon(t, log, services(t, ""))
		return func(_ int, now []watched) ([]watched, func()) {
			d.do("reload")
			return now, func() {}
		}
	}},
	{name: "handoverd stop, run", start: func(t *testing.T, log *os.File) stopper {
		d := startDaemon(t, log, services(t, ""))
		return func(_ int, now []watched) ([]watched, func()) {
			d.do("stop")
			return now, func() {
				if code := d.exit(); code != 0 { // 3: something was cut
					t.Errorf("handoverd exited with %d, want 0", code)
				}
				d = startDaemon(t, log, services(t, ""))
			}
		}
	}},
	{name: "by itself: SIGTERM, start", start: func(t *testing.T, log *os.File) stopper {
		run := func(name string) *process { return start(t, log, binary(t, "worker"), "-name", name) }
		workers := []*process{run("a"), run("b")}
		return func(i int, now []watched) ([]watched, func()) {
			i %= 2 // the other one works on
			signal(t, now[i].pid, syscall.SIGTERM)
			return now[i : i+1], func() {
				if code := workers[i].exit(); code != 0 {
					t.Errorf("%s exited with %d, want 0", now[i].name, code)
				}
				workers[i] = run([]string{"a", "b"}[i])
			}
		}
	}},
	{name: "by itself: SIGHUP", start: func(t *testing.T, log *os.File) stopper {
		for _, name := range []string{"a", "b"} {
			file := filepath.Join(t.TempDir(), "pid")
			t.Cleanup(func() { endLast(t, name, file) })
			start(t, log, binary(t, "worker"), "-name", name, "-pid-file", file)
		}
		return func(i int, now []watched) ([]watched, func()) {
			i %= 2
			signal(t, now[i].pid, syscall.SIGHUP)
			return now[i : i+1], func() {}
		}
	}},
	{name: "SIGKILL, restarted by handoverd", kills: true, start: func(t *testing.T, log *os.File) stopper {
		startDaemon(t, log, services(t, `, "-lease", "2s"`))
		return func(_ int, now []watched) ([]watched, func()) {
			for _, w := range now {
				signal(t, w.pid, syscall.SIGKILL)
			}
			return now, func() {}
		}
	}},
}

// endLast ends the process that a line of upgrades has led to.
func endLast(t *testing.T, name, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if fd, err := unix.PidfdOpen(pid, 0); err == nil { // else it has ended
		signal(t, pid, syscall.SIGTERM)
		watched{name, pid, fd}.gone(t)
	}
}

func signal(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("kill(%d, %v): %v", pid, s, err)
	}
}

// TestStops ends workers under load, in every way that there is, and counts what became of the jobs: from outside, in
// the database alone.
func TestStops(t *testing.T) {
	stops := 4
	if os.Getenv("HANDOVERD_LOAD") == "full" {
		stops = 50
	}
	db := startCluster(t)
	table := accountHead()
	for _, h := range homes {
		t.Run(h.name, func(t *testing.T) {
			execute(t, db, `TRUNCATE job, effect RESTART IDENTITY`)
			table += stopAll(t, db, h, stops).row(h.name)
		})
	}
	t.Logf("%d jobs a second, of 5 to 50 ms each:\n%s", rate, table)
}

// stopAll is one row of the table.
func stopAll(t *testing.T, db *pgxpool.Pool, h home, stops int) account {
	a := account{stops: stops}
	stopped := []string{}
	stop := h.start(t, newLog(t))
	l := startLoad(t, db)
	for i := range stops {
		now := busy(t, db, stopped)
		var inHand int
		ask(t, db, `SELECT count(*) FROM job WHERE lease > now() AND worker <> ALL($1)`, []any{stopped}, &inHand)
		a.inHand += inHand
		ended, again := stop(i, now)
		for _, w := range now {
			if !slices.Contains(ended, w) {
				_ = unix.Close(w.fd)
				continue
			}
			w.gone(t)
			a.look(t, db, w)
			stopped = append(stopped, w.name)
		}
		again()
	}
	for _, w := range busy(t, db, stopped) { // those of the last stop have come up as well
		_ = unix.Close(w.fd)
	}
	sent, err := l.end()
	if err != nil {
		t.Fatalf("adding jobs: %v", err)
	}
	a.settle(t, db)
	a.judge(t, db, h, sent, stopped)
	return a
}

// busy waits until the workers a and b are there, one of each besides the stopped, each has done some jobs, and one has
// the scheduler's lock.
func busy(t *testing.T, db *pgxpool.Pool, stopped []string) []watched {
	t.Helper()
	const sql = `
		SELECT coalesce(array_agg(DISTINCT application_name), '{}'),
			coalesce(min((SELECT count(*) FROM effect WHERE worker = application_name)), 0),
			(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = ANY(array_agg(s.pid)))
		FROM pg_stat_activity s WHERE application_name ~ '^[ab][.]' AND application_name <> ALL($1)`
	var names []string
	eventually(t, "two workers work", func() bool {
		var done, locks int
		ask(t, db, sql, []any{stopped}, &names, &done, &locks)
		return len(names) == 2 && names[0][0] == 'a' && names[1][0] == 'b' && done >= 25 && locks == 1
	})
	var list []watched
	for _, name := range names {
		pid, err := strconv.Atoi(name[2:])
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, watch(t, name, pid))
	}
	return list
}

// look counts what a process that has just ended still has.
func (a *account) look(t *testing.T, db *pgxpool.Pool, w watched) {
	t.Helper()
	const sql = `
		SELECT (SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE application_name = $1),
			(SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND xact_start IS NOT NULL),
			(SELECT count(*) FROM job WHERE worker = $1 AND lease IS NOT NULL)`
	var locks, open, held int
	ask(t, db, sql, []any{w.name}, &locks, &open, &held)
	a.locks, a.open, a.held = a.locks+locks, a.open+open, a.held+held
}

// settle waits until every job is done that was there when the load ended, and counts.
func (a *account) settle(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	var last int64
	ask(t, db, `SELECT max(id) FROM job`, nil, &last)
	for open := 1; open > 0; { // what has come while nobody worked takes its time, but it goes on
		before := open
		eventually(t, "one more job is done", func() bool {
			ask(t, db, `SELECT count(*) FROM job WHERE done IS NULL AND id <= $1`, []any{last}, &open)
			return open != before || open == 0
		})
	}
	ask(t, db, `
		SELECT count(*), count(*) FILTER (WHERE effects = 0), count(*) FILTER (WHERE effects > 1)
		FROM (SELECT count(effect.job) AS effects FROM job LEFT JOIN effect ON effect.job = job.id WHERE job.id <= $1 GROUP BY job.id) AS ran`,
		[]any{last}, &a.jobs, &a.lost, &a.twice)
	ask(t, db, `SELECT count(tick) - count(DISTINCT tick), max(tick) - min(tick) + 1 - count(DISTINCT tick) FROM job`, nil, &a.doubled, &a.missing)
}

// judge fails the test for what must not be.
func (a *account) judge(t *testing.T, db *pgxpool.Pool, h home, sent int, stopped []string) {
	t.Helper()
	var came, strange int
	ask(t, db, `SELECT count(*) FROM job WHERE tick IS NULL`, nil, &came)
	if came != sent || a.lost != 0 || a.doubled != 0 || a.missing != 0 {
		t.Errorf("%d jobs were added, %d are there; %d lost, ticks %d doubled, %d missed", sent, came, a.lost, a.doubled, a.missing)
	}
	if a.inHand == 0 {
		t.Error("no job was in hand at any stop: nothing was tried")
	}
	if !h.kills {
		if a.twice != 0 || a.held != 0 || a.locks != 0 || a.open != 0 {
			t.Errorf("%d jobs run twice; left at the exits: %d jobs, %d locks and %d transactions; want none", a.twice, a.held, a.locks, a.open)
		}
		return
	}
	// Nobody can save what is killed between an effect and its note. It shows that such jobs would be seen above, and
	// only jobs that were in hand of the killed may be among them.
	ask(t, db, `SELECT count(*) FROM effect AS one JOIN effect AS next USING (job) WHERE one.attempt < next.attempt AND one.worker <> ALL($1)`,
		[]any{stopped}, &strange)
	if a.twice == 0 || strange != 0 {
		t.Errorf("%d jobs run twice after kills, want some; of %d the first worker was not killed", a.twice, strange)
	}
}

// TestLongJobIsGivenBack stops a worker whose job is longer than the deadline: the next one can claim it at once.
func TestLongJobIsGivenBack(t *testing.T) {
	db := startCluster(t)
	config := services(t, "")
	for _, name := range []string{"a", "b"} {
		config += fmt.Sprintf("[service.%s.stop]\ndeadline = \"3s\"\nlame_duck.max = \"1s\"\n[service.%[1]s.retire]\nkill_grace = \"500ms\"\n", name)
	}
	d := startDaemon(t, newLog(t), config)
	execute(t, db, `INSERT INTO job (ms) VALUES (3600000)`)
	eventually(t, "the job is claimed", func() bool {
		var claimed int
		ask(t, db, `SELECT count(*) FROM job WHERE ms > 1000 AND lease > now()`, nil, &claimed)
		return claimed == 1
	})
	d.do("stop")
	if code := d.exit(); code != 0 {
		t.Errorf("handoverd exited with %d, want 0: nothing was cut", code)
	}
	var free bool
	var attempt, effects int
	ask(t, db, `SELECT lease IS NULL AND done IS NULL, attempt, (SELECT count(*) FROM effect WHERE job = id) FROM job WHERE ms > 1000`, nil, &free, &attempt, &effects)
	if !free || attempt != 1 || effects != 0 {
		t.Errorf("after the stop: free %v, claimed %d times, %d effects; want true, 1, 0", free, attempt, effects)
	}
}
