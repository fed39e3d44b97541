//go:build !linux

package handover

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"
)

// Elsewhere a program binds for itself; what a supervisor passed is refused.
var errUnsupported = fmt.Errorf("inherited descriptors: %w on %s", errors.ErrUnsupported, runtime.GOOS)

var started = time.Now()

func bootNow() time.Duration { return time.Since(started) }

func pidfdID(int) (id uint64, known bool) { return 0, false }

func claim(int) error { return errUnsupported }

func closeFD(int) {} // never has one: claim refuses them all

func inspect(int, string, bool) (net.Addr, error) { return nil, errUnsupported }
