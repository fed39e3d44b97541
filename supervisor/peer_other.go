//go:build !linux

package supervisor

import "errors"

// peerUID fails: nobody is served whose user is not known.
func peerUID(int) (int, error) { return -1, errors.ErrUnsupported }

// acceptQueue fails: the length is not known.
func acceptQueue(int) (int, error) { return 0, errors.ErrUnsupported }

func dropConnections(int) error { return errors.ErrUnsupported }
func takeConnections(int) error { return errors.ErrUnsupported }
