package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ControlSocket is the name of the control socket in the runtime directory.
const ControlSocket = "control.sock"

// ControlPath is where the control socket of a runtime directory is.
func ControlPath(runtimeDir string) string { return filepath.Join(runtimeDir, ControlSocket) }

// ProcessHeader names the header of an answer of the control API with the process number
// of handoverd. It is the same after an upgrade, unlike after a start anew.
const ProcessHeader = "Handoverd-Pid"

// ControlError is how the control API says that something did not work.
type ControlError struct {
	Code  string `json:"code"` // "busy", "stopping", "nothing", "no such job", "bad request", "internal"
	Error string `json:"error"`
}

// serveControl serves the control API, HTTP with JSON, on the UNIX socket of the
// runtime directory (0600) until Run returns:
//
//	GET  /v1/status                         Status
//	POST /v1/reload?service=S&no_queue=1    lines of Event, the last one of kind "reload"
//	GET  /v1/reload?job=N                   the same, of a job that was asked for before
//	POST /v1/abort?service=S                the same
//	POST /v1/rollback?service=S&no_queue=1  the same
//	POST /v1/stop?now=1&within=10s          202
//	POST /v1/lame-duck?service=S&off=1      LameDuckReport, when the wait is over
//	GET  /v1/lame-duck?service=S&off=1      the same, and begins or ends none
//	GET  /v1/events?after=SEQ               lines of Event
//	POST /v1/upgrade?binary=PATH&within=20s lines of Event, and a ControlError if it is refused
//	POST /v1/gc                             RuntimeFigures
//
// An upgrade of handoverd cuts those who wait for an outcome, once they know what they
// wait for: they ask the next image for the same by GET. The answers have ProcessHeader.
//
// Every request is checked by the caller's credentials (SO_PEERCRED, unix(7)):
// only root and handoverd's own user are served, whatever the mode of the path.
// It is called when the lock is held, so a socket that is there is a stale one.
func (s *Supervisor) serveControl() error {
	path := ControlPath(s.cfg.RuntimeDir)
	l, err := s.listener("control", func() (net.Listener, error) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		return listenPrivate(path)
	})
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler:           s.controlHandler(),
		ReadHeaderTimeout: 5 * time.Second, // a silent client holds one goroutine, and not for long
		IdleTimeout:       30 * time.Second,
		ConnContext:       withPeer,
	}
	s.serveUntilDone("control", srv, l)
	return nil
}

// serveUntilDone serves until Run ends; finish waits for the end. One that takes over
// begins with a pause, until its first turn.
func (s *Supervisor) serveUntilDone(name string, srv *http.Server, l fileListener) {
	srv.ErrorLog = slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelWarn) // what it says goes where all else does
	v := newServed(name, srv, l)
	s.served = append(s.served, v)
	if h := s.opts.Self.Handed; h != nil {
		v.paused = make(chan struct{})
		if h.Rehearsal() {
			return // nobody is answered
		}
	}
	s.servers.Add(2)
	go s.closeServer(srv)
	go s.serve(srv, v)
}

// listenPrivate binds a path that is 0600 from its first instant.
func listenPrivate(path string) (net.Listener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(cerr, err)
	}}
	return lc.Listen(context.Background(), "unix", path)
}

// closeServer ends when Run does, and ends serve. The answers of the
// last turn have a moment to be written.
func (s *Supervisor) closeServer(srv *http.Server) {
	defer s.servers.Done()
	<-s.done
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	_ = srv.Shutdown(ctx)
	_ = srv.Close()
}

// serve answers requests until closeServer ends it.
func (s *Supervisor) serve(srv *http.Server, l net.Listener) {
	defer s.servers.Done()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		s.opts.Log.Error("not served any more", "address", l.Addr().String(), "err", err)
	}
}

type peerKey struct{}

// withPeer notes who is at the other end.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return ctx
	}
	var uid int
	if cerr := raw.Control(func(fd uintptr) { uid, err = peerUID(int(fd)) }); cerr != nil || err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, uid)
}

