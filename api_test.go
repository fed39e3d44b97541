package handover_test

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var updateAPI = flag.Bool("update-api", false, "write testdata/api.txt anew")

// maxNames bounds what a user has to learn.
const maxNames = 20

// TestAPI compares the exported names of the package with testdata/api.txt, so
// that each new one is a decision. Methods that only satisfy an interface
// (Error, Unwrap, Timeout, Temporary) do not count towards the bound.
func TestAPI(t *testing.T) {
	got := exported(t, ".")
	const file = "testdata/api.txt"
	if *updateAPI {
		if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(b)), "\n")
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the exported names changed (go test -run TestAPI -update-api .), -%s +now:\n%s", file, d)
	}
	n := 0
	for _, line := range got {
		if !strings.HasPrefix(line, "func (*SocketError)") {
			n++
		}
	}
	if n > maxNames {
		t.Errorf("%d exported names, at most %d", n, maxNames)
	}
}

// exported lists the exported declarations of the package in dir, sorted.
func exported(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	fset := token.NewFileSet()
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, "_other.go") {
			continue
		}
		f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				if s := exportedFunc(t, fset, decl); s != "" {
					out = append(out, s)
				}
			case *ast.GenDecl:
				out = append(out, exportedSpecs(t, fset, decl)...)
			}
		}
	}
	slices.Sort(out)
	return out
}

func exportedFunc(t *testing.T, fset *token.FileSet, fn *ast.FuncDecl) string {
	t.Helper()
	if !fn.Name.IsExported() {
		return ""
	}
	recv := ""
	if fn.Recv != nil {
		recv = source(t, fset, fn.Recv.List[0].Type)
		if name := strings.TrimLeft(recv, "*"); !ast.IsExported(name) {
			return ""
		}
		recv = "(" + recv + ") "
	}
	return "func " + recv + fn.Name.Name + strings.TrimPrefix(source(t, fset, fn.Type), "func")
}

func exportedSpecs(t *testing.T, fset *token.FileSet, decl *ast.GenDecl) []string {
	t.Helper()
	var out []string
	for _, spec := range decl.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if !spec.Name.IsExported() {
				continue
			}
			line := "type " + spec.Name.Name + " " + source(t, fset, spec.Type)
			if st, ok := spec.Type.(*ast.StructType); ok {
				var fields []string
				for _, f := range st.Fields.List {
					for _, name := range f.Names {
						if name.IsExported() {
							fields = append(fields, name.Name+" "+source(t, fset, f.Type))
						}
					}
				}
				line = "type " + spec.Name.Name + " struct{" + strings.Join(fields, "; ") + "}"
			}
			out = append(out, line)
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				if name.IsExported() {
					out = append(out, decl.Tok.String()+" "+name.Name)
				}
			}
		}
	}
	return out
}

func source(t *testing.T, fset *token.FileSet, node ast.Node) string {
	t.Helper()
	var b bytes.Buffer
	if err := printer.Fprint(&b, fset, node); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
