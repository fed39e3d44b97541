package main

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Exit codes of all commands. Those of reload are told in its help.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitUnreachable = 5
)

// usageError is a mistake in the arguments.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(err error) error { return usageError{err} }

// exitCode is an error that is only a code: everything has been said.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// run is the program: nouns read, verbs change.
func run(e *env, args []string) int {
	root := rootCommand(e)
	root.SetArgs(args)
	err := root.Execute()
	if err == nil {
		return 0
	}
	if code, ok := errors.AsType[exitCode](err); ok {
		return int(code)
	}
	_, _ = fmt.Fprintf(e.stderr, "handoverd: %v\n", err)
	var bad usageError
	var reach *reachError
	switch {
	case errors.As(err, &bad):
		return exitUsage
	case errors.As(err, &reach):
		return exitUnreachable
	}
	return exitFailed
}

func rootCommand(e *env) *cobra.Command {
	root := &cobra.Command{
		Use:   "handoverd",
		Short: "Hand listening sockets from generation to generation: the port never closes",
		Long: `handoverd owns the listening sockets of programs and hands them to each new generation of
a program, so that the port never closes: not during a reload, not when the new generation
crashes, not when the program does.

Nouns read, verbs change. Exit codes of all commands: 0 done, 1 failed, 2 wrong arguments,
5 handoverd cannot be reached; the help of each command has all of its own.`,
		Example: `  handoverd run -l http=127.0.0.1:8080 -- ./server
  handoverd reload
  handoverd status`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usage(fmt.Errorf("no such command: %s%s", args[0], meant(cmd, args[0])))
			}
			return cmd.Help()
		},
		Args: cobra.ArbitraryArgs, // so that an unknown command comes here
	}
	root.AddCommand(runCommand(e), checkCommand(e), statusCommand(e), reloadCommand(e), rollbackCommand(e), lameDuckCommand(e), stopCommand(e),
		eventsCommand(e), upgradeCommand(e), sweepCommand(e), drillCommand(e), versionCommand(e))
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.Version = versionText()
	root.SetVersionTemplate("handoverd {{.Version}}\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usage(fmt.Errorf("%w; see %s --help", err, cmd.CommandPath()))
	})
	return root
}

// meant is "" or a clause that names the commands one may have meant.
func meant(root *cobra.Command, word string) string {
	if root.SuggestionsMinimumDistance <= 0 {
		root.SuggestionsMinimumDistance = 2
	}
	s := root.SuggestionsFor(word)
	if len(s) == 0 {
		return "; see handoverd --help"
	}
	return "; did you mean " + strings.Join(s, " or ") + "?"
}

func versionCommand(e *env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		Example: "  handoverd version",
		RunE: func(*cobra.Command, []string) error {
			if asJSON {
				return writeJSON(e.stdout, map[string]string{"version": versionText()})
			}
			_, err := fmt.Fprintln(e.stdout, "handoverd", versionText())
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it as JSON")
	return cmd
}

// version is set by the linker.
var version = ""

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
