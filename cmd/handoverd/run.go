package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

func runCommand(e *env) *cobra.Command {
	var file string
	var listen []string
	var flags supervisor.FlagOptions
	cmd := &cobra.Command{
		Use:   "run [-c FILE | -l NAME=ADDR … -- COMMAND ARG…]",
		Short: "Bind the sockets, run the services, hand over at each reload",
		Long: `Bind the sockets, start the services, and hand the sockets to a new generation at each
reload. The sockets are open until handoverd ends.

Signals: HUP reload, TERM and INT stop (the second time: at once), QUIT stop at once, USR2 upgrade
handoverd itself (see handoverd upgrade).

Exit codes:
  0  stopped, nothing was cut off
  1  could not start: nothing that it started is left running, and what a killed one has left serves on
  2  wrong arguments
  3  stopped, and something had to be cut off at its deadline: the log names it
  4  stopped because a program crashed again and again (on_crash_loop = "exit")`,
		Example: `  handoverd run -c /etc/handoverd.toml
  handoverd run -l http=127.0.0.1:8080 -- ./server`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := onlyWithoutFile(cmd, len(listen) == 0 && len(args) == 0); err != nil {
				return usage(err)
			}
			load, name, err := source(file, listen, flags, args)
			if err != nil {
				return usage(err)
			}
			var top func() (*supervisor.Config, error)
			if len(listen) == 0 && len(args) == 0 {
				top = func() (*supervisor.Config, error) { return supervisor.LoadTop(name) }
			}
			return serve(e, load, top, name)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "config", "c", "", "configuration file (default "+defaultConfig+")")
	f.StringArrayVarP(&listen, "listen", "l", nil, "a socket, NAME=ADDR; may be repeated")
	f.StringVar(&flags.Ready, "ready", "", "when a generation is ready: auto, native, notify, accepting, alive")
	f.DurationVar(&flags.InitGrace, "init-grace", 0, "time to become ready in (default 30s)")
	f.DurationVar(&flags.ParentShutdown, "parent-shutdown", 0, "deadline of an old generation's drain (default 15m)")
	f.StringVar(&flags.Signal, "signal", "", "drain signal (default: the program's own, else SIGTERM)")
	f.StringVar(&flags.RuntimeDir, "runtime-dir", "", "lock, control socket and state (default NAME in /run/handoverd; not as root, in $XDG_RUNTIME_DIR/handoverd)")
	f.StringVar(&flags.Name, "name", "", "name of the service (default web)")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w; what belongs to COMMAND comes after --", err))
	})
	return cmd
}

// onlyWithoutFile refuses flags that a file has keys for: ignored, they would
// run something else than what was asked for.
func onlyWithoutFile(cmd *cobra.Command, withFile bool) error {
	if !withFile {
		return nil
	}
	for _, name := range []string{"ready", "init-grace", "parent-shutdown", "signal", "runtime-dir", "name"} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--%s is for a run without a file: write it into the file, or give -l and a command", name)
		}
	}
	return nil
}

const defaultConfig = "/etc/handoverd.toml"

// source says where the configuration comes from: a file, read anew at each
// reload, or the command line.
func source(file string, listen []string, flags supervisor.FlagOptions, args []string) (func() (*supervisor.Config, error), string, error) {
	if len(listen) == 0 && len(args) == 0 {
		if file == "" {
			file = defaultConfig
		}
		return func() (*supervisor.Config, error) { return supervisor.Load(file) }, file, nil
	}
	if file != "" {
		return nil, "", errors.New("a file and a command at once: give -c FILE, or -l and a command")
	}
	if len(args) == 0 {
		return nil, "", errors.New("no command: it comes after --, as in -l http=:8080 -- ./server")
	}
	return func() (*supervisor.Config, error) { return supervisor.FromFlags(listen, flags, args) }, "the command line", nil
}

// serve runs the supervisor beside the main thread, which starts its children.
func serve(e *env, load, top func() (*supervisor.Config, error), name string) error {
	if e.getenv("GOGC") == "" {
		// It idles nearly always, and its heap is small: to collect it earlier costs nothing that is seen, and saves 2 MiB.
		debug.SetGCPercent(50)
	}
	signals, stop := e.signals()
	defer stop()
	lines := newLogWriter(e.stderr)
	defer lines.Close()
	log := slog.New(slog.NewTextHandler(lines, nil))
	thread := supervisor.NewMainThread()
	if e.handed != nil {
		e.handed.thread = thread
	}
	figures := newMetrics(log)
	manager := serviceManager(e.getenv, log)
	s, err := supervisor.New(supervisor.Options{
		Load: load, LoadTop: top, Name: name, Log: log, Output: e.stderr, Thread: thread, Version: versionText(),
		Metrics: figures.handler, Manager: manager,
		Self: supervisor.SelfOptions{
			Args: os.Args, Environ: environ(), Hold: holdSignals, Flush: lines.flush, Handed: e.handed.handed(),
		},
	})
	if err != nil {
		if !e.handed.handed().Rehearsal() {
			tellNotStarted(e.getenv, err)
		}
		errs := supervisor.AllConfigErrors(err)
		switch {
		case len(errs) > 0 && errs[0].File == "":
			return usage(err) // of flags
		case len(errs) == 1 && errs[0].File == defaultConfig && errs[0].Key == "" && errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%w; say which file with -c FILE, or give -l NAME=ADDR -- COMMAND", err)
		case errors.Is(err, supervisor.ErrLocked):
			return fmt.Errorf("%w; handoverd status shows it, and one beside it has another runtime_dir (or --name)", err)
		}
		return err
	}
	if e.handed.handed().Rehearsal() {
		return e.handed.answer(s.Rehearse())
	}
	figures.attach(s)
	var code int
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer e.handed.backOnPanic()
		code, err = s.Run(context.Background())
	}()
	if e.handed != nil && !e.handed.Returned() { // who was gone back to takes the time that it needs
		go e.handed.watch(done, turnWithin(manager.Watchdog))
	}
	go obey(s, log, signals)
	thread.Serve(done)
	if err != nil {
		return err
	}
	if code != 0 {
		return exitCode(code)
	}
	return nil
}

// obey turns signals into requests until Run returns.
func obey(s *supervisor.Supervisor, log *slog.Logger, signals <-chan os.Signal) {
	ctx := context.Background()
	for {
		select {
		case <-s.Done():
			return
		case sig := <-signals:
			switch sig {
			case unix.SIGHUP:
				_ = s.Signal(ctx) // the outcome is logged; an error says that it is too late
			case unix.SIGTERM, unix.SIGINT:
				_ = s.Stop(ctx, supervisor.StopRequest{})
			case unix.SIGQUIT:
				_ = s.Stop(ctx, supervisor.StopRequest{Now: true})
			case unix.SIGUSR1:
				log.Info("SIGUSR1: nothing to reopen, the log is standard error")
			case unix.SIGUSR2:
				_ = s.SignalUpgrade(ctx)
			}
			if m, ok := sig.(mark); ok { // all before it has been obeyed
				m.passed <- struct{}{}
			}
		}
	}
}
