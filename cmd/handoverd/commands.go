package main

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Exit codes. Those of reload are told in its help.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a mistake in the arguments.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usage(err error) error { return usageError{err} }

// run is the program: nouns read, verbs change.
func run(e *env, args []string) int {
	root := &cobra.Command{
		Use:           "handoverd",
		Short:         "Hand listening sockets from generation to generation: the port never closes",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand(e), versionCommand(e))
	root.SetArgs(args)
	root.SetOut(e.stdout)
	root.SetErr(e.stderr)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	err := root.Execute()
	var code exitCode
	var bad usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &bad):
		_, _ = fmt.Fprintf(e.stderr, "handoverd: %v\n", err)
		return exitUsage
	}
	_, _ = fmt.Fprintf(e.stderr, "handoverd: %v\n", err)
	return exitFailed
}

func versionCommand(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(e.stdout, "handoverd", versionText())
			return err
		},
	}
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
