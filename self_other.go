//go:build !linux

package handover

import "context"

// self does not exist elsewhere.
type self struct{}

func (c *Child) startSelf(Options) error { return errUnsupported }
func (s *self) sayReady() error          { return errUnsupported }
func (s *self) close()                   {}

func (s *self) listen(context.Context, string, string, string) (int, error) {
	return -1, errUnsupported
}

func (s *self) listenPacket(context.Context, string, string, string) (int, error) {
	return -1, errUnsupported
}
