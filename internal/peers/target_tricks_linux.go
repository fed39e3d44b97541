package main

import (
	"context"
	_ "embed"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// synDrop drops the packets that open connections. Clients send them again, the first time after a second (RFC 6298).
type synDrop struct{ b *bench }

func (synDrop) prepare(context.Context) error { return nil }

func (d synDrop) rule(ctx context.Context, action string) error {
	return d.b.command(ctx, programIptables, "-w", action, "INPUT", "-p", "tcp", "--dport", fmt.Sprint(port), "--syn", "-j", "DROP")
}

func (d synDrop) shut(ctx context.Context) error { return d.rule(ctx, "-I") }
func (d synDrop) open(ctx context.Context) error { return d.rule(ctx, "-D") }

// synDelay holds back the packets that open connections, and lets them go afterwards. The qdisc for this is plug; where the
// kernel has none, a token bucket that is given one byte a second and no more tokens than one such packet takes does the same:
// a change of its rate fills it anew and keeps its queue (tc-tbf(8)).
type synDelay struct{ b *bench }

func (d synDelay) tc(ctx context.Context, line string) error {
	err := d.b.command(ctx, programTC, strings.Fields(line)...)
	if err != nil && strings.Contains(err.Error(), "kind is unknown") {
		return fmt.Errorf("%w: %w", errKernel, err)
	}
	return err
}

func (d synDelay) prepare(ctx context.Context) error {
	for _, line := range []string{
		"qdisc add dev lo root handle 1: htb default 10",
		"class add dev lo parent 1: classid 1:10 htb rate 10gbit",
		"class add dev lo parent 1: classid 1:20 htb rate 10gbit",
		"qdisc add dev lo parent 1:20 handle 20: tbf rate 10gbit burst 1mb limit 10mb",
		// The byte at 33 is that of TCP's flags behind 20 bytes of IPv4: SYN alone.
		fmt.Sprintf("filter add dev lo parent 1: protocol ip u32 match ip protocol 6 0xff match ip dport %d 0xffff match u8 0x02 0xff at 33 flowid 1:20", port),
	} {
		if err := d.tc(ctx, line); err != nil {
			return err
		}
	}
	return nil
}

func (d synDelay) shut(ctx context.Context) error {
	if err := d.tc(ctx, "qdisc change dev lo parent 1:20 handle 20: tbf rate 8bit burst 100b limit 10mb"); err != nil {
		return err
	}
	// The bucket is full after a change: one packet passes. It should not be one that comes when nobody listens any more, so
	// it is used up here. Where a client was faster this one is held back, which is as good.
	if c, err := net.DialTimeout("tcp4", address, 20*time.Millisecond); err == nil {
		return c.Close()
	}
	return nil
}

func (d synDelay) open(ctx context.Context) error {
	return d.tc(ctx, "qdisc change dev lo parent 1:20 handle 20: tbf rate 10gbit burst 1mb limit 10mb")
}

// gunicornApp is the example site as a WSGI program.
//
//go:embed app.py
var gunicornApp string

const gunicornConfig = `bind = "` + address + `"
worker_class = "gthread"
workers = 2
threads = 32
keepalive = 30
graceful_timeout = 30
timeout = 60
`

// gunicorn is an arbiter that replaces its workers, which import the program anew.
type gunicorn struct {
	b       *bench
	arbiter *process
}

func (g *gunicorn) start(context.Context) (err error) {
	for name, text := range map[string]string{"app.py": gunicornApp, "gunicorn.conf.py": gunicornConfig, "generation": "1"} {
		if err := g.b.write(name, text); err != nil {
			return err
		}
	}
	if g.arbiter, err = g.b.launch(nil, programGunicorn, "-c", g.b.file("gunicorn.conf.py"), "app:app"); err == nil {
		g.b.keep = []int{g.arbiter.pid}
	}
	return err
}

func (g *gunicorn) reload(_ context.Context, generation int) error {
	if err := g.b.write("generation", fmt.Sprint(generation)); err != nil {
		return err
	}
	return g.arbiter.signal(unix.SIGHUP)
}
