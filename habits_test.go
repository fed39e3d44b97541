package handover_test

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// exception is a place that may break a rule, and why. An exception that nothing needs any more fails its test.
type exception struct{ path, reason string }

// excused says whether f is under an exception's path, and strikes the exception off unused.
func excused(f *sourceFile, list []exception, used map[string]bool) bool {
	for _, e := range list {
		if f.path == e.path || strings.HasPrefix(f.path, e.path+"/") {
			used[e.path] = true
			return true
		}
	}
	return false
}

// reportUnused fails for each exception of a list whose path broke no rule.
func reportUnused(t *testing.T, list []exception, used map[string]bool) {
	t.Helper()
	for _, e := range list {
		if !used[e.path] {
			t.Errorf("the exception for %s (%s) is not needed any more", e.path, e.reason)
		}
	}
}

// fdExceptions may call Fd, File or ExtraFiles on a value whose type has such a method.
var fdExceptions = []exception{}

// fdHomes move descriptors for a living.
var fdHomes = []string{"fdpass", "internal/shim"}

// TestDescriptorsKeepTheirMode bans the three calls that clear O_NONBLOCK on an open file description which other
// processes share: (*os.File).Fd, File on a connection of package net (it prepares the same), and
// exec.Cmd.ExtraFiles (os.StartProcess calls Fd). The poller of every other holder would then block.
// golang/go#29277, golang/go#43894.
func TestDescriptorsKeepTheirMode(t *testing.T) {
	used := map[string]bool{}
	for _, f := range allSources(t) {
		if f.test || slices.Contains(fdHomes, f.dir) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			var name string
			switch n := n.(type) {
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if ok && len(n.Args) == 0 && (sel.Sel.Name == "Fd" || sel.Sel.Name == "File") {
					name = sel.Sel.Name + "()"
				}
			case *ast.SelectorExpr:
				if n.Sel.Name == "ExtraFiles" {
					name = "ExtraFiles"
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "ExtraFiles" {
					name = "ExtraFiles"
				}
			}
			if name != "" && !excused(f, fdExceptions, used) {
				t.Errorf("%s: %s makes a shared socket blocking for every holder; use fdpass.Dup or SyscallConn", f.line(n), name)
			}
			return true
		})
	}
	reportUnused(t, fdExceptions, used)
}

// waited is what a comment must say of a goroutine.
var waited = regexp.MustCompile(`(?i)\bwait`)

// TestGoStatements wants each goroutine of a library to be a named function, so that it has a name in a stack dump,
// and the function that starts it to say, in its doc comment or beside the statement, who waits for it.
func TestGoStatements(t *testing.T) {
	for _, f := range allSources(t) {
		if f.test || strings.HasPrefix(f.dir, "cmd/") || strings.HasPrefix(f.dir, "examples/") {
			continue
		}
		for _, decl := range f.ast.Decls {
			said := saysWho(f, decl)
			ast.Inspect(decl, func(n ast.Node) bool {
				stmt, ok := n.(*ast.GoStmt)
				if !ok {
					return true
				}
				if _, literal := stmt.Call.Fun.(*ast.FuncLit); literal {
					t.Errorf("%s: a goroutine is a named function", f.line(stmt))
				}
				if !said {
					t.Errorf("%s: no comment of this function says who waits for the goroutine", f.line(stmt))
				}
				return true
			})
		}
	}
}

// saysWho looks for the word in the comments on and in decl.
func saysWho(f *sourceFile, decl ast.Decl) bool {
	begin := decl.Pos()
	if fn, ok := decl.(*ast.FuncDecl); ok && fn.Doc != nil {
		begin = fn.Doc.Pos()
	}
	return slices.ContainsFunc(f.ast.Comments, func(g *ast.CommentGroup) bool {
		return g.Pos() >= begin && g.End() <= decl.End() && waited.MatchString(g.Text())
	})
}

// envFile is where the environment may be read: one file a package, named for it.
var envFile = regexp.MustCompile(`^(env|environ|[a-z0-9_]+_env|env_[a-z0-9_]+)\.go$`)

// envExceptions read the environment elsewhere.
var envExceptions = []exception{
	{"internal/shim/child_linux.go", "it looks for its marker before any other package has been initialised"},
}

// envCalls read or change the process's environment.
var envCalls = []string{"Getenv", "LookupEnv", "Environ", "Setenv", "Unsetenv", "Clearenv", "ExpandEnv"}

// TestEnvironmentIsReadInOnePlace keeps the environment a parameter: it is read in a package's env file and passed
// on from there, so that a test can give another one, and so that nothing is left in it for a grandchild to misread.
func TestEnvironmentIsReadInOnePlace(t *testing.T) {
	used := map[string]bool{}
	for _, f := range allSources(t) {
		if f.test || envFile.MatchString(path.Base(f.path)) || strings.HasPrefix(f.dir, "examples/") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || !slices.Contains(envCalls, sel.Sel.Name) {
				return true
			}
			pkg, ok := sel.X.(*ast.Ident)
			if ok && slices.Contains([]string{"os", "syscall", "unix"}, pkg.Name) && !excused(f, envExceptions, used) {
				t.Errorf("%s: %s.%s outside the package's env.go", f.line(n), pkg.Name, sel.Sel.Name)
			}
			return true
		})
	}
	reportUnused(t, envExceptions, used)
}

// bubbleMark in a test helper's doc comment says that it runs inside a synctest bubble, where Sleep is exact and free.
const bubbleMark = "inside a synctest bubble"

// TestNoSleepInTests wants tests to wait for events. A sleep is either too short on a busy machine or too long on
// every other.
func TestNoSleepInTests(t *testing.T) {
	for _, f := range allSources(t) {
		if !f.test {
			continue
		}
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if ok && fn.Doc != nil && strings.Contains(fn.Doc.Text(), bubbleMark) {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if calls(call, "synctest", "Test") {
					return false
				}
				if calls(call, "time", "Sleep") {
					t.Errorf("%s: time.Sleep in a test; wait for the event", f.line(call))
				}
				return true
			})
		}
	}
}

// calls says whether call is pkg.name(…).
func calls(call *ast.CallExpr, pkg, name string) bool {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	ident, ok := sel.X.(*ast.Ident)
	return ok && ident.Name == pkg
}
