package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/supervisor"
)

const checkHelp = `Read a configuration and print what handoverd would do with it: the services in the order
they start, their sockets, how each becomes ready, how long a reload may take, and the time line
of a stop with every part at its latest. Budgets that cannot work are refused.

Nothing is run, bound or changed. A service's check command is named, not run: it runs before
the first start and before each reload, which is refused when it fails. Programs, directories,
users and env_files are looked up as a start would; arguments and environments are not shown.

With --kubernetes, read manifests instead: say what in them would cost requests at a stop or a
rollout, and how long both take. A preStop hook counts against the grace, so hook + lame duck +
drain + kill grace + margin must fit into it. What a manifest cannot tell comes from annotations
(handoverd/drain: 20s), with -c FILE from the configuration for pods that run handoverd, else
from flags. docs/KUBERNETES.md has all rules.

Exit codes: 0 it can be run (warnings or not), 1 it cannot: each error has file, line and key;
with --kubernetes: 1 there are findings (notes are none); 2 wrong arguments.`

func checkCommand(e *env) *cobra.Command {
	var file string
	var asJSON bool
	var manifests kubeFlags
	cmd := &cobra.Command{
		Use:   "check [-c FILE] [--json] [--kubernetes FILES...]",
		Short: "Read a configuration, or Kubernetes manifests, and print what would be done",
		Long:  checkHelp,
		Example: `  handoverd check -c /etc/handoverd.toml
  handoverd check -c new.toml --json | jq .warnings
  handoverd check --kubernetes --drain 20s deploy/
  helm template . | handoverd check --kubernetes -`,
		Args: func(cmd *cobra.Command, args []string) error {
			if manifests.on {
				return nil
			}
			return noArgs(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if manifests.on {
				manifests.config, manifests.asJSON = file, asJSON
				return manifests.run(e, cmd, args)
			}
			for _, name := range kubeOnly {
				if cmd.Flags().Changed(name) {
					return usage(fmt.Errorf("--%s is for check --kubernetes", name))
				}
			}
			if file == "" {
				file = defaultConfig
			}
			r := check(file)
			if asJSON {
				if err := writeJSON(e.stdout, r); err != nil {
					return err
				}
			} else if err := r.print(e.stdout, e.stderr); err != nil {
				return err
			}
			if len(r.Errors) > 0 {
				return exitCode(exitFailed)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "config", "c", "", "configuration file (default "+defaultConfig+")")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	manifests.flags(cmd)
	return cmd
}

// checkReport is what check has found.
type checkReport struct {
	File       string         `json:"file"`
	Digest     string         `json:"digest,omitempty"`
	RuntimeDir string         `json:"runtime_dir,omitempty"`
	Admin      string         `json:"admin,omitempty"`
	Health     string         `json:"health,omitempty"`
	Errors     []checkError   `json:"errors"`
	Warnings   []string       `json:"warnings"`
	Services   []checkService `json:"services"`
}

type checkError struct {
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
	Key   string `json:"key,omitempty"`
	Error string `json:"error"`
	text  string
}

type checkService struct {
	supervisor.ServicePlan
	Dialects []string      `json:"dialects"`
	After    []string      `json:"after,omitempty"`
	Sockets  []checkSocket `json:"sockets"`
	Ready    []step        `json:"ready"`
	Retire   []step        `json:"retire"`
	Stop     []step        `json:"stop"`
	StopLine []phase       `json:"stop_line"`
	ReadyWay string        `json:"ready_way"`
	Gate     string        `json:"gate,omitempty"` // who has to agree before the commit
	Dies     string        `json:"dies"`           // what is done when the program dies
}

type checkSocket struct {
	Name    string `json:"name"`
	FD      int    `json:"fd"`
	Address string `json:"address"`
	// PerGeneration: bound anew for each generation.
	PerGeneration bool `json:"per_generation,omitempty"`
}

// step is one point of a time budget.
type step struct {
	At   float64 `json:"at_seconds"`
	What string  `json:"what"`
}

func check(file string) *checkReport {
	r := &checkReport{File: file, Errors: []checkError{}, Warnings: []string{}, Services: []checkService{}}
	cfg, err := supervisor.Load(file)
	r.fail(err)
	if cfg == nil {
		return r
	}
	r.Digest, r.RuntimeDir, r.Admin, r.Health = cfg.Digest, cfg.RuntimeDir, cfg.Admin, cfg.Health
	plans, err := cfg.Plan()
	r.fail(err)
	r.Warnings = append(r.Warnings, cfg.Warnings()...)
	for _, s := range cfg.Services {
		i := slices.IndexFunc(plans, func(p supervisor.ServicePlan) bool { return p.Name == s.Name })
		if i >= 0 {
			r.Services = append(r.Services, planned(s, &plans[i]))
		}
		r.Warnings = append(r.Warnings, stopWarnings(s)...)
	}
	return r
}

func (r *checkReport) fail(err error) {
	if err == nil {
		return
	}
	for _, e := range supervisor.AllConfigErrors(err) {
		r.Errors = append(r.Errors, checkError{e.File, e.Line, e.Key, e.Err.Error(), e.Error()})
	}
	if len(r.Errors) == 0 {
		r.Errors = append(r.Errors, checkError{Error: err.Error(), text: err.Error()})
	}
}

func planned(s *supervisor.ServiceConfig, p *supervisor.ServicePlan) checkService {
	out := checkService{
		ServicePlan: *p, Dialects: s.Dialects, After: s.After, Sockets: []checkSocket{},
		Ready: readySteps(s), Retire: retireSteps(s, p), Stop: stopSteps(s, p),
		StopLine: stopLine(s, p), ReadyWay: readyWay(s, p), Dies: diesText(s),
	}
	if g := s.Ready.Gate; g != nil {
		out.Gate = g.Kind + ": " + probeText(g)
	}
	for i, sock := range s.Sockets {
		out.Sockets = append(out.Sockets, checkSocket{sock.Name, 3 + i, sock.Addr.String(), sock.PerGeneration})
	}
	return out
}

// readyWay says how a new generation is found to be ready, here and for its user.
func readyWay(s *supervisor.ServiceConfig, p *supervisor.ServicePlan) string {
	accepting := "seen accepting on a socket"
	if p.Blind != "" {
		accepting = fmt.Sprintf("alive for %s, since accepting cannot be seen here for user %d (%s)", s.Ready.AliveFor, p.UID, p.Blind)
	}
	if !shares(s) {
		accepting = fmt.Sprintf("alive for %s, since it has no socket that the generations share", s.Ready.AliveFor)
	}
	switch s.Ready.When {
	case "auto":
		return "auto: its message if it speaks the child protocol, READY=1 if it speaks to NOTIFY_SOCKET, else " + accepting
	case "accepting":
		return "accepting: " + accepting
	case "native":
		return "native: its message over the child protocol"
	case "notify":
		return "notify: READY=1 to NOTIFY_SOCKET"
	case "newline":
		return "newline: a newline on the descriptor that HANDOVER_READY_FD names"
	case "http", "tcp", "exec":
		return s.Ready.When + ": " + probeText(s.Ready.Probe)
	case "alive":
		return fmt.Sprintf("alive for %s", s.Ready.AliveFor)
	}
	return s.Ready.When
}

// probeText says what is asked, and how often. Arguments and URLs are not shown.
func probeText(p *supervisor.ProbeConfig) string {
	what := "its program"
	switch {
	case p.Socket != "":
		what = "socket " + p.Socket
	case p.Address != "":
		what = p.Address
	case p.URL != "":
		what = "its URL"
	}
	if p.Kind == "http" && p.URL == "" {
		what = "GET " + p.Path + " on " + what
	}
	return fmt.Sprintf("asks %s each %s, at most %s each; believes %d good answers in a row, or %d failures",
		what, p.Interval, p.Timeout, p.Successes, p.Failures)
}

func at(d time.Duration, what string) step { return step{d.Seconds(), what} }

func readySteps(s *supervisor.ServiceConfig) []step {
	steps := []step{at(0, "started"), at(s.Ready.InitGrace, "killed, unless ready and alive for another "+s.Ready.Settle.String()+" (settle)")}
	if s.Ready.Gate != nil {
		steps[1].What += ", and the gate has opened"
	}
	if s.Ready.Bake > 0 {
		steps = append(steps, at(s.Ready.InitGrace+s.Ready.Bake, "commit at the latest: old and new both accept for "+s.Ready.Bake.String()+" (bake)"+bakeEnd(s)))
	}
	return steps
}

// bakeEnd says what ends a bake early.
func bakeEnd(s *supervisor.ServiceConfig) string {
	if s.Ready.Probe == nil {
		return "; rolled back, if the new one dies"
	}
	return "; rolled back, if the new one dies or its probe fails (" + probeText(s.Ready.Probe) + ")"
}

// shares reports whether generations of the service share a socket, which an old one has to let go.
func shares(s *supervisor.ServiceConfig) bool {
	return slices.ContainsFunc(s.Sockets, func(c supervisor.SocketConfig) bool { return !c.PerGeneration })
}

func retireSteps(s *supervisor.ServiceConfig, p *supervisor.ServicePlan) []step {
	r := &s.Retire
	steps := []step{at(0, "told to drain: "+toldBy(s, p))}
	if shares(s) && r.ReleaseTimeout < r.ParentShutdown {
		what := "reported as not released, if it still accepts"
		if r.OnNoRelease == "terminate" {
			what = "terminated, if it still accepts"
		}
		steps = append(steps, at(r.ReleaseTimeout, what))
	}
	if p.DrainSignal != "SIGTERM" || hooked(s) {
		steps = append(steps, at(r.ParentShutdown-r.KillGrace, "SIGTERM"))
	}
	return append(steps, at(r.ParentShutdown, "SIGKILL to everything it started"))
}

func hooked(s *supervisor.ServiceConfig) bool {
	return len(s.Retire.Drain.Exec) > 0 || s.Retire.Drain.HTTP != ""
}

// toldBy says how a program learns that it drains.
func toldBy(s *supervisor.ServiceConfig, p *supervisor.ServicePlan) string {
	by := p.DrainSignal
	if hooked(s) {
		by = "retire.drain"
	}
	if s.Retire.AnswerTimeout == 0 {
		return by + ", or the message of the child protocol alone"
	}
	return fmt.Sprintf("%s, or the message of the child protocol, and after %s without an answer the former as well", by, s.Retire.AnswerTimeout)
}

func stopSteps(s *supervisor.ServiceConfig, p *supervisor.ServicePlan) []step {
	steps := []step{at(0, "/ready answers 503")}
	d := &s.Stop.LameDuck
	if d.Until == "timer" {
		steps = append(steps, at(d.For, "told to drain: "+toldBy(s, p)))
	} else {
		steps = append(steps, at(d.Max, "told to drain at the latest (lame_duck until "+d.Until+"): "+toldBy(s, p)))
	}
	if p.DrainSignal != "SIGTERM" || hooked(s) {
		steps = append(steps, at(s.Stop.Deadline-s.Retire.KillGrace, "SIGTERM"))
	}
	return append(steps, at(s.Stop.Deadline, "SIGKILL to everything it started"))
}

func (r *checkReport) print(stdout, stderr io.Writer) error {
	for _, e := range r.Errors {
		fmt.Fprintln(stderr, e.text)
	}
	if len(r.Errors) > 0 {
		return nil
	}
	out := &errWriter{w: stdout}
	fmt.Fprintf(out, "%s: digest %s, runtime_dir %s\n", r.File, r.Digest, r.RuntimeDir)
	for _, a := range []struct{ key, address string }{{"admin", r.Admin}, {"health", r.Health}} {
		if a.address != "" {
			fmt.Fprintf(out, "%s on %s\n", a.key, a.address)
		}
	}
	for i := range r.Services {
		r.Services[i].print(out, i+1)
	}
	for i, w := range r.Warnings {
		if i == 0 {
			fmt.Fprintln(out)
		}
		fmt.Fprintf(out, "warning: %s\n", w)
	}
	return out.err
}

func (s *checkService) print(out io.Writer, n int) {
	after := ""
	if len(s.After) > 0 {
		after = ", after " + strings.Join(s.After, ", ")
	}
	fmt.Fprintf(out, "\n%d. service %s%s\n", n, s.Name, after)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "  program\t%s, in %s, as user %d\n", s.Path, s.Directory, s.UID)
	fmt.Fprintf(t, "  dialects\t%s\n", strings.Join(s.Dialects, ", "))
	if s.CheckPath != "" {
		fmt.Fprintf(t, "  check\t%s, before the first start and each reload (not run now)\n", s.CheckPath)
	}
	for _, sock := range s.Sockets {
		anew := ""
		if sock.PerGeneration {
			anew = ", anew for each generation"
		}
		fmt.Fprintf(t, "  socket\t%s: %s, descriptor %d%s\n", sock.Name, sock.Address, sock.FD, anew)
	}
	if len(s.Sockets) > 0 {
		fmt.Fprintf(t, "  killed\tif handoverd is killed, the next one has the sockets from %s; in a service of systemd with FileDescriptorStoreMax= first from there\n", &s.Sources)
	}
	fmt.Fprintf(t, "  ready\t%s\n", s.ReadyWay)
	if s.Gate != "" {
		fmt.Fprintf(t, "  gate\t%s, before the commit, while an old generation serves\n", s.Gate)
	}
	fmt.Fprintf(t, "  dies\t%s\n", s.Dies)
	for _, b := range []struct {
		name  string
		steps []step
	}{{"start", s.Ready}, {"retire", s.Retire}} {
		for _, st := range b.steps {
			fmt.Fprintf(t, "  %s\tafter %s: %s\n", b.name, exact(st.At), st.What)
		}
	}
	_ = t.Flush() // an error stays in the errWriter
	fmt.Fprintf(out, "  stop, from the request, each part at its latest:\n")
	printPhases(out, "    ", s.StopLine)
}

func exact(seconds float64) string { return time.Duration(seconds * float64(time.Second)).String() }

// errWriter keeps the first error, so that a report checks once.
type errWriter struct {
	w   io.Writer
	err error
}

func (e *errWriter) Write(p []byte) (int, error) {
	if e.err != nil {
		return 0, e.err
	}
	n, err := e.w.Write(p)
	if err != nil {
		e.err = errors.Join(errors.New("output"), err)
	}
	return n, err
}
