package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
)

const drillHelp = `Send requests to a server, reload it again and again meanwhile, and say what that costs its
clients. Errors are measured here, at the caller: a server's log cannot see a refused connection.

Any server will do, supervised or not. Requests are sent when they are due, whatever became of the
earlier ones, and their latency counts from then. Nothing is sent twice: a request that fails on a
reused connection is lost. (One exception, which is counted: a stream that an HTTP/2 server refused
unprocessed.) --rate is that of all modes together, which run at the same time:

  fresh      GET, one connection for each request
  keepalive  GET, again and again on the same connections
  post       POST of numbered bodies on the same connections
  stream     GET of answers that take their time, on the same connections
  websocket  numbered messages on connections that stay, each to be answered, as an echo does
  h2c, h2    GET in concurrent streams of HTTP/2; h2c without TLS (http://, unix://), h2 with it
  tcp        connect and close
  udp        numbered datagrams, each to be answered once, with its number (an echo does)

Of an answer is checked: its status, that its body came wholly, and what --expect-body and
--same-body say. A server that keeps the contract of examples/goserver (/fast, /stream, /upload;
number, generation and checksum in each body) is recognised where the URL has no path or /fast, and
then each byte is checked. docs/DRILL.md has more.

A URL is http:// or https:// (with TLS: HTTP/1.1, websocket or h2), ws:// or wss:// (websocket),
tcp://HOST:PORT, udp://HOST:PORT, or a UNIX socket: unix:///run/app.sock, or with a path of HTTP
http+unix://%2Frun%2Fapp.sock/PATH.

The trigger is one of --reload (handoverd's, by its control socket), --signal, --exec, or none. Each
opens a window, which ends with the reload; --signal and --exec do not tell, there it ends --window
later (after a kill, --window after another generation serves: connections are found dead late; after
one of handoverd, --window after it has been started again and serves). A
request due or in flight at any time of a window counts as inside. A loss of 0 in N reloads is shown with
its upper bound, 3/N a reload, at 95 % confidence.

The sizing proposed is:
  lame_duck = the longer of
    --check-interval x (--check-failures + 1)             what the balancer needs to see it
    1.5 x the last arrival, in whole seconds              the last request that an older generation
                                                          had, sent so long after its reload's begin
  drain     = 2 x the longest answer seen, at least 1s    longer ones than those seen exist
  grace     = 2 x p99.9, at least 1s                      for what SIGTERM interrupts
  deadline  = lame_duck + drain + grace                   to be below the platform's

Exit codes:
  0  nothing was lost (or no more than --max-failures), and the gates hold
  1  requests were lost, a trigger failed, a gate was passed, or it was interrupted; or more than 1 %
     of a mode's requests could not be sent, so that nobody knows what they would have met
  2  wrong arguments
  5  handoverd cannot be reached (--reload)`

// drillFlags are the arguments, as they were given.
type drillFlags struct {
	where    where
	url      string
	rate     float64
	duration time.Duration
	modes    []string
	clients  int
	timeout  time.Duration
	ca       string
	insecure bool

	expectStatus, expectBody, contract string
	sameBody                           bool

	reload, signal, exec string
	pid                  int
	every, window        time.Duration
	kill, killSupervisor float64
	restart              string
	restartWithin        time.Duration
	seed                 uint64

	maxFailures   int
	maxP99Ratio   float64
	deploys       float64
	instances     int
	checkInterval time.Duration
	checkFailures int
	asJSON        bool
	html          string
}

