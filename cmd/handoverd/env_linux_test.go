package main

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A stop is heard however many reloads were asked for while nobody listened.
func TestNotifyKeepsStop(t *testing.T) {
	signals, stop := notify()
	defer stop()
	for range 1000 {
		if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Kill(os.Getpid(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	heard := map[os.Signal]bool{}
	for !heard[unix.SIGTERM] || !heard[unix.SIGHUP] {
		select {
		case s := <-signals:
			heard[s] = true
		case <-time.After(30 * time.Second):
			t.Fatalf("heard %v, want SIGHUP and SIGTERM", heard)
		}
	}
}
