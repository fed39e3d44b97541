package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// ErrNoBack is returned by Rollback where a service has nothing to go back to: nothing
// else has served before, or it was rolled back already.
var ErrNoBack = errors.New("nothing to roll back to")

// Rollback goes back to what served before the last change that was committed: the spec
// and the executable, kept since then, of the services named, or (nil) of those that the
// last reload changed. It reads no configuration and runs no check. Else it is a reload:
// it waits for the outcome, one that fails leaves what serves as it is, and ctx ends the
// wait alone. The next reload goes by the configuration again.
func (s *Supervisor) Rollback(ctx context.Context, req ReloadRequest) (*ReloadReport, error) {
	return s.request(ctx, req, WhyRollback, nil)
}

// prepareKnown prepares a rollback or a repair: the specs are there, and of their sockets
// those are bound that are not open any more.
func (p *preparation) prepareKnown(r *prepared) error {
	r.config, r.event.Digest, r.event.Order = p.old, p.digest, p.have
	r.event.Specs, r.event.Executables = p.specs, p.executables
	for name, spec := range p.specs {
		for i, k := range spec.Keys {
			s := p.known[k.Key]
			if s == nil {
				continue
			}
			if _, refused := s.Options().Diff(spec.Config.Sockets[i].Options); len(refused) > 0 {
				return fmt.Errorf("service.%s.socket.%s: %s cannot change on an open socket", name, k.Name, strings.Join(refused, ", "))
			}
		}
		if err := p.bind(&spec.Config, r); err != nil {
			return err
		}
	}
	return nil
}

// serveRollback rolls back and streams like serveReload.
func (s *Supervisor) serveRollback(w http.ResponseWriter, r *http.Request) {
	noQueue, err := boolParam(r, "no_queue")
	if err != nil {
		writeError(w, http.StatusBadRequest, "bad request", err)
		return
	}
	req := ReloadRequest{Services: r.URL.Query()["service"], NoQueue: noQueue}
	s.streamWhile(w, r, func(ctx context.Context, taken func(Event)) (*ReloadReport, error) {
		return s.request(ctx, req, WhyRollback, taken)
	})
}

// RollbackStatus is what a rollback of a service would go back to.
type RollbackStatus struct {
	Generation int    `json:"generation"` // that a reload had committed with it
	Digest     string `json:"digest"`     // of the configuration file that it came from
	// Program is the SHA-256 of the executable, and Copy how it is kept: "reflink",
	// "memory", or "" for the file alone. Program "": it is not kept, and what is at its
	// path is run.
	Program string `json:"program,omitempty"`
	Copy    string `json:"copy,omitempty"`
}

// rollbackStatus is nil where there is nothing to go back to.
func (svc *Service) rollbackStatus() *RollbackStatus {
	p := svc.Previous
	if p == nil {
		return nil
	}
	out := &RollbackStatus{Generation: p.Gen, Digest: p.Spec.Digest}
	if p.Executable != nil {
		out.Program, out.Copy = p.Executable.Digest, p.Executable.Copy
	}
	return out
}
