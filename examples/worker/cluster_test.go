//go:build linux

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// patience bounds every wait. It is no measure of anything: a busy machine must not fail a test.
const patience = 60 * time.Second

// startCluster starts a PostgreSQL of the test's own, with the tables, for this process and all that it starts.
func startCluster(t *testing.T) *pgxpool.Pool {
	t.Helper()
	// Short, for its socket's path, and where the user postgres may go.
	parent, err := os.MkdirTemp("/tmp", "worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o711); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(parent, "pg")
	if out, err := exec.Command("./cluster", "start", dir).CombinedOutput(); err != nil {
		t.Fatalf("cluster start: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("./cluster", "stop", dir).CombinedOutput(); err != nil {
			t.Errorf("cluster stop: %v\n%s", err, out)
		}
	})
	t.Setenv("PGHOST", dir)
	t.Setenv("PGUSER", "postgres")
	t.Setenv("PGDATABASE", "postgres")
	db, err := connect(context.Background(), "test", 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close) // before the cluster stops
	schema, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	execute(t, db, string(schema))
	return db
}

func execute(t *testing.T, db *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// ask scans one row.
func ask(t *testing.T, db *pgxpool.Pool, sql string, args []any, values ...any) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(values...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// eventually polls until ok, for what a database does not tell by itself.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
