package supervisor

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/BurntSushi/toml"
)

// DefaultRuntimeDir is the runtime directory of a configuration that sets none,
// or, with a name, that of FromFlags for a service of that name.
func DefaultRuntimeDir(name string) string { return filepath.Join(thisHost().runtimeDir(), name) }

// RuntimeDir is the runtime_dir of the file at path, or the default. It looks
// at nothing else of the file: whoever wants to talk to a running handoverd must
// be able to while its file is being edited. Errors are *ConfigErrors.
func RuntimeDir(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", openError(path, err)
	}
	defer func() { _ = f.Close() }()
	var doc struct {
		RuntimeDir string `toml:"runtime_dir"`
	}
	if _, err := toml.NewDecoder(io.LimitReader(f, maxConfigSize)).Decode(&doc); err != nil {
		return "", syntaxError(path, err)
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
