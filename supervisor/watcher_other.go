//go:build !linux

package supervisor

import (
	"errors"
	"os"
)

type watcher struct{}

func newWatcher() (*watcher, error)             { return nil, errors.ErrUnsupported }
func (*watcher) add(string, at) error           { return errors.ErrUnsupported }
func (*watcher) remove(at)                      {}
func (*watcher) wait() ([]at, error)            { return nil, os.ErrClosed }
func (*watcher) close() error                   { return nil }
func punch(*os.File, int64, int64) error        { return errors.ErrUnsupported }
func rlimitNumber(string) (number int, ok bool) { return 0, false }
