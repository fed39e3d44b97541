package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/internal/kube"
	"github.com/handoverd/handover/supervisor"
)

// kubeFlags are what check --kubernetes is told beside the manifests.
type kubeFlags struct {
	on                                        bool
	hook, lameDuck, drain, killGrace, startup time.Duration
	margin                                    time.Duration
	namespace                                 string
	nodes, replicas                           int
	config                                    string
	asJSON                                    bool
}

// kubeOnly are the flags that mean nothing without --kubernetes.
var kubeOnly = []string{"hook", "lame-duck", "drain", "kill-grace", "startup", "margin", "namespace", "nodes", "replicas"}

func (k *kubeFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&k.on, "kubernetes", false, "check Kubernetes manifests: files, folders, - for standard input")
	f.DurationVar(&k.hook, "hook", 0, "with --kubernetes: how long a preStop hook runs that does not say it")
	f.DurationVar(&k.lameDuck, "lame-duck", 0, "with --kubernetes: how long programs serve on after SIGTERM")
	f.DurationVar(&k.drain, "drain", 0, "with --kubernetes: how long the drain may take")
	f.DurationVar(&k.killGrace, "kill-grace", 0, "with --kubernetes: what is kept after the drain")
	f.DurationVar(&k.startup, "startup", 0, "with --kubernetes: from a pod's start to ready (default: from the probes)")
	f.DurationVar(&k.margin, "margin", kube.DefaultMargin, "with --kubernetes: what must be left of the grace")
	f.StringVarP(&k.namespace, "namespace", "n", "default", "with --kubernetes: of objects that name none")
	f.IntVar(&k.nodes, "nodes", 0, "with --kubernetes: how many nodes a DaemonSet runs on (default 1)")
	f.IntVar(&k.replicas, "replicas", 0, "with --kubernetes: of workloads that do not say it (default 1)")
}

// options are what the flags and the configuration come to.
func (k *kubeFlags) options(cmd *cobra.Command) (kube.Options, error) {
	opt := kube.Options{Margin: k.margin, Nodes: k.nodes, Replicas: k.replicas, Default: kube.Figures{From: "flags"}}
	for _, f := range []struct {
		name string
		d    time.Duration
		to   **time.Duration
	}{
		{"hook", k.hook, &opt.Default.Hook},
		{"lame-duck", k.lameDuck, &opt.Default.LameDuck},
		{"drain", k.drain, &opt.Default.Drain},
		{"kill-grace", k.killGrace, &opt.Default.KillGrace},
		{"startup", k.startup, &opt.Default.Startup},
	} {
		if f.d < 0 {
			return opt, usage(fmt.Errorf("--%s must not be negative", f.name))
		}
		if cmd.Flags().Changed(f.name) {
			*f.to = &f.d
		}
	}
	if k.margin < 0 || k.nodes < 0 || k.replicas < 0 {
		return opt, usage(errors.New("--margin, --nodes and --replicas must not be negative"))
	}
	if k.config == "" {
		return opt, nil
	}
	cfg, err := supervisor.Load(k.config)
	if err != nil {
		return opt, err
	}
	opt.Handoverd = figuresOf(cfg)
	return opt, nil
}

// figuresOf is the stop of a handoverd with the configuration: its services stop
// side by side, each within its deadline. What balancers see is the lame duck of
// the services that other hosts reach.
func figuresOf(cfg *supervisor.Config) *kube.Figures {
	var deadline, grace time.Duration
	var duck *time.Duration
	for _, s := range cfg.Services {
		deadline, grace = max(deadline, s.Stop.Deadline), max(grace, s.Retire.KillGrace)
		outside := slices.ContainsFunc(s.Sockets, func(k supervisor.SocketConfig) bool {
			return k.Addr.Path == "" && !k.Addr.IP.IsLoopback()
		})
		if !outside {
			continue
		}
		d := s.Stop.LameDuck.Max
		if s.Stop.LameDuck.Until == "timer" {
			d = s.Stop.LameDuck.For
		}
		if duck == nil || d < *duck {
			duck = &d
		}
	}
	f := &kube.Figures{LameDuck: duck, KillGrace: &grace, From: cfg.File}
	rest := deadline - grace
	if duck != nil {
		rest -= *duck
	}
	rest = max(0, rest)
	f.Drain = &rest
	return f
}

// kubeReport is kube.Report with where it is from.
type kubeReport struct {
	Files []string `json:"files"`
	*kube.Report
}

func (k *kubeFlags) run(e *env, cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage(errors.New("--kubernetes needs files, folders, or - for standard input"))
	}
	opt, err := k.options(cmd)
	if err != nil {
		return err
	}
	files, err := manifests(args)
	if err != nil {
		return err
	}
	var objects []*kube.Object
	var problems []kube.Problem
	for i, file := range files {
		text, err := readManifest(cmd.InOrStdin(), file)
		if err != nil {
			return err
		}
		if file == "-" {
			files[i] = "(standard input)"
		}
		o, p := kube.Read(files[i], text, k.namespace)
		objects, problems = append(objects, o...), append(problems, p...)
	}
	if len(objects) == 0 && len(problems) == 0 {
		return fmt.Errorf("manifests: no Kubernetes object in %s", strings.Join(files, ", "))
	}
	r := &kubeReport{files, kube.Check(objects, opt)}
	r.Problems = append(problems, r.Problems...)
	if k.asJSON {
		err = writeJSON(e.stdout, r)
	} else {
		err = r.print(e.stdout, e.stderr)
	}
	if err == nil && r.Failed() {
		err = exitCode(exitFailed)
	}
	return err
}

// manifests are the files named, and those of folders that may be manifests, each once.
func manifests(args []string) ([]string, error) {
	var list []string
	for _, arg := range args {
		if arg == "-" {
			list = append(list, arg)
			continue
		}
		before := len(list)
		root := arg
		if info, err := os.Stat(arg); err == nil && info.IsDir() {
			root += string(filepath.Separator) // also where it is a link, as "current" is to the latest release
		}
		err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			if entry.Type()&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) != 0 && name != root {
				return nil // nobody may ever write there
			}
			if name == root || slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
				list = append(list, name)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("manifests: %w", err)
		}
		if len(list) == before {
			return nil, fmt.Errorf("manifests: %s has no .yaml, .yml or .json file", arg)
		}
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(name string) bool {
		was := seen[name]
		seen[name] = true
		return was
	}), nil
}

// readManifest reads at most what kube.Read takes and a byte, so that it refuses what is longer.
func readManifest(stdin io.Reader, file string) ([]byte, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("manifests: %w", err)
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, kube.MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("manifests: %s: %w", file, err)
	}
	return text, nil
}
