package shim

import (
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// The shim is dispatched by this package's init, and Go runs that as soon as
// all imports have initialised: an import of os, fmt or encoding/json would put
// their inits, and many more, into every start of a program.
func TestImportsStayFew(t *testing.T) {
	allowed := map[string]bool{
		"errors": true, "runtime": true, "slices": true, "strconv": true, "sync": true,
		"syscall": true, "unsafe": true, "golang.org/x/sys/unix": true,
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range f.Imports {
			path, err := strconv.Unquote(imp.Path.Value)
			if err != nil || !allowed[path] {
				t.Errorf("%s imports %s, which delays every spawn", e.Name(), path)
			}
		}
	}
}
