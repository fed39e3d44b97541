package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

const module = "github.com/handoverd/handover"

// packages are those that are built for a run, by the names of the programs.
var packages = map[string]string{
	programHandoverd: module + "/cmd/handoverd",
	programGoserver:  module + "/examples/goserver",
	programHolder:    module + "/internal/peers/holder",
	programServer:    module + "/internal/peers/server",
	programTableflip: module + "/internal/tableflipserver",
}

// asked is how an installed program says its version.
var asked = map[string][]string{
	programHAProxy: {"-v"}, programNginx: {"-v"}, programGunicorn: {"--version"}, programStarter: {"--version"},
	programIptables: {"--version"}, programTC: {"-V"},
}

// number finds a version in what a program says.
var number = regexp.MustCompile(`\d+\.\d+[-.\w+~]*`)

// provide builds or finds a program.
func (c *coordinator) provide(ctx context.Context, program string) (path, version string, err error) {
	if program == programBackend {
		return c.built(program), "(examples/goserver)", nil // a link, made when both are known
	}
	if pkg := packages[program]; pkg != "" {
		return c.build(ctx, program, pkg)
	}
	if path, err = find(program); err != nil {
		return "", "", err
	}
	out, err := exec.CommandContext(ctx, path, asked[program]...).CombinedOutput()
	if err != nil {
		return "", "", fmt.Errorf("%s %v: %w: %s", path, asked[program], err, out)
	}
	return path, number.FindString(string(out)), nil
}

func (c *coordinator) build(ctx context.Context, program, pkg string) (path, version string, err error) {
	version = describeTree(ctx)
	path = c.built(program)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+version, "-o", path, pkg)
	cmd.Env = append(environment(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", "", fmt.Errorf("build: %w\n%s", err, out)
	}
	if program != programTableflip {
		return path, version, nil
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	for _, d := range info.Deps {
		if strings.HasSuffix(d.Path, "/tableflip") {
			version = d.Version
		}
	}
	return path, version, nil
}

// describeTree is the commit that is measured.
func describeTree(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--tags", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return string(bytes.TrimSpace(out))
}

// find looks in PATH, and where Debian has what only root runs.
func find(program string) (string, error) {
	if path, err := exec.LookPath(program); err == nil {
		return filepath.Abs(path)
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path, nil
		}
	}
	return "", exec.ErrNotFound
}

var model = regexp.MustCompile(`(?m)^model name\s*:\s*(.*)$`)

// thisMachine is what the figures depend on.
func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), Go: runtime.Version(), Architecture: runtime.GOARCH}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if found := model.FindSubmatch(text); found != nil {
			m.CPU = string(found[1])
		}
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err == nil {
		m.Kernel = unix.ByteSliceToString(uts.Sysname[:]) + " " + unix.ByteSliceToString(uts.Release[:])
	}
	return m
}
