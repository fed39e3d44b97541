package handover_test

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is the path that local imports begin with.
const module = "github.com/handoverd/handover"

// externals lists every module from outside and the packages whose shipped code may import it ("..." is all of
// them, "dir/..." all below). What is not listed may not be imported: a new dependency is a decision, and its reason
// is in docs/ARCHITECTURE.md.
var externals = []struct {
	path   string
	dirs   []string
	reason string
}{
	{"golang.org/x/sys", []string{"..."}, "the system calls that package syscall has not"},
	{"github.com/BurntSushi/toml", []string{"supervisor", "cmd/..."}, "the configuration file is read in one place"},
	{"go.yaml.in/yaml/v3", []string{"internal/kube"}, "manifests are read in one place"},
	{"github.com/spf13/cobra", []string{"cmd/..."}, "only the command has a command line"},
	{"github.com/spf13/pflag", []string{"cmd/..."}, "only the command has a command line"},
	{"github.com/prometheus/client_golang", []string{"cmd/..."}, "the supervisor counts; how the figures are shown is the command's affair"},
	{"github.com/cloudflare/tableflip", []string{".", "internal/tableflipserver"}, "standalone mode, and the peer that the load test compares with"},
	{"github.com/HdrHistogram/hdrhistogram-go", []string{"internal/drill/..."}, "latencies are recorded by the load generator only"},
	{"golang.org/x/net", []string{"internal/drill"}, "HTTP/2 frames and header compression, for the load generator's client"},
	{"github.com/coder/websocket", nil, "for tests: the server's side of what the load generator speaks, by another hand"},
	{"github.com/google/go-cmp", []string{"internal/fdleak", "internal/testchild/..."}, "for tests: it panics on what it cannot compare"},
	{"github.com/rogpeppe/go-internal", nil, "for tests"},
	{"pgregory.net/rapid", nil, "for tests"},
}

// bans say what a package's shipped code may not reach, itself or through other packages of the module.
var bans = []struct {
	dirs   []string
	banned []string // import paths; "/..." covers what is below, too
	reason string
}{
	{
		[]string{"."},
		[]string{module + "/supervisor", module + "/cmd/...", module + "/drain", module + "/internal/proc", module + "/internal/shim"},
		"a program that uses handover links the child's side, not the supervisor",
	},
	{
		[]string{"drain"},
		[]string{module, module + "/supervisor", module + "/cmd/...", module + "/internal/proc", module + "/internal/shim", module + "/fdpass"},
		"drain works in any server, whoever started it",
	},
	{
		[]string{"fdpass"},
		[]string{module, module + "/supervisor", module + "/cmd/...", module + "/drain", module + "/internal/proc", module + "/internal/shim"},
		"fdpass moves descriptors and knows nothing of generations",
	},
	{
		[]string{".", "drain", "fdpass", "internal/proc", "internal/wire", "internal/shim", "internal/keeper", "internal/drill"},
		[]string{"log", "log/slog"},
		"a library returns its errors; log lines are written by the supervisor's loop, one for each transition",
	},
	{
		[]string{"supervisor"},
		[]string{module, "log"},
		"the supervisor speaks the protocol, not the child's library, which consumes the environment it runs in",
	},
	{
		[]string{"internal/shim"},
		[]string{"net/http", "os/exec", "encoding/gob", "text/template", "html/template"},
		"the shim runs in every spawn, before anything else of the binary: its inits are paid at each reload",
	},
	{
		[]string{"internal/proc", "internal/wire", "internal/shim", "internal/fdleak", "internal/drill", "internal/kube"},
		[]string{module + "/supervisor", module + "/cmd/..."},
		"imports point one way: nothing imports the supervisor but the command and tests",
	},
	{
		[]string{"..."},
		[]string{"C"},
		"the shipped binary is static (CGO_ENABLED=0), and AllThreadsSyscall does not exist under cgo",
	},
	{
		[]string{"..."},
		[]string{"net/http/pprof", "expvar"},
		"importing them adds handlers to a mux that this module does not own",
	},
	{
		[]string{".", "drain", "fdpass", "supervisor", "cmd/...", "internal/proc", "internal/wire", "internal/shim"},
		[]string{"testing", module + "/internal/testchild/...", module + "/internal/fdleak"},
		"test support stays out of what is shipped",
	},
}

