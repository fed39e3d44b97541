package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/handoverd/handover/supervisor"
)

// clientTimeout bounds the answers that come at once.
const clientTimeout = 10 * time.Second

// where says which handoverd a command talks to.
type where struct{ file, dir, name string }

// noArgs refuses arguments as a mistake in them.
func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usage(fmt.Errorf("%s takes no argument, not %q", cmd.CommandPath(), args[0]))
	}
	return nil
}

func (w *where) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&w.file, "config", "c", "", "configuration file of the running handoverd (default "+defaultConfig+", if there is one)")
	f.StringVar(&w.dir, "runtime-dir", "", "runtime directory of the running handoverd")
	f.StringVar(&w.name, "name", "", "service name of a handoverd that was started without a file")
}

// runtimeDir finds the directory: the flags say it, or the default file, or there
// is only one handoverd of this user's here.
func (w *where) runtimeDir() (string, error) {
	switch {
	case w.dir != "":
		return filepath.Abs(w.dir)
	case w.file != "":
		return supervisor.RuntimeDir(w.file)
	case w.name != "":
		return supervisor.DefaultRuntimeDir(w.name), nil
	}
	if dir, err := supervisor.RuntimeDir(defaultConfig); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	def := supervisor.DefaultRuntimeDir("")
	found := alive(append([]string{def}, subdirectories(def)...))
	switch len(found) {
	case 0:
		return def, nil
	case 1:
		return found[0], nil
	}
	return "", usage(fmt.Errorf("several handoverds run here, say which with --runtime-dir: %s", strings.Join(found, ", ")))
}

func subdirectories(dir string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, "*", supervisor.ControlSocket)) // the pattern is well formed
	for i, f := range found {
		found[i] = filepath.Dir(f)
	}
	return found
}

// alive keeps the directories in whose control socket somebody listens, or
// may: only its owner can tell.
func alive(dirs []string) []string {
	var out []string
	for _, d := range dirs {
		c, err := net.Dial("unix", supervisor.ControlPath(d))
		switch {
		case err == nil:
			_ = c.Close()
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
			continue
		}
		out = append(out, d)
	}
	return out
}

// client talks to a running handoverd.
type client struct {
	path string
	http *http.Client
}

func (w *where) client() (*client, error) {
	dir, err := w.runtimeDir()
	if err != nil {
		return nil, err
	}
	path := supervisor.ControlPath(dir)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return &client{path: path, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}, nil
}

// reachError says that there was nobody to talk to.
type reachError struct {
	path string
	err  error
}

func (e *reachError) Unwrap() error { return e.err }

func (e *reachError) Error() string {
	var remedy string
	err := e.err
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // "dial unix PATH" is said already
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		remedy = "no handoverd has this runtime directory: start one with handoverd run, or say which with -c FILE, --runtime-dir DIR or --name NAME"
	case errors.Is(err, syscall.ECONNREFUSED):
		remedy = "the handoverd that made it is gone: handoverd run starts one, which takes over programs that were left running; handoverd sweep ends them"
	case errors.Is(err, fs.ErrPermission):
		remedy = "only root and the user that handoverd runs as may use it"
	case errors.Is(err, context.DeadlineExceeded):
		remedy = "it does not answer, and its programs serve on: one that hangs can be killed (SIGKILL), and the next handoverd run takes them over"
	default:
		return fmt.Sprintf("control socket %s: %v", e.path, err)
	}
	return fmt.Sprintf("control socket %s: %v: %s", e.path, err, remedy)
}

// apiError is a refusal.
type apiError struct {
	status int
	supervisor.ControlError
}

func (e *apiError) Error() string { return e.ControlError.Error }

// do sends a request. The body of the answer is the caller's to close.
func (c *client) do(ctx context.Context, method, path string, query url.Values) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "handoverd", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok {
			err = of.Err
		}
		return nil, &reachError{c.path, err}
	}
	if res.StatusCode >= 300 {
		defer func() { _ = res.Body.Close() }()
		bad := &apiError{status: res.StatusCode}
		if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&bad.ControlError); err != nil {
			bad.ControlError = supervisor.ControlError{Code: "internal", Error: res.Status}
		}
		if bad.status == http.StatusForbidden {
			return nil, &reachError{c.path, bad}
		}
		return nil, bad
	}
	return res, nil
}

func (c *client) status(ctx context.Context) (*supervisor.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	res, err := c.do(ctx, http.MethodGet, "/v1/status", nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	var st supervisor.Status
	if err := json.NewDecoder(res.Body).Decode(&st); err != nil {
		return nil, &reachError{c.path, err}
	}
	return &st, nil
}

// streamLine is one line of a stream: an event, or how the request failed.
type streamLine struct {
	supervisor.Event
	supervisor.ControlError
}

// stream calls each with every line until it says no, the stream ends (nil) or
// breaks.
func (c *client) stream(ctx context.Context, method, path string, query url.Values, each func(streamLine) (more bool, err error)) error {
	res, err := c.do(ctx, method, path, query)
	if err != nil {
		return err
	}
	return c.lines(ctx, res, each)
}

// lines is the rest of stream. It closes the body of the answer.
func (c *client) lines(ctx context.Context, res *http.Response, each func(streamLine) (more bool, err error)) error {
	defer func() { _ = res.Body.Close() }()
	d := json.NewDecoder(res.Body)
	for {
		var l streamLine
		switch err := d.Decode(&l); {
		case ctx.Err() != nil:
			return ctx.Err()
		case broken(err):
			return nil // handoverd has ended, or was upgraded
		case err != nil:
			return &reachError{c.path, err}
		}
		if l.Code != "" {
			return &apiError{status: http.StatusInternalServerError, ControlError: l.ControlError}
		}
		if more, err := each(l); err != nil || !more {
			return err
		}
	}
}

// unknown names those of services that are not configured, with those that are; "" if there are none, or nobody says.
func (c *client) unknown(services []string) string {
	st, err := c.status(context.Background())
	if err != nil {
		return ""
	}
	var have []string
	for i := range st.Services {
		if !st.Services[i].Removed {
			have = append(have, st.Services[i].Name)
		}
	}
	services = slices.DeleteFunc(slices.Clone(services), func(s string) bool { return slices.Contains(have, s) })
	if len(services) == 0 {
		return ""
	}
	return fmt.Sprintf("no such service: %s (configured: %s)", strings.Join(services, ", "), strings.Join(have, ", "))
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
