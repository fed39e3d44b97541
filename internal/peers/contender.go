package main

import "time"

// The programs of a run, by the name under which it has them.
const (
	programHandoverd = "handoverd"
	programGoserver  = "goserver"
	programBackend   = "backend" // goserver under another name, which no reload touches
	programHolder    = "holder"
	programServer    = "peerserver"
	programTableflip = "tableflip"
	programHAProxy   = "haproxy"
	programNginx     = "nginx"
	programGunicorn  = "gunicorn"
	programStarter   = "start_server"
	programIptables  = "iptables"
	programTC        = "tc"
)

// contender is one way to replace a serving program.
type contender struct {
	name    string
	title   string
	base    string   // the contender of handoverd that it is compared with; empty: it is one
	needs   []string // programs
	replace string   // the name of the processes that a reload replaces
	header  string   // in which a proxy tells its generation; it then stands before a backend that stays
	command string   // as shown: how it is started
	trigger string   // as shown: what a reload is

	// after is how long clients still wait because of a reload that is over: its window then lasts that much longer.
	after time.Duration
}

// The contenders that others are compared with, and the pair whose ratio the acceptance of this benchmark is about.
const (
	ownGo, ownHAProxy, ownNginx = "handoverd-go", "handoverd-haproxy", "handoverd-nginx"
	bareHolder                  = "bare-holder"
)

// generationField is the header in which the proxies tell which configuration answered.
const generationField = "X-Peers-Generation"

// contenders are in the order of the tables.
var contenders = []contender{
	{
		name: ownGo, title: "handoverd, Go server", needs: []string{programHandoverd, programGoserver}, replace: programGoserver,
		command: "handoverd run -c handoverd.toml (command = examples/goserver)", trigger: "SIGHUP to handoverd",
	},
	{
		name: bareHolder, title: "bare fd holder, the same Go server", base: ownGo, needs: []string{programHolder, programGoserver},
		replace: programGoserver, command: "internal/peers/holder 127.0.0.1:8080 goserver", trigger: "SIGHUP to the holder",
	},
	{
		name: "tableflip-drain", title: "tableflip, left by package drain", base: ownGo, needs: []string{programTableflip}, replace: programTableflip,
		command: "internal/tableflipserver -leave drain", trigger: "SIGHUP",
	},
	{
		name: "tableflip-shutdown", title: "tableflip, left by http.Server.Shutdown", base: ownGo, needs: []string{programTableflip},
		replace: programTableflip, command: "internal/tableflipserver -leave shutdown", trigger: "SIGHUP",
	},
	{
		name: "server-starter", title: "Server::Starter, Go server left by package drain", base: ownGo,
		needs: []string{programStarter, programServer}, replace: programServer,
		command: "start_server --port=127.0.0.1:8080 -- internal/peers/server", trigger: "SIGHUP to start_server",
	},
	{
		name: "gunicorn", title: "gunicorn", base: ownGo, needs: []string{programGunicorn}, replace: programGunicorn,
		command: "gunicorn -c gunicorn.conf.py app:app (2 gthread workers, 32 threads each, keepalive 30)", trigger: "SIGHUP to the arbiter",
	},
	{
		name: "reuseport", title: "SO_REUSEPORT, start new, then stop old", base: ownGo, needs: []string{programServer}, replace: programServer,
		command: "internal/peers/server -reuseport (package drain)", trigger: "start the new one, wait until it listens, SIGTERM to the old one",
	},
	{
		name: "reuseport-migrate", title: "the same with net.ipv4.tcp_migrate_req = 1", base: ownGo, needs: []string{programServer},
		replace: programServer, command: "sysctl net.ipv4.tcp_migrate_req=1; internal/peers/server -reuseport (package drain)",
		trigger: "start the new one, wait until it listens, SIGTERM to the old one",
	},
	{
		name: "stop-start", title: "stop and start", base: ownGo, needs: []string{programServer}, replace: programServer,
		command: "internal/peers/server -leave shutdown", trigger: "SIGTERM, wait for its end, start",
	},
	{
		name: "syn-drop", title: "stop and start behind dropped SYNs", base: ownGo, needs: []string{programServer, programIptables},
		replace: programServer, command: "internal/peers/server (package drain)", after: 2 * time.Second,
		trigger: "iptables -I INPUT -p tcp --dport 8080 --syn -j DROP, SIGTERM, wait for its end, start, wait until it listens, iptables -D",
	},
	{
		name: "syn-delay", title: "stop and start behind delayed SYNs", base: ownGo, needs: []string{programServer, programTC},
		replace: programServer, command: "internal/peers/server (package drain); htb on lo, SYNs by u32 to a tbf", after: 500 * time.Millisecond,
		trigger: "tc qdisc change: tbf 8bit, SIGTERM, wait for its end, start, wait until it listens, tc qdisc change: tbf 10gbit",
	},
	{
		name: ownHAProxy, title: "handoverd, HAProxy", needs: []string{programHandoverd, programHAProxy, programBackend}, replace: programHAProxy,
		header: generationField, command: `handoverd run -c handoverd.toml (command = haproxy -db -de, bind fd@${HANDOVER_FD_HTTP})`,
		trigger: "SIGHUP to handoverd",
	},
	{
		name: "haproxy-sf", title: "HAProxy -sf", base: ownHAProxy, needs: []string{programHAProxy, programBackend}, replace: programHAProxy,
		header: generationField, command: "haproxy -db", trigger: "haproxy -db -sf OLD",
	},
	{
		name: "haproxy-x", title: "HAProxy -x -sf", base: ownHAProxy, needs: []string{programHAProxy, programBackend}, replace: programHAProxy,
		header: generationField, command: "haproxy -db, stats socket … expose-fd listeners", trigger: "haproxy -db -x SOCKET -sf OLD",
	},
	{
		name: "haproxy-mw", title: "HAProxy master-worker", base: ownHAProxy, needs: []string{programHAProxy, programBackend}, replace: programHAProxy,
		header: generationField, command: "haproxy -W -db", trigger: "SIGUSR2 to the master",
	},
	{
		name: ownNginx, title: "handoverd, nginx", needs: []string{programHandoverd, programNginx, programBackend}, replace: programNginx,
		header: generationField, command: "handoverd run -c handoverd.toml (command = nginx -g 'daemon off;')", trigger: "SIGHUP to handoverd",
	},
	{
		name: "nginx-hup", title: "nginx, HUP", base: ownNginx, needs: []string{programNginx, programBackend}, replace: programNginx,
		header: generationField, command: "nginx -g 'daemon off;'", trigger: "SIGHUP to the master",
	},
	{
		name: "nginx-usr2", title: "nginx, upgrade of the binary", base: ownNginx, needs: []string{programNginx, programBackend}, replace: programNginx,
		header: generationField, command: "nginx", trigger: "SIGUSR2 to the master, wait for answers of the new one, SIGQUIT to the old one",
	},
}

// contenderNamed finds one; false: there is none.
func contenderNamed(name string) (contender, bool) {
	for _, c := range contenders {
		if c.name == name {
			return c, true
		}
	}
	return contender{}, false
}