func allowed(r *http.Request) bool {
	uid, ok := r.Context().Value(peerKey{}).(int)
	return ok && (uid == 0 || uid == os.Geteuid())
}

func (s *Supervisor) controlHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", s.serveStatus)
	mux.HandleFunc("POST /v1/reload", s.serveReload)
	mux.HandleFunc("GET /v1/reload", s.serveAwait)
	mux.HandleFunc("POST /v1/abort", s.serveAbort)
	mux.HandleFunc("POST /v1/rollback", s.serveRollback)
	mux.HandleFunc("POST /v1/stop", s.serveStop)
	mux.HandleFunc("POST /v1/lame-duck", s.serveLameDuck)
	mux.HandleFunc("GET /v1/lame-duck", s.serveLameDuck)
	mux.HandleFunc("GET /v1/events", s.serveEvents)
	mux.HandleFunc("POST /v1/upgrade", s.serveUpgrade)
	mux.HandleFunc("POST /v1/gc", s.serveGC)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(ProcessHeader, strconv.Itoa(os.Getpid()))
		if !allowed(r) {
			writeError(w, http.StatusForbidden, "forbidden", errors.New("only root and handoverd's own user may use the control socket"))
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client is gone: there is nobody to tell
}

func writeError(w http.ResponseWriter, status int, code string, err error) {
	writeJSON(w, status, ControlError{Code: code, Error: err.Error()})
}

func (s *Supervisor) serveStatus(w http.ResponseWriter, r *http.Request) {
	st, err := s.Status(r.Context())
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, "stopping", err)
		return
	}
	writeJSON(w, http.StatusOK, st)
}

