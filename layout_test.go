package handover_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The limits of the house. They are checked from the first day on, because files and functions that have outgrown
// them are never cut again.
const (
	maxFileLines     = 400
	maxFunctionLines = 70
)

// sourceFile is one parsed Go file of the module.
type sourceFile struct {
	path string // slash-separated, from the root of the module
	dir  string // "." for the root
	test bool
	src  []byte
	ast  *ast.File
	fset *token.FileSet
}

// line is the position of n as file:line, as an editor understands it.
func (f *sourceFile) line(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(n.Pos()).Line)
}

// sources parses every Go file of the module once, whatever its build constraints say: what one platform may not
// do, no platform may.
var sources = sync.OnceValues(func() ([]*sourceFile, error) {
	var files []*sourceFile
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return skipDir(name, entry)
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		slashed := filepath.ToSlash(name)
		files = append(files, &sourceFile{
			path: slashed, dir: path.Dir(slashed), test: strings.HasSuffix(name, "_test.go"),
			src: src, ast: parsed, fset: fset,
		})
		return nil
	})
	return files, err
})

// skipDir leaves out what the go command leaves out too, build output, and other modules below this one.
func skipDir(name string, entry fs.DirEntry) error {
	if name == "." {
		return nil
	}
	base := entry.Name()
	if strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") ||
		base == "testdata" || base == "bin" || base == "build" {
		return filepath.SkipDir
	}
	if _, err := os.Stat(filepath.Join(name, "go.mod")); err == nil {
		return filepath.SkipDir
	}
	return nil
}

// allSources is sources, or the end of the test.
func allSources(t *testing.T) []*sourceFile {
	t.Helper()
	files, err := sources()
	if err != nil {
		t.Fatalf("reading the module's files: %v", err)
	}
	if len(files) == 0 {
		t.Fatal("the module has no Go files: the test does not run in its root")
	}
	return files
}

func TestLayoutSizes(t *testing.T) {
	for _, f := range allSources(t) {
		if f.test || ast.IsGenerated(f.ast) {
			continue
		}
		if n := bytes.Count(f.src, []byte("\n")); n > maxFileLines {
			t.Errorf("%s has %d lines, more than %d: is it more than one concept?", f.path, n, maxFileLines)
		}
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			n := f.fset.Position(fn.End()).Line - f.fset.Position(fn.Pos()).Line + 1
			if n > maxFunctionLines {
				t.Errorf("%s: %s has %d lines, more than %d", f.line(fn), fn.Name.Name, n, maxFunctionLines)
			}
		}
	}
}

// vagueNames say where code was put, not what it is.
var vagueNames = []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "testutil", "testutils"}

func TestLayoutPackages(t *testing.T) {
	type pkg struct{ command, doc, docFile bool }
	packages := map[string]*pkg{}
	for _, f := range allSources(t) {
		for part := range strings.SplitSeq(f.dir, "/") {
			if slices.Contains(vagueNames, part) {
				t.Errorf("%s: a package is named for what it is, never %s", f.path, part)
			}
		}
		if f.test {
			continue
		}
		p := packages[f.dir]
		if p == nil {
			p = &pkg{}
			packages[f.dir] = p
		}
		p.command = p.command || f.ast.Name.Name == "main"
		p.doc = p.doc || f.ast.Doc != nil
		p.docFile = p.docFile || path.Base(f.path) == "doc.go"
	}
	for dir, p := range packages {
		if !p.doc {
			t.Errorf("package in %s has no doc comment", dir)
		}
		if !p.command && !p.docFile {
			t.Errorf("package in %s has no doc.go", dir)
		}
	}
}

// guesses are comments that should have been a measurement, a source or a piece of work, and directives that hide
// a finding instead of answering it.
var guesses = regexp.MustCompile(`(?i)\b(TODO|FIXME|XXX)\b|\bI think\b|should be safe|for some reason|^//\s*nolint`)

func TestLayoutComments(t *testing.T) {
	for _, f := range allSources(t) {
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if found := guesses.FindString(c.Text); found != "" && f.path != "layout_test.go" {
					t.Errorf("%s: a comment gives the reason, it does not say %q", f.line(c), found)
				}
			}
		}
	}
}

func TestLayoutMakeTargets(t *testing.T) {
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{
		"build", "demo", "test", "load", "lint", "mutants", "soak", "bench", "fuzz", "cross", "fresh-machine", "clean",
	} {
		if !regexp.MustCompile(`(?m)^` + target + `:`).Match(makefile) {
			t.Errorf("Makefile has no target %s", target)
		}
	}
}
