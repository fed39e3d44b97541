package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// serveHTTP serves the read-only addresses of the configuration until Run
// returns: health has /ready and /healthz, admin has these, /metrics and the
// status as /status. An address that cannot be bound is an error, and none is
// then served.
func (s *Supervisor) serveHTTP() error {
	health := http.NewServeMux()
	health.HandleFunc("GET /ready", s.ready)
	health.HandleFunc("GET /healthz", s.healthz)
	admin := http.NewServeMux()
	admin.Handle("GET /ready", health)
	admin.Handle("GET /healthz", health)
	admin.HandleFunc("GET /status", s.serveOpenStatus)
	if s.opts.Metrics != nil {
		admin.Handle("GET /metrics", s.opts.Metrics)
	}
	var listeners []fileListener
	for _, a := range []struct {
		key, address string
		h            http.Handler
	}{{"health", s.cfg.Health, health}, {"admin", s.cfg.Admin, admin}} {
		if a.address == "" {
			continue
		}
		l, err := s.listener(a.key, func() (net.Listener, error) { return net.Listen("tcp", a.address) })
		if err != nil {
			for _, open := range listeners {
				_ = open.Close()
			}
			return fmt.Errorf("%s: %w", a.key, err)
		}
		listeners = append(listeners, l)
		srv := &http.Server{Handler: a.h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
		s.serveUntilDone(a.key, srv, l)
	}
	return nil
}

// ready answers 200 while every service serves, or the one named by ?service=
// (404 if there is none), and 503 before that, in a lame duck, and from the moment a
// stop begins.
func (s *Supervisor) ready(w http.ResponseWriter, r *http.Request) {
	service := r.URL.Query().Get("service")
	if service != "" && !s.knows(service) {
		writeError(w, http.StatusNotFound, "no such service", fmt.Errorf("no service is called %q", service))
		return
	}
	ok := s.Ready(service)
	s.probed(r, service, ok)
	code := http.StatusOK
	if !ok {
		code = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]bool{"ready": ok})
}

// knows reports whether there is such a service. Before the first configuration
// has been applied any may come.
func (s *Supervisor) knows(service string) bool {
	snap := s.state.Load()
	return snap == nil || len(snap.state.Services) == 0 || snap.state.Services[service] != nil
}

// healthz answers 200 if the loop answers: handoverd itself lives.
func (s *Supervisor) healthz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	if err := s.ask(ctx, func(*loop) {}); err != nil && !errors.Is(err, ErrClosed) {
		http.Error(w, "the loop does not answer", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// serveOpenStatus is for whoever reaches the admin address: what is wrong with the file may quote what stands in it.
func (s *Supervisor) serveOpenStatus(w http.ResponseWriter, r *http.Request) {
	st, err := s.Status(r.Context())
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, "stopping", err)
		return
	}
	st.ConfigNote, _, _ = strings.Cut(st.ConfigNote, ": ")
	writeJSON(w, http.StatusOK, st)
}
