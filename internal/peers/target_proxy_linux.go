package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// haproxyConfig is examples/haproxy, the same for all ways of reloading but for the bind line and what the way needs.
const haproxyConfig = `global
    maxconn 4000
    %s
defaults
    mode http
    timeout connect      5s
    timeout client      30s
    timeout server      30s
    timeout http-request 10s
    option idle-close-on-response
    timeout http-keep-alive 30s
frontend web
    bind %s
    http-response set-header %s %d
    default_backend app
backend app
    server app %s
`

func (b *bench) writeHAProxy(global, bind string, generation int) error {
	return b.write("haproxy.cfg", fmt.Sprintf(haproxyConfig, global, bind, generationField, generation, backendAddress))
}

func superviseHAProxy(b *bench) string {
	program, config := b.programs[programHAProxy], b.file("haproxy.cfg")
	return fmt.Sprintf("command = [%q, \"-db\", \"-de\", \"-f\", %q]\ncheck = [%q, \"-c\", \"-f\", %q]", program, config, program, config)
}

func haproxyFD(b *bench, generation int) error {
	return b.writeHAProxy("", "fd@${HANDOVER_FD_HTTP}", generation)
}

// haproxy is replaced by a new process that tells the old one to finish, -sf, and first fetches its sockets where fetch is
// set, -x.
type haproxy struct {
	b       *bench
	fetch   bool
	running *process
}

func (h *haproxy) configure(generation int) error {
	global := ""
	if h.fetch {
		global = "stats socket " + h.socket() + " mode 600 level admin expose-fd listeners"
	}
	return h.b.writeHAProxy(global, address, generation)
}

func (h *haproxy) socket() string { return h.b.file("haproxy.sock") }

func (h *haproxy) start(context.Context) (err error) {
	if err := h.configure(1); err != nil {
		return err
	}
	h.running, err = h.b.launch(nil, programHAProxy, "-db", "-f", h.b.file("haproxy.cfg"))
	return err
}

func (h *haproxy) reload(_ context.Context, generation int) (err error) {
	if err := h.configure(generation); err != nil {
		return err
	}
	args := []string{"-db", "-f", h.b.file("haproxy.cfg")}
	if h.fetch {
		args = append(args, "-x", h.socket())
	}
	h.running, err = h.b.launch(nil, programHAProxy, append(args, "-sf", fmt.Sprint(h.running.pid))...)
	return err
}

// haproxyMaster is a master that replaces its worker.
type haproxyMaster struct {
	b      *bench
	master *process
}

func (h *haproxyMaster) start(context.Context) (err error) {
	if err := h.b.writeHAProxy("", address, 1); err != nil {
		return err
	}
	if h.master, err = h.b.launch(nil, programHAProxy, "-W", "-db", "-f", h.b.file("haproxy.cfg")); err == nil {
		h.b.keep = []int{h.master.pid}
	}
	return err
}

func (h *haproxyMaster) reload(_ context.Context, generation int) error {
	if err := h.b.writeHAProxy("", address, generation); err != nil {
		return err
	}
	return h.master.signal(unix.SIGUSR2)
}

// nginxConfig is the same for all ways. The workers keep the user of the master: the block's files are root's.
const nginxConfig = `user root;
worker_processes 2;
error_log stderr;
%s
events {}
http {
    access_log off;
    keepalive_timeout 30s;
    keepalive_requests 1000000;
    upstream app {
        server %s;
        keepalive 32;
    }
    server {
        listen %s;
        location / {
            proxy_pass http://app;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
            add_header %s %d;
        }
    }
}
`

func (b *bench) writeNginx(file, main string, generation int) error {
	return b.write(file, fmt.Sprintf(nginxConfig, main, backendAddress, address, generationField, generation))
}

func superviseNginx(b *bench) string {
	return fmt.Sprintf("command = [%q, \"-c\", %q, \"-g\", %q]", b.programs[programNginx], b.file("nginx.${HANDOVER_GENERATION}.conf"),
		"daemon off; pid "+b.file("nginx.${HANDOVER_GENERATION}.pid")+";")
}

// nginxNumbered writes a file for each generation: the old master removes its pid file when it ends.
func nginxNumbered(b *bench, generation int) error {
	return b.writeNginx(fmt.Sprintf("nginx.%d.conf", generation), "", generation)
}

// nginx is a master that replaces its workers.
type nginx struct {
	b      *bench
	master *process
}

func (n *nginx) configure(generation int) error {
	return n.b.writeNginx("nginx.conf", "daemon off; pid "+n.b.file("nginx.pid")+";", generation)
}

func (n *nginx) start(context.Context) (err error) {
	if err := n.configure(1); err != nil {
		return err
	}
	if n.master, err = n.b.launch(nil, programNginx, "-c", n.b.file("nginx.conf")); err == nil {
		n.b.keep = []int{n.master.pid}
	}
	return err
}

func (n *nginx) reload(_ context.Context, generation int) error {
	if err := n.configure(generation); err != nil {
		return err
	}
	return n.master.signal(unix.SIGHUP)
}

// nginxUpgrade is a master that starts another one, nginx.org/en/docs/control.html, "Upgrading Executable on the Fly".
type nginxUpgrade struct{ b *bench }

func (n *nginxUpgrade) configure(generation int) error {
	return n.b.writeNginx("nginx.conf", "pid "+n.b.file("nginx.pid")+";", generation)
}

func (n *nginxUpgrade) start(ctx context.Context) error {
	if err := n.configure(1); err != nil {
		return err
	}
	// It goes to the background when it listens.
	first, err := n.b.launch(nil, programNginx, "-c", n.b.file("nginx.conf"))
	if err != nil {
		return err
	}
	return first.ended(ctx)
}

func (n *nginxUpgrade) reload(ctx context.Context, generation int) error {
	if err := n.configure(generation); err != nil {
		return err
	}
	old, err := pidIn(n.b.file("nginx.pid"))
	if err != nil {
		return err
	}
	if err := unix.Kill(old, unix.SIGUSR2); err != nil {
		return err
	}
	if err := n.b.seen(ctx, generation); err != nil {
		return err
	}
	if err := unix.Kill(old, unix.SIGQUIT); err != nil {
		return err
	}
	// Until the old master has given up its pid file there is no next upgrade.
	return until(ctx, "the end of nginx.pid.oldbin", func() bool {
		_, err := os.Stat(n.b.file("nginx.pid.oldbin"))
		return errors.Is(err, os.ErrNotExist)
	})
}
