package drill

import (
	"fmt"
	"time"
)

// Probe sends one request for the contract's page /fast to the load's address and says whether the answer keeps the contract.
// An error says that no whole answer came at all.
func Probe(l Load) (contract bool, err error) {
	l.Mode = ModeFresh
	l, t, err := l.withDefaults()
	if err != nil {
		return false, fmt.Errorf("probe: %w", err)
	}
	deadline := time.Now().Add(l.Timeout)
	d := dialer{target: t}
	c, err := d.dial(deadline)
	if err != nil {
		return false, fmt.Errorf("probe: %w", err)
	}
	k := newClient(c, "")
	defer k.close()
	const number = 1
	q := l.query(number)
	request, sent := q.AppendRequest(nil, nil)
	a, f := k.exchange(request, deadline, nil)
	if f != nil {
		return false, fmt.Errorf("probe of %s: %s: %w", l.Address, f.kind, f.err)
	}
	_, err = q.Verify(Answer{Status: a.status, Generation: a.generation, Number: a.number, Body: a.body}, sent)
	return err == nil, nil
}
