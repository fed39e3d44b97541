//go:build !linux

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

// listener is not known here.
type listener struct{ pid int }

func listenerOf(context.Context, string) (*listener, error) {
	return nil, fmt.Errorf("the process of a control socket on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func (*listener) kill() error { return errors.ErrUnsupported }
func (*listener) wait() error { return errors.ErrUnsupported }
func (*listener) close()      {}
