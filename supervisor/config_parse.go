package supervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/handoverd/handover/fdpass"
)

// configHost is what a configuration's meaning depends on besides its text.
type configHost struct {
	accounts accountFiles
	uid      int
	// xdgRuntimeDir is $XDG_RUNTIME_DIR, workDir where handoverd was started.
	xdgRuntimeDir, workDir string
}

// thisHost reads what it can; a working directory that is gone is "", and
// only a relative path then fails.
func thisHost() configHost {
	wd, err := os.Getwd()
	if err != nil {
		wd = ""
	}
	return configHost{
		accounts:      systemAccounts,
		uid:           os.Geteuid(),
		xdgRuntimeDir: xdgRuntimeDir(),
		workDir:       wd,
	}
}

// runtimeDir is the default of runtime_dir.
func (h configHost) runtimeDir() string {
	switch {
	case h.uid == 0:
		return "/run/handoverd"
	case filepath.IsAbs(h.xdgRuntimeDir):
		return filepath.Join(h.xdgRuntimeDir, "handoverd")
	}
	return "/tmp/handoverd-" + strconv.Itoa(h.uid)
}

// Load reads and parses the file at path.
func Load(path string) (*Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, openError(path, err)
	}
	defer f.Close()
	return Parse(path, f)
}

// Parse reads a configuration of at most 1 MiB from r; name stands for it
// in errors. Relative paths are taken from the working directory. Users and
// groups are looked up in /etc/passwd and /etc/group; nothing else outside
// the text is looked at. On error the Config is nil and the error joins a
// *ConfigError for each thing found wrong.
func Parse(name string, r io.Reader) (*Config, error) {
	return parseConfig(name, r, thisHost())
}

func parseConfig(name string, r io.Reader, host configHost) (*Config, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxConfigSize+1))
	if err != nil {
		return nil, &ConfigError{File: name, Line: 1, Err: err}
	}
	if len(text) > maxConfigSize {
		return nil, &ConfigError{File: name, Line: 1, Err: fmt.Errorf("larger than %d bytes", maxConfigSize)}
	}
	lines, deep := scanKeyLines(string(text))
	if deep != nil {
		deep.File = name
		return nil, deep
	}
	doc := map[string]any{}
	md, err := toml.Decode(string(text), &doc)
	if err != nil {
		return nil, syntaxError(name, err)
	}
	b := &builder{host: host, src: &source{file: name, keys: md.Keys(), lines: lines}}
	return b.build(doc, &Config{File: name, Digest: digest(text)})
}

// digest names the text of a configuration.
func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:12]
}

// openError names the file once: the *fs.PathError would repeat it.
func openError(path string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return &ConfigError{File: path, Err: fmt.Errorf("open: %w", err)}
}

func syntaxError(name string, err error) error {
	var pe toml.ParseError
	if !errors.As(err, &pe) {
		return &ConfigError{File: name, Line: 1, Err: err}
	}
	msg := pe.Message
	if msg == "" {
		msg = strings.TrimPrefix(pe.Error(), "toml: ")
	}
	return &ConfigError{File: name, Line: max(pe.Position.Line, 1), Key: pe.LastKey, Err: errors.New(msg)}
}

// builder turns a document into a Config.
type builder struct {
	src  *source
	host configHost
}

func (b *builder) build(doc map[string]any, c *Config) (*Config, error) {
	top := &table{src: b.src, m: doc, elsewhere: serviceKeys}
	b.top(top, c)
	if top.str("broker", "") != "" {
		top.notYet("broker")
	}
	services := top.sub("service")
	for _, name := range services.names() {
		t := services.sub(name)
		if err := checkName(name); err != nil {
			b.src.fail(t.path, err)
			continue
		}
		if _, ok := services.m[name].(map[string]any); !ok {
			continue // sub has said so
		}
		c.Services = append(c.Services, b.service(name, t))
	}
	if len(services.m) == 0 && len(b.src.errs) == 0 {
		top.fail("service", "no service: a [service.NAME] table with a command is needed")
	}
	top.finish()
	b.order(c)
	b.shareSockets(c)
	if err := joinConfigErrors(b.src.errs); err != nil {
		return nil, err
	}
	return c, nil
}

// top reads the keys of handoverd itself.
func (b *builder) top(top *table, c *Config) {
	c.RuntimeDir = b.path(top, "runtime_dir", b.host.runtimeDir())
	c.Admin = httpAddress(top, "admin")
	c.Health = httpAddress(top, "health")
	if c.Health != "" && c.Health == c.Admin {
		top.fail("health", "the same address as admin, which serves /ready and /healthz too")
	}
	c.Keeper = top.oneOf("keeper", "auto", []string{"auto", "none"}, nil)
}

// path reads a path and makes it absolute.
func (b *builder) path(t *table, key, def string) string {
	p := t.str(key, def)
	if p == "" || filepath.IsAbs(p) {
		if t.has(key) && p != "" {
			p = filepath.Clean(p)
		}
		return p
	}
	if b.host.workDir == "" {
		t.fail(key, "%q is relative, and the working directory is gone", p)
		return def
	}
	return filepath.Join(b.host.workDir, p)
}

// httpAddress reads HOST:PORT. Names are refused but localhost: what a
// resolver answers may change between two reads of one file.
func httpAddress(t *table, key string) string {
	s := t.str(key, "")
	if s == "" {
		return ""
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		t.fail(key, "%q is not ADDRESS:PORT, like \"127.0.0.1:9902\"", s)
		return ""
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		t.fail(key, "%q is not a port", port)
		return ""
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	if host != "" {
		if _, err := netip.ParseAddr(host); err != nil {
			t.fail(key, "%q is not an IP address", host)
			return ""
		}
	}
	return net.JoinHostPort(host, port)
}

// httpSocket is the socket an admin or health address stands for, as the
// services' sockets are described, so that the two can be compared.
func httpSocket(address string) (fdpass.Addr, bool) {
	if address == "" {
		return fdpass.Addr{}, false
	}
	a, _, err := fdpass.ParseAddr("tcp://" + address)
	return a, err == nil && a.Port != 0
}
