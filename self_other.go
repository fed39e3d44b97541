//go:build !linux

package handover

import "context"

// self does not exist elsewhere.
type self struct{}

func (c *Child) startSelf(Options) error { return errUnsupported }
func (s *self) sayReady() error          { return errUnsupported }
func (s *self) close()                   {}

func (s *self) open(context.Context, string, string, string, bool) (int, error) {
	return -1, errUnsupported
}