func (s *Supervisor) serveStop(w http.ResponseWriter, r *http.Request) {
	now, err := boolParam(r, "now")
	if err != nil {
		writeError(w, http.StatusBadRequest, "bad request", err)
		return
	}
	within, err := durationParam(r, "within")
	if err != nil {
		writeError(w, http.StatusBadRequest, "bad request", err)
		return
	}
	if err := s.Stop(r.Context(), StopRequest{Now: now, Within: within}); err != nil {
		writeError(w, http.StatusServiceUnavailable, "stopping", err)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// durationParam reads a duration that is longer than 0, or 0 without one.
func durationParam(r *http.Request, name string) (time.Duration, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 || d > maxDuration {
		return 0, errors.New(name + ": " + strconv.Quote(v) + " is no duration like 10s")
	}
	return d, nil
}

func boolParam(r *http.Request, name string) (bool, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		return false, errors.New(name + ": " + strconv.Quote(v) + " is neither true nor false")
	}
	return b, nil
}

// intParam reads a number that is greater than 0, or 0 without one.
func intParam(r *http.Request, name string) (int, error) {
	v := r.URL.Query().Get(name)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n <= 0 {
		return 0, errors.New(name + ": " + strconv.Quote(v) + " is no number above 0")
	}
	return n, nil
}

type reloadOutcome struct {
	report *ReloadReport
	err    error
}

// outcomeInto ends with one value in done, which has room for it; the request
// waits for it, or is gone.
func outcomeInto(ctx context.Context, f func(context.Context) (*ReloadReport, error), done chan<- reloadOutcome) {
	report, err := f(ctx)
	done <- reloadOutcome{report, err}
}

// serveReload reloads and streams what happens meanwhile; the last line is the
// outcome, an Event of kind "reload".
func (s *Supervisor) serveReload(w http.ResponseWriter, r *http.Request) {
	noQueue, err := boolParam(r, "no_queue")
	if err != nil {
		writeError(w, http.StatusBadRequest, "bad request", err)
		return
	}
	req := ReloadRequest{Services: r.URL.Query()["service"], NoQueue: noQueue}
	s.streamWhile(w, r, func(ctx context.Context, taken func(Event)) (*ReloadReport, error) {
		return s.request(ctx, req, WhyReload, taken)
	})
}

// serveAbort rolls back and streams like serveReload.
func (s *Supervisor) serveAbort(w http.ResponseWriter, r *http.Request) {
	services := r.URL.Query()["service"]
	s.streamWhile(w, r, func(ctx context.Context, taken func(Event)) (*ReloadReport, error) {
		return s.abort(ctx, services, taken)
	})
}

// streamWhile writes what happens while f runs, and then what it comes to. What f passes to taken says
// what the request waits for: from then on it lasts.
func (s *Supervisor) streamWhile(w http.ResponseWriter, r *http.Request, f func(ctx context.Context, taken func(Event)) (*ReloadReport, error)) {
	events, end := s.Follow()
	defer end()
	taken, done := make(chan Event, 1), make(chan reloadOutcome, 1)
	tell := func(e Event) {
		e.Time, e.Kind = time.Now(), "taken"
		taken <- e
	}
	// streamReload waits for it, or the request is gone and nobody does.
	go outcomeInto(r.Context(), func(ctx context.Context) (*ReloadReport, error) { return f(ctx, tell) }, done)
	streamReload(newLines(w), events, taken, done, func() { lasts(r) })
}

// streamReload writes events until the outcome, which is the last line: what happened before it was put into events
// before it, and is written before it. known is called once it is written what was taken.
func streamReload(out *lines, events, taken <-chan Event, done <-chan reloadOutcome, known func()) {
	write := func(e Event) {
		if e.Kind != "reload" {
			out.write(e)
		}
	}
	for {
		select {
		case e, ok := <-events:
			if !ok {
				events = nil
			} else {
				write(e)
			}
		case e := <-taken:
			write(e)
			known()
		case o := <-done:
			for range len(events) {
				write(<-events)
			}
			out.outcome(o)
			return
		}
	}
}

func (s *Supervisor) serveEvents(w http.ResponseWriter, r *http.Request) {
	after, err := intParam(r, "after")
	if err != nil {
		writeError(w, http.StatusBadRequest, "bad request", err)
		return
	}
	events, end := s.hub.after(after)
	defer end()
	out := newLines(w)
	out.begin()
	lasts(r)
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			out.write(e)
		case <-r.Context().Done():
			return
		}
	}
}

// lines writes one JSON value a line, each at once.
type lines struct {
	w     http.ResponseWriter
	begun bool
}

func newLines(w http.ResponseWriter) *lines { return &lines{w: w} }

func (l *lines) begin() {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/x-ndjson")
		l.w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(l.w).Flush()
	}
}

func (l *lines) write(v any) {
	l.begin()
	_ = json.NewEncoder(l.w).Encode(v)
	_ = http.NewResponseController(l.w).Flush()
}

func (l *lines) outcome(o reloadOutcome) {
	switch {
	case errors.Is(o.err, ErrBusy):
		l.fail(http.StatusConflict, "busy", o.err)
	case errors.Is(o.err, ErrNothing), errors.Is(o.err, ErrNoBack):
		l.fail(http.StatusConflict, "nothing", o.err)
	case errors.Is(o.err, errNoJob):
		l.fail(http.StatusNotFound, "no such job", o.err)
	case errors.Is(o.err, ErrStopping), errors.Is(o.err, ErrClosed):
		l.fail(http.StatusConflict, "stopping", o.err)
	case o.err != nil && upgradeCode(o.err) != "":
		l.fail(http.StatusConflict, upgradeCode(o.err), o.err)
	case o.err != nil:
		l.fail(http.StatusInternalServerError, "internal", o.err)
	default:
		l.write(Event{Time: time.Now(), Kind: "reload", Report: o.report})
	}
}

// fail answers with a status if nothing was written yet, else with a last line.
func (l *lines) fail(status int, code string, err error) {
	if !l.begun {
		writeError(l.w, status, code, err)
		return
	}
	l.write(ControlError{Code: code, Error: err.Error()})
}
