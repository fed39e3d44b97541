package handover_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mdLink finds the targets of links in Markdown that are neither URLs nor places of the same page.
var mdLink = regexp.MustCompile(`\]\(([^)#\s:]+)(#[^)]*)?\)`)

// TestPagesAreReachable follows the links from the README: each leads somewhere, and no page of docs and no README of an
// example is left out.
func TestPagesAreReachable(t *testing.T) {
	reached := map[string]bool{"README.md": true}
	for todo := []string{"README.md"}; len(todo) > 0; todo = todo[1:] {
		text, err := os.ReadFile(todo[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mdLink.FindAllStringSubmatch(string(text), -1) {
			page := filepath.Join(filepath.Dir(todo[0]), m[1])
			info, err := os.Stat(page)
			switch {
			case err != nil:
				t.Errorf("%s: the link to %s leads nowhere: %v", todo[0], m[1], err)
				continue
			case info.IsDir():
				page = filepath.Join(page, "README.md")
			}
			if _, err := os.Stat(page); err == nil && strings.HasSuffix(page, ".md") && !reached[page] {
				reached[page] = true
				todo = append(todo, page)
			}
		}
	}
	for _, pattern := range []string{"docs/*.md", "examples/*/README.md"} {
		pages, err := filepath.Glob(pattern)
		if err != nil || len(pages) == 0 {
			t.Fatalf("%s: %v, %v", pattern, pages, err)
		}
		for _, page := range pages {
			if !reached[page] {
				t.Errorf("%s cannot be reached from README.md", page)
			}
		}
	}
}

// TestFailuresAreShown: what docs/FAILURES.md names as its proof is there: tests, scripts of the command, scenarios of make systemd.
func TestFailuresAreShown(t *testing.T) {
	read := func(pattern string) string {
		t.Helper()
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		var all strings.Builder
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
		return all.String()
	}
	page := read("docs/FAILURES.md")
	tests := read("*_test.go") + read("supervisor/*_test.go") + read("cmd/handoverd/*_test.go")
	named := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(page, -1)
	for _, name := range named {
		if !strings.Contains(tests, "\nfunc "+name+"(") {
			t.Errorf("there is no test %s", name)
		}
	}
	for _, name := range regexp.MustCompile(`\b\w+\.txtar`).FindAllString(page, -1) {
		if _, err := os.Stat("cmd/handoverd/testdata/script/" + name); err != nil {
			t.Error(err)
		}
	}
	scenarios := read(".ci/systemd")
	for _, m := range regexp.MustCompile(`make systemd: (\w+)`).FindAllStringSubmatch(page, -1) {
		if !strings.Contains(scenarios, "\nscenario_"+m[1]+"()") {
			t.Errorf("make systemd has no scenario %s", m[1])
		}
	}
	if len(named) < 40 {
		t.Errorf("only %d tests were found in the page", len(named))
	}
}
