package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// How a hook is carried out. What bounds it as a whole is the state: a hook that is
// not wanted any more is ended.
const (
	askEvery  = 500 * time.Millisecond // the balancer is asked again
	askLimit  = 5 * time.Second        // for one answer
	hookLimit = maxDuration            // an announcement and a drain have the deadlines of the state
	hookLines = 5                      // of what a failed one has written are told
)

// hookRun is one hook of one service: what is done, and what it is told.
type hookRun struct {
	spec *Spec
	vars []string // NAME=value: in the environment, in the arguments and in the URL
}

// perform begins the hooks that the state wants and ends those that it does not.
func (l *loop) perform() {
	if l.up.resting {
		return
	}
	wanted := l.state.duties()
	for _, d := range wanted {
		if l.hooks[d] == nil {
			ctx, cancel := context.WithCancel(l.ctx)
			l.hooks[d] = cancel
			svc := l.state.Services[d.Service]
			run := hookRun{spec: svc.stopSpec()}
			if g := svc.gen(d.Gen); g != nil {
				run.spec = g.Spec
				run.vars = append(run.vars, "HANDOVER_GENERATION="+strconv.Itoa(g.N), "HANDOVER_PID="+strconv.Itoa(g.PID))
			}
			l.up.flight.begin()
			l.readers.Add(1) // Run waits for it
			go l.duty(ctx, d, run)
		}
	}
	for d, cancel := range l.hooks {
		if !slices.Contains(wanted, d) {
			cancel()
			delete(l.hooks, d)
		}
	}
}

// duty carries out one hook and tells how it ended. Run waits for it.
func (l *loop) duty(ctx context.Context, d duty, run hookRun) {
	defer l.readers.Done()
	defer l.up.flight.end(l)
	var err error
	stop := &run.spec.Config.Stop
	switch d.Kind {
	case dutyAnnounce:
		err = l.announce(ctx, run, false)
	case dutyUndo:
		err = l.announce(ctx, run, true)
	case dutyAsk:
		err = l.askOften(ctx, run, stop.LameDuck.Ask)
	case dutyDrain:
		err = l.hook(ctx, run, run.spec.Config.Retire.Drain, hookLimit)
	}
	if ctx.Err() != nil {
		return // nobody wants to know
	}
	e := evDuty{duty: d}
	if err != nil {
		e.Fault = err.Error()
	}
	l.post(e)
}

// announce makes the announcement of a lame duck, or takes it back: all of it, also
// when a part fails.
func (l *loop) announce(ctx context.Context, run hookRun, off bool) error {
	cfg := &run.spec.Config.Stop.Announce
	var errs []error
	if cfg.File != "" {
		errs = append(errs, announceFile(cfg.File, off))
	}
	for _, h := range cfg.hooks(off) {
		errs = append(errs, l.hook(ctx, run, h, hookLimit))
	}
	return errors.Join(errs...)
}

// announceFile makes an empty file, or removes it. Either may have been done before. A
// link that is there already is not followed: its directory may be everybody's.
func announceFile(path string, off bool) error {
	if off {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	switch {
	case errors.Is(err, os.ErrExist):
		return nil
	case err != nil:
		return err
	}
	return f.Close()
}

// askOften asks until the answer is yes, or until ctx ends.
func (l *loop) askOften(ctx context.Context, run hookRun, h HookConfig) error {
	pause := time.NewTicker(askEvery)
	defer pause.Stop()
	for {
		err := l.hook(ctx, run, h, askLimit)
		if err == nil {
			return nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return err
		}
	}
}

// hook does one thing once, in at most limit. A program that runs for longer is
// killed, with everything it has started.
func (l *loop) hook(ctx context.Context, run hookRun, h HookConfig, limit time.Duration) error {
	if len(h.Exec) == 0 {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return makeRequest(ctx, expand(h.HTTP, run.known()))
	}
	out := &handout{service: run.spec.Config.Name, token: rand.Text()}
	argv := make([]string, len(h.Exec))
	for i, a := range h.Exec {
		argv[i] = expand(a, run.known())
	}
	sh, err := besideSpec(run.spec, argv, out, 0)
	if err != nil {
		return err
	}
	for _, v := range run.vars {
		name, value, _ := strings.Cut(v, "=")
		sh.Env = setenv(sh.Env, name, value)
	}
	text, err := l.runBeside(ctx, sh, nil, out.token, limit)
	if err != nil {
		return fmt.Errorf("%s: %w%s", h.Exec[0], err, lastLines(text, hookLines))
	}
	return nil
}

// known are the variables that a hook's URL may name.
func (r *hookRun) known() map[string]string {
	return vars(append([]string{"HANDOVER_SERVICE=" + r.spec.Config.Name}, r.vars...))
}

// maxAnswer is how much of an answer is read: it is passed over.
const maxAnswer = 64 << 10

// onceClient makes each request on a connection of its own, by dial if that is not
// nil. A redirect is an answer like any other: who follows it asks somebody else.
func onceClient(dial func(context.Context) (net.Conn, error)) *http.Client {
	tr := &http.Transport{DisableKeepAlives: true}
	if dial != nil {
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	}
	return &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// requestOnce makes one request and passes over what is answered but the status.
// host is that of the request, "" for the URL's.
func requestOnce(ctx context.Context, client *http.Client, method, address, host string) (status int, u *url.URL, err error) {
	req, err := http.NewRequestWithContext(ctx, method, address, nil)
	if err != nil {
		return 0, nil, errNoURL
	}
	req.Host = host
	req.Header.Set("User-Agent", "handoverd")
	resp, err := client.Do(req)
	if err != nil {
		return 0, req.URL, withoutURL(err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.CopyN(io.Discard, resp.Body, maxAnswer)
	return resp.StatusCode, req.URL, nil
}

// errNoURL does not quote what is no URL: it may hold a secret.
var errNoURL = errors.New("the address is no URL")

// withoutURL is why there was no answer. A URL may hold a secret.
func withoutURL(err error) error {
	if of, ok := errors.AsType[*url.Error](err); ok {
		return of.Err
	}
	return err
}

var hookClient = onceClient(nil)

// makeRequest makes one request, "METHOD URL". Any answer of 2xx is a success.
func makeRequest(ctx context.Context, text string) error {
	method, address, _ := strings.Cut(text, " ")
	status, u, err := requestOnce(ctx, hookClient, method, address, "")
	switch {
	case u == nil:
		return fmt.Errorf("http: %w", err)
	case err != nil:
		return fmt.Errorf("http: %s: %w", u.Host, err)
	case status/100 != 2:
		return fmt.Errorf("http: %s: status %d", u.Host, status)
	}
	return nil
}
