//go:build !linux

package fdleak

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
)

func table() (map[int]descriptor, error) {
	return nil, fmt.Errorf("descriptor table on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// unavailable logs: elsewhere than on Linux there is nothing to compare.
func unavailable(t testing.TB, err error) {
	t.Helper()
	t.Logf("fdleak: %v", err)
}
