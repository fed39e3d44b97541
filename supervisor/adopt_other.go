//go:build !linux

package supervisor

import "errors"

const seekData = 3

// FetchHelper is not supported here.
func FetchHelper([]string) error { return errors.ErrUnsupported }

func (l *loop) fetchAs(*child, *Spec, []uint64) (map[uint64]int, error) {
	return nil, errors.ErrUnsupported
}

func fetchFD(int, int) (int, error) { return -1, errors.ErrUnsupported }
