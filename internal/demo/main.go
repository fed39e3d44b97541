// Command demo shows in half a minute what handoverd is for: a Go server that is
// reloaded under load, deployed broken, and killed, with every request counted
// from the client's side; and the same server restarted the usual way.
//
// It is run from the top of the source tree by "make demo", which builds handoverd.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	err := demo(ctx)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

const (
	rate    = 500
	reloads = 20
)

func demo(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "handoverd-demo-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server := filepath.Join(dir, "goserver")
	if err := build(ctx, server, "./examples/goserver"); err != nil {
		return err
	}
	d, err := start(ctx, dir, server)
	if err != nil {
		return err
	}
	defer d.end()
	say("handoverd (pid %d) holds http://%s and runs examples/goserver", d.cmd.Process.Pid, d.address)
	say("load: new connections at %d/s, and keep-alive POSTs on 16 connections at %d/s; nothing is retried", rate, rate)

	for _, s := range []struct {
		title string
		do    func(context.Context, *daemon, *clients) error
	}{
		{fmt.Sprintf("%d reloads by SIGHUP", reloads), reloadMany},
		{"3 broken deploys: the new program exits in init", deployBroken},
		{"the serving program is killed (SIGKILL), 3 times", killServing},
	} {
		if err := scene(ctx, d, s.title, s.do); err != nil {
			return err
		}
	}
	if err := d.stop(); err != nil {
		return err
	}
	return usualWay(ctx, server)
}

// scene plays one part of the demo under load and prints what it cost.
func scene(ctx context.Context, d *daemon, title string, do func(context.Context, *daemon, *clients) error) error {
	c, err := load(ctx, d.address)
	if err != nil {
		return err
	}
	began := time.Now()
	err = do(ctx, d, c)
	c.print(title, time.Since(began))
	return err
}

func reloadMany(ctx context.Context, d *daemon, c *clients) error {
	for range reloads {
		if err := d.hangUp(); err != nil {
			return err
		}
		d.generation++
		if err := c.see(ctx, d.generation); err != nil {
			return err
		}
	}
	return nil
}

// deployBroken points the command at a program that fails, as a bad release does.
func deployBroken(ctx context.Context, d *daemon, c *clients) error {
	if err := d.deploy("/bin/false"); err != nil {
		return err
	}
	for range 3 {
		if err := d.reloadFails(ctx); err != nil {
			return err
		}
		d.generation++ // an attempt uses up its number
		if err := c.moment(ctx); err != nil {
			return err
		}
	}
	return d.deploy(d.server)
}

func killServing(ctx context.Context, d *daemon, c *clients) error {
	for range 3 {
		pid, err := d.serving(ctx)
		if err != nil {
			return err
		}
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			return err
		}
		d.generation++
		if err := c.see(ctx, d.generation); err != nil {
			return err
		}
	}
	return nil
}

func say(format string, args ...any) { fmt.Printf(format+"\n", args...) }
