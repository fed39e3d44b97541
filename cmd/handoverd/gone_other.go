//go:build !linux

package main

import (
	"errors"
	"fmt"
	"runtime"
)

// watchGone is not supported here.
func watchGone(int) (func() error, error) {
	return nil, fmt.Errorf("--wait on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