// matches says whether name is covered by pattern: itself, or below it when it ends in "...".
func matches(pattern, name string) bool {
	if pattern == "..." {
		return true
	}
	if base, ok := strings.CutSuffix(pattern, "/..."); ok {
		return name == base || strings.HasPrefix(name, base+"/")
	}
	return name == pattern
}

// matchesAny says whether one of the patterns covers name.
func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, name) })
}

// importsByDir is what the shipped code of each package imports, with one file that does, for the report.
func importsByDir(t *testing.T) map[string]map[string]string {
	t.Helper()
	imports := map[string]map[string]string{}
	for _, f := range allSources(t) {
		if f.test {
			continue
		}
		if imports[f.dir] == nil {
			imports[f.dir] = map[string]string{}
		}
		for _, spec := range f.ast.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatalf("%s: %v", f.line(spec), err)
			}
			imports[f.dir][name] = f.line(spec)
		}
	}
	return imports
}

// localDir is the folder of an import path of this module.
func localDir(name string) (string, bool) {
	if name == module {
		return ".", true
	}
	return strings.CutPrefix(name, module+"/")
}

// reach is what dir imports, directly or through packages of the module, each with the way to it.
func reach(imports map[string]map[string]string, dir string) map[string][]string {
	ways := map[string][]string{}
	var walk func(dir string, way []string)
	walk = func(dir string, way []string) {
		for _, name := range slices.Sorted(maps.Keys(imports[dir])) {
			if _, seen := ways[name]; seen {
				continue
			}
			step := append(slices.Clone(way), imports[dir][name])
			ways[name] = step
			if next, ok := localDir(name); ok {
				walk(next, step)
			}
		}
	}
	walk(dir, nil)
	return ways
}

func TestBannedImports(t *testing.T) {
	imports := importsByDir(t)
	for _, dir := range slices.Sorted(maps.Keys(imports)) {
		ways := reach(imports, dir)
		for _, ban := range bans {
			if !matchesAny(ban.dirs, dir) {
				continue
			}
			for name, way := range ways {
				if matchesAny(ban.banned, name) {
					t.Errorf("package %s may not reach %s: %s\n\tby %s", dir, name, ban.reason, strings.Join(way, " → "))
				}
			}
		}
	}
}

func TestExternalImports(t *testing.T) {
	for dir, names := range importsByDir(t) {
		for name, where := range names {
			_, local := localDir(name)
			first, _, _ := strings.Cut(name, "/")
			if local || !strings.Contains(first, ".") {
				continue
			}
			allowed, reason := false, "not listed in deps_test.go: a new dependency needs its reason"
			for _, e := range externals {
				if name == e.path || strings.HasPrefix(name, e.path+"/") {
					allowed, reason = matchesAny(e.dirs, dir), e.reason
				}
			}
			if !allowed {
				t.Errorf("%s: package %s may not import %s: %s", where, path.Clean(dir), name, reason)
			}
		}
	}
}

// TestNothingImportsTheSupervisor is the arrow of the whole module, tests included: only the command, and tests of
// the root package that drive the daemon, may know it.
func TestNothingImportsTheSupervisor(t *testing.T) {
	for _, f := range allSources(t) {
		if f.dir == "supervisor" || strings.HasPrefix(f.dir, "cmd/") || (f.test && f.dir == ".") {
			continue
		}
		for _, spec := range f.ast.Imports {
			if name, err := strconv.Unquote(spec.Path.Value); err == nil && matches(module+"/supervisor/...", name) {
				t.Errorf("%s: only cmd/handoverd imports the supervisor", f.line(spec))
			}
		}
	}
}
