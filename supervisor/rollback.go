package supervisor

import (
	"context"
	"errors"
	"fmt"
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
	return s.request(ctx, req, WhyRollback)
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
