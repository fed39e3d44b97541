//go:build !linux

package signals

import "errors"

// Ignore is not supported here.
func Ignore() (restore func(), err error) { return nil, errors.ErrUnsupported }

// Default is not supported here.
func Default() (restore func(), err error) { return nil, errors.ErrUnsupported }
