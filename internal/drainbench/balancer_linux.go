package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// balancer is a HAProxy or an nginx before two servers.
type balancer struct {
	row   row
	pace  pace
	addr  string
	stats string // HAProxy's runtime API
	cmd   *exec.Cmd
	log   bytes.Buffer
	over  chan struct{} // closed when it has been waited for
}

// patience bounds each wait for something that is to come soon.
const patience = 30 * time.Second

// haproxyConfig has no retries: a failure is the client's.
const haproxyConfig = `global
    maxconn 4000
    nbthread 1
    stats socket %[1]s mode 600 level admin

defaults
    mode http
    timeout connect 2s
    timeout client 30s
    timeout server 30s
    timeout check 2s
    retries 0

frontend web
    bind %[2]s
    default_backend app

backend app
    balance roundrobin
    option httpchk GET /ready
    http-check expect status 200
    default-server check inter %[3]d fall %[4]d rise 1 pool-purge-delay 1s
    server a %[5]s
    server b %[6]s
`

const nginxConfig = `daemon off;
master_process off;
pid %[1]s/nginx.pid;
error_log stderr crit;
events { worker_connections 2000; }
http {
    access_log off;
    client_body_temp_path %[1]s/body;
    proxy_temp_path %[1]s/proxy;
    fastcgi_temp_path %[1]s/fastcgi;
    uwsgi_temp_path %[1]s/uwsgi;
    scgi_temp_path %[1]s/scgi;
    keepalive_requests 1000000;
    upstream app {
        server %[3]s max_fails=1 fail_timeout=1s;
        server %[4]s max_fails=1 fail_timeout=1s;
    }
    server {
        listen %[2]s;
        location / {
            proxy_pass http://app;
            proxy_next_upstream %[5]s;
        }
    }
}
`

// nginxForgets is more than the fail_timeout of the configuration.
const nginxForgets = 1200 * time.Millisecond

// startBalancer starts it before the servers a and b. The caller calls stop.
func startBalancer(dir string, r row, p pace, a, b string) (*balancer, error) {
	addr, err := freePort()
	if err != nil {
		return nil, err
	}
	l := &balancer{row: r, pace: p, addr: addr, stats: filepath.Join(dir, "stats"), over: make(chan struct{})}
	file := filepath.Join(dir, "balancer.conf")
	text := fmt.Sprintf(haproxyConfig, l.stats, addr, p.inter.Milliseconds(), p.fall, a, b)
	l.cmd = exec.Command("haproxy", "-db", "-f", file)
	if r.Nginx {
		next := "off"
		if r.Retry {
			next = "error timeout"
		}
		text = fmt.Sprintf(nginxConfig, dir, addr, a, b, next)
		l.cmd = exec.Command("nginx", "-p", dir, "-e", "stderr", "-c", file)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	l.cmd.Stdout, l.cmd.Stderr = &l.log, &l.log
	if path, err := systemProgram(l.cmd.Args[0]); err == nil {
		l.cmd.Path, l.cmd.Err = path, nil
	}
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	// Waited for by stop, through over.
	go l.wait()
	return l, nil
}

// systemProgram finds a program that may be in the folders of the system alone, where root's PATH may lead and others' not.
func systemProgram(name string) (string, error) {
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/usr/local/bin", "/usr/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

func (l *balancer) wait() {
	_ = l.cmd.Wait() // it is ended by a signal
	close(l.over)
}

// stop ends it.
func (l *balancer) stop() {
	select {
	case <-l.over:
	default:
		_ = l.cmd.Process.Signal(syscall.SIGKILL)
		<-l.over
	}
}

// up waits until it sends requests to the server.
func (l *balancer) up(ctx context.Context, name string) error {
	if l.row.Nginx {
		return drill.Pause(ctx, nginxForgets)
	}
	return l.until(ctx, name, func(s stat) bool { return s.status == "UP" })
}

// down waits until it sends none to a server that has ended.
func (l *balancer) down(ctx context.Context, name string) error {
	if l.row.Nginx {
		return drill.Pause(ctx, l.pace.away)
	}
	return l.until(ctx, name, func(s stat) bool { return !strings.HasPrefix(s.status, "UP") })
}

func (l *balancer) until(ctx context.Context, name string, wanted func(stat) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last stat
	err := poll(ctx, func() bool {
		s, err := serverStat(ctx, l.stats, name)
		last = s
		return err == nil && wanted(s)
	})
	if err != nil {
		return fmt.Errorf("wait for %s, now %+v: %w", name, last, err)
	}
	return nil
}

// poll asks until it is so.
func poll(ctx context.Context, ok func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// accepts waits until something accepts there.
func accepts(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return poll(ctx, func() bool {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		return c.Close() == nil
	})
}

// freePort is an address that nobody has, from below the range of which the kernel gives ports to clients (ip(7),
// ip_local_port_range), so that it stays free while the server is away.
func freePort() (string, error) {
	for range 1000 {
		addr := fmt.Sprintf("127.0.0.1:%d", ports())
		l, err := net.Listen("tcp4", addr)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", err
		}
		return addr, l.Close()
	}
	return "", errors.New("no free port from 20000 to 31999")
}
