package supervisor

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/BurntSushi/toml"
)

// DefaultRuntimeDir is the runtime directory of a configuration that sets none,
// or, with a name, that of FromFlags for a service of that name.
func DefaultRuntimeDir(name string) string { return filepath.Join(thisHost().runtimeDir(), name) }

// LoadTop reads what stands before the first table of the file at path: where handoverd keeps its state, and what it
// listens on. The Config has no services. It is enough to take over what an earlier handoverd has left, whose state
// knows what runs, where the file as a whole cannot be used. Errors are *ConfigErrors.
func LoadTop(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(path, err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigSize))
	if err != nil {
		return nil, &ConfigError{File: path, Err: err}
	}
	doc := map[string]any{}
	md, err := toml.Decode(beforeTables(text), &doc)
	if err != nil {
		return nil, syntaxError(path, err)
	}
	b := &builder{host: thisHost(), src: &source{file: path, keys: md.Keys()}}
	c := &Config{File: path}
	b.top(&table{src: b.src, m: doc}, c)
	if err := joinConfigErrors(b.src.errs); err != nil {
		return nil, err
	}
	return c, nil
}

// beforeTables is what stands before the first table.
func beforeTables(text []byte) string {
	var top []byte
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(bytes.TrimSpace(line), []byte{'['}) {
			break
		}
		top = append(top, line...)
	}
	return string(top)
}

// RuntimeDir is the runtime_dir of the file at path, or the default. It looks
// at nothing else of the file: whoever wants to talk to a running handoverd must
// be able to while its file is being edited, also where that is no TOML at the moment,
// as long as what stands before its first table is. Errors are *ConfigErrors.
func RuntimeDir(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", openError(path, err)
	}
	defer func() { _ = f.Close() }()
	var doc struct {
		RuntimeDir string `toml:"runtime_dir"`
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfigSize))
	if err != nil {
		return "", &ConfigError{File: path, Err: err}
	}
	if _, err := toml.Decode(string(text), &doc); err != nil {
		if _, topErr := toml.Decode(beforeTables(text), &doc); topErr != nil {
			return "", syntaxError(path, err)
		}
	}
	if doc.RuntimeDir == "" {
		return DefaultRuntimeDir(""), nil
	}
	dir, err := filepath.Abs(doc.RuntimeDir)
	if err != nil {
		return "", &ConfigError{File: path, Key: "runtime_dir", Err: fmt.Errorf("%q is relative: %w", doc.RuntimeDir, err)}
	}
	return dir, nil
}
