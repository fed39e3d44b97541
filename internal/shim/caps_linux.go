package shim

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// setCapabilities gives the program its ambient capabilities; with cut, and
// only then, they are all that is left (execve computes the new permitted set
// of a user who is not root from the ambient one, capabilities(7)).
func (c *child) setCapabilities(cut bool) *ExecError {
	if len(c.spec.AmbientCaps) == 0 {
		return nil
	}
	mask := capMask(c.spec.AmbientCaps)
	effective, permitted, inheritable := mask, mask, mask
	if !cut {
		var failure *ExecError
		if effective, permitted, inheritable, failure = getCaps(); failure != nil {
			return failure
		}
		inheritable |= mask
	}
	// Inheritable comes first: the kernel refuses to raise in the ambient set
	// what is not both permitted and inheritable.
	if failure := setCaps(effective, permitted, inheritable); failure != nil {
		return failure
	}
	for _, n := range c.spec.AmbientCaps {
		if failure := prctl("ambient", unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, n); failure != nil {
			failure.Detail = "capability " + strconv.Itoa(int(n))
			return failure
		}
	}
	return nil
}

func capMask(caps []uintptr) uint64 {
	var mask uint64
	for _, n := range caps {
		mask |= 1 << n
	}
	return mask
}

// setCaps acts on the calling thread, capset(2).
func setCaps(effective, permitted, inheritable uint64) *ExecError {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	for i := range data {
		shift := 32 * i
		data[i] = unix.CapUserData{
			Effective:   uint32(effective >> shift),
			Permitted:   uint32(permitted >> shift),
			Inheritable: uint32(inheritable >> shift),
		}
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return failed("capset", "", "", err)
	}
	return nil
}

func getCaps() (effective, permitted, inheritable uint64, failure *ExecError) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, 0, 0, failed("capget", "", "", err)
	}
	for i := range data {
		shift := 32 * i
		effective |= uint64(data[i].Effective) << shift
		permitted |= uint64(data[i].Permitted) << shift
		inheritable |= uint64(data[i].Inheritable) << shift
	}
	return effective, permitted, inheritable, nil
}