func drillCommand(e *env) *cobra.Command {
	o := &drillFlags{}
	cmd := &cobra.Command{
		Use:   "drill --url URL [--reload SERVICE | --signal SIG --pid N | --exec COMMAND]",
		Short: "Reload a server under load, and count what its clients lose",
		Long:  drillHelp,
		Example: `  handoverd drill --url http://127.0.0.1:8080 --reload web
  handoverd drill --url http://127.0.0.1:8080/health --signal HUP --pid 4711 --for 1m --every 5s
  handoverd drill --url http://127.0.0.1 --exec 'systemctl reload haproxy' --html drill.html
  handoverd drill --url http://127.0.0.1:8080 --reload web --kill 0.2 --max-failures 50 --json
  handoverd drill --url http://127.0.0.1:8080 --reload web --kill-supervisor 0.2     # systemd starts it again
  handoverd drill --url http://127.0.0.1:8080 --reload web --kill-supervisor 0.2 \
    --restart 'exec handoverd run -c web.toml >>handoverd.log 2>&1'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usage(err)
			}
			return runDrill(cmd.Context(), e, o)
		},
	}
	o.flags(cmd)
	return cmd
}

func (o *drillFlags) flags(cmd *cobra.Command) {
	o.where.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.url, "url", "", "what to ask: http://HOST[:PORT][/PATH], https, ws, wss, tcp://HOST:PORT, udp, unix:///SOCKET or http+unix://%2FSOCKET/PATH")
	f.StringVar(&o.ca, "ca", "", "file with the certificates to trust, in PEM; with https and wss (default the system's)")
	f.BoolVar(&o.insecure, "insecure", false, "take any certificate; with https and wss")
	f.Float64Var(&o.rate, "rate", 2000, "requests a second, of all modes together")
	f.DurationVar(&o.duration, "for", 30*time.Second, "how long")
	f.StringSliceVar(&o.modes, "mode", nil, "fresh, keepalive, post, stream, websocket, h2c, h2, tcp, udp; several with commas (default fresh,keepalive; for ws, wss, tcp and udp the URL's)")
	f.IntVar(&o.clients, "clients", 0, "requests at once in each mode, beyond which they wait (default: keepalive, post and websocket 64, h2c and h2 256 on 16 connections, udp 16, else at least 512)")
	f.DurationVar(&o.timeout, "timeout", 0, "after which a request is lost (default 10s, udp 2s)")

	f.StringVar(&o.contract, "contract", "auto", "auto, on or off: whether the server keeps the contract of examples/goserver")
	f.StringVar(&o.expectStatus, "expect-status", "", "good ones, as 200,204 or 2xx (default 2xx,3xx)")
	f.StringVar(&o.expectBody, "expect-body", "", "text that each answer contains")
	f.BoolVar(&o.sameBody, "same-body", false, "each body has the SHA-256 of the first one")

	f.StringVar(&o.reload, "reload", "", "trigger: reload this service of the running handoverd")
	f.StringVar(&o.signal, "signal", "", "trigger: send this signal, as HUP, to --pid")
	f.IntVar(&o.pid, "pid", 0, "process that --signal goes to")
	f.StringVar(&o.exec, "exec", "", "trigger: run this command with /bin/sh -c")
	f.DurationVar(&o.every, "every", 2*time.Second, "time from trigger to trigger")
	f.DurationVar(&o.window, "window", time.Second, "how long after --signal and --exec a reload is taken to last, and after --kill's replacement")
	f.Float64Var(&o.kill, "kill", 0, "share of the triggers that are a SIGKILL of the serving generation instead, as 0.2; with --reload")
	f.Float64Var(&o.killSupervisor, "kill-supervisor", 0, "share of the triggers that are a SIGKILL of handoverd itself; with --reload")
	f.StringVar(&o.restart, "restart", "", "command, run with /bin/sh -c, that starts handoverd again after such a kill; it may be handoverd, which then goes on after the drill (default: whoever supervises handoverd does)")
	f.DurationVar(&o.restartWithin, "restart-within", 2*time.Second, "--restart comes after a pause of 0 up to this")
	f.Uint64Var(&o.seed, "seed", 1, "which triggers kill, and how long those pauses are")

	f.IntVar(&o.maxFailures, "max-failures", 0, "exit 0 up to this many lost requests")
	f.Float64Var(&o.maxP99Ratio, "max-p99-ratio", 0, "exit 1 if a mode's p99 in windows is more than this many times the p99 outside (0: no gate)")
	f.Float64Var(&o.deploys, "deploys-per-week", 0, "say what that many reloads a week lose")
	f.IntVar(&o.instances, "instances", 1, "of so many instances, each under this load")
	f.DurationVar(&o.checkInterval, "check-interval", 0, "the balancer's, for the sizing")
	f.IntVar(&o.checkFailures, "check-failures", 3, "after which the balancer drops an instance, for the sizing")
	f.BoolVar(&o.asJSON, "json", false, "print the report as JSON")
	f.StringVar(&o.html, "html", "", "write a page with latency over time to this file")
}

// runDrill is the whole of it.
func runDrill(ctx context.Context, e *env, o *drillFlags) error {
	target, err := o.target()
	if err != nil {
		return usage(err)
	}
	trigger, err := o.trigger(ctx, e)
	if err != nil {
		return err
	}
	loads, contract, err := o.loads(ctx, target)
	if err != nil {
		return err
	}
	if err := o.pageCanBeWritten(); err != nil {
		return err
	}
	d := &drillRun{flags: o, env: e, trigger: trigger}
	if err := d.run(ctx, loads); err != nil {
		return err
	}
	report := d.report(contract)
	if o.asJSON {
		err = writeJSON(e.stdout, report)
	} else {
		err = report.write(e.stdout)
	}
	// After the report, which is all there is where the page cannot be written.
	if o.html != "" {
		err = errors.Join(err, writeDrillPage(o.html, report, d.reports))
	}
	if err == nil && !report.Passed {
		err = exitCode(exitFailed)
	}
	return err
}

// pageCanBeWritten is asked before the drill, which may last for hours.
func (o *drillFlags) pageCanBeWritten() error {
	if o.html == "" {
		return nil
	}
	f, err := os.OpenFile(o.html, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return f.Close()
}
