package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// resolve turns what is configured into what is started: paths, environment
// and user as they are now. It is done anew at each reload, so that a moved
// "current" symlink, an edited env_file or a new group takes effect, and never
// for a restart. An error is a *ConfigError that names the key.
func resolve(cfg *ServiceConfig, digest, cwd string) (*Spec, error) {
	spec := &Spec{Config: *cfg, Digest: digest, Drain: int(drainSignal(cfg.Dialects))}
	if cfg.Retire.Signal != "auto" {
		spec.Drain = int(unix.SignalNum(cfg.Retire.Signal))
	}
	for _, sc := range cfg.Sockets {
		spec.Keys = append(spec.Keys, SocketKey{Name: sc.Name, Key: socketKey(cfg.Name, sc), Own: sc.PerGeneration})
	}
	fault := func(key string, err error) error {
		return &ConfigError{Key: "service." + cfg.Name + "." + key, Err: err}
	}
	env, key, err := environment(cfg, spec)
	if err != nil {
		return nil, fault(key, err)
	}
	spec.Env = env
	dir := cfg.Directory
	if dir == "" {
		dir = cwd
	}
	if spec.Dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, fault("directory", err)
	}
	if spec.Path, err = executable(cfg.Command[0], spec.Dir, env); err != nil {
		return nil, fault("command", err)
	}
	for _, beside := range []struct {
		key string
		p   *ProbeConfig
	}{{"ready.exec", cfg.Ready.Probe}, {"ready.gate", cfg.Ready.Gate}} {
		if beside.p == nil || len(beside.p.Exec) == 0 {
			continue
		}
		// Found anew each time that it is run; here only that it can be.
		if _, err := executable(beside.p.Exec[0], spec.Dir, env); err != nil {
			return nil, fault(beside.key, err)
		}
	}
	return spec, nil
}

// environment is handoverd's own, scrubbed, with the user's variables, those of
// env_file and those of env, later ones winning. An error comes with the key that
// it is about.
func environment(cfg *ServiceConfig, spec *Spec) (env []string, key string, err error) {
	env = inherited()
	who, err := systemAccounts.resolve(cfg.User, cfg.Group)
	if err != nil {
		return nil, "user", err
	}
	if who != nil {
		spec.UID, spec.GID, spec.Groups = &who.UID, &who.GID, who.Groups
		if cfg.User != "" && who.Name != "" {
			env = setenv(env, "USER", who.Name)
			env = setenv(env, "LOGNAME", who.Name)
			env = setenv(env, "HOME", who.Home)
			env = setenv(env, "SHELL", who.Shell)
		}
	}
	if cfg.EnvFile != "" {
		lines, err := readEnvFile(cfg.EnvFile)
		if err != nil {
			return nil, "env_file", err
		}
		for _, l := range lines {
			k, v, _ := strings.Cut(l, "=")
			env = setenv(env, k, v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(cfg.Env)) {
		env = setenv(env, k, cfg.Env[k])
	}
	return env, "", nil
}

// readEnvFile reads NAME=value lines; empty lines and lines that begin with #
// are passed over, and a value is taken as it stands.
func readEnvFile(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var out []string
	sc := bufio.NewScanner(f)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if k, _, ok := strings.Cut(line, "="); !ok || k == "" {
			return nil, fmt.Errorf("%s:%d: not NAME=value", path, n)
		}
		out = append(out, line)
	}
	return out, sc.Err()
}

// executable finds the program: a name with a slash from dir on, any other in
// the generation's PATH. Symlinks of directories are resolved, which pins a
// release for restarts; that of the file itself is kept, since programs look
// at their own name (a Python virtual environment, busybox).
func executable(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		return pin(name)
	}
	for _, p := range filepath.SplitList(lookup(env, "PATH")) {
		if p == "" {
			p = "."
		}
		if !filepath.IsAbs(p) {
			p = filepath.Join(dir, p)
		}
		if found, err := pin(filepath.Join(p, name)); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("%s: %w in PATH=%s", name, fs.ErrNotExist, lookup(env, "PATH"))
}

func pin(path string) (string, error) {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	path = filepath.Join(dir, filepath.Base(path))
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		return "", &fs.PathError{Op: "exec", Path: path, Err: errors.New("is a directory")}
	case info.Mode()&0o111 == 0:
		return "", &fs.PathError{Op: "exec", Path: path, Err: unix.EACCES}
	}
	return path, nil
}

func lookup(env []string, name string) string {
	for _, e := range slices.Backward(env) {
		if k, v, ok := strings.Cut(e, "="); ok && k == name {
			return v
		}
	}
	return ""
}
