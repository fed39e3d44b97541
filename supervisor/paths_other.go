//go:build !linux

package supervisor

import "errors"

type pathWatcher struct{}

func newPathWatcher() (*pathWatcher, error) { return nil, errors.ErrUnsupported }

func (*pathWatcher) add(string) error        { return errors.ErrUnsupported }
func (*pathWatcher) remove(string)           {}
func (*pathWatcher) wait() ([]string, error) { return nil, errors.ErrUnsupported }
func (*pathWatcher) close() error            { return nil }
