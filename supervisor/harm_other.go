//go:build !linux

package supervisor

import (
	"errors"

	"github.com/handoverd/handover/fdpass"
)

type harmWatcher struct{}

func newHarmWatcher() (*harmWatcher, error) { return nil, errors.ErrUnsupported }

func (*harmWatcher) add(*fdpass.Socket) error        { return errors.ErrUnsupported }
func (*harmWatcher) remove(*fdpass.Socket)           {}
func (*harmWatcher) wait() ([]*fdpass.Socket, error) { return nil, errors.ErrUnsupported }
func (*harmWatcher) close() error                    { return nil }
