package shim

import (
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// becomeUser sets supplementary groups, group and user, in that order since
// each step takes away the right to the one before, then the capabilities. An
// id that is already so is not set: without privileges, or where a user
// namespace maps a single id, the call would fail for nothing.
func (c *child) becomeUser() *ExecError {
	ruid, euid, suid := unix.Getresuid()
	rgid, egid, sgid := unix.Getresgid()
	uid, gid := euid, egid
	if c.spec.UID != nil {
		uid = int(*c.spec.UID)
	}
	if c.spec.GID != nil {
		gid = int(*c.spec.GID)
	}
	newUser := ruid != uid || euid != uid || suid != uid
	newGroup := rgid != gid || egid != gid || sgid != gid
	if newUser && c.spec.UID != nil && c.spec.GID == nil {
		return failed("setresgid", "", "a user without a group would keep handoverd's", unix.EINVAL)
	}
	newUser = newUser && c.spec.UID != nil
	newGroup = newGroup && c.spec.GID != nil
	if newUser || c.spec.SetGroups {
		if failure := setGroups(c.spec.Groups, gid, euid); failure != nil {
			return failure
		}
	}
	if newGroup {
		if errno := setID(sysSetresgid, gid); errno != 0 {
			return idFailed("setresgid", gid, euid, errno)
		}
	}
	if newUser {
		if failure := c.setUser(uid, gid, euid); failure != nil {
			return failure
		}
	}
	return c.setCapabilities(newUser && uid != 0)
}

func (c *child) setUser(uid, gid, euid int) *ExecError {
	if len(c.spec.AmbientCaps) > 0 {
		if failure := prctl("ambient", unix.PR_SET_KEEPCAPS, 1, 0); failure != nil {
			return failure
		}
	}
	if errno := setID(sysSetresuid, uid); errno != 0 {
		return idFailed("setresuid", uid, euid, errno)
	}
	if uid == 0 {
		return nil
	}
	// The permitted set is cut and the effective one emptied first, so that
	// the proof below holds whatever securebits(7) say; a program that is
	// given CAP_SETUID as an ambient capability can get back, by request.
	if failure := setCaps(0, capMask(c.spec.AmbientCaps), 0); failure != nil {
		return failure
	}
	return verifyUser(uid, gid)
}

// verifyUser proves that the change happened and that root is out of reach.
func verifyUser(uid, gid int) *ExecError {
	ruid, euid, suid := unix.Getresuid()
	rgid, egid, sgid := unix.Getresgid()
	if ruid != uid || euid != uid || suid != uid || rgid != gid || egid != gid || sgid != gid {
		return failed("verify", "", "ids are not those that were set", unix.EPERM)
	}
	if setID(sysSetresuid, 0) == 0 {
		return failed("verify", "", "user 0 can be regained", unix.EPERM)
	}
	if gid != 0 && setID(sysSetresgid, 0) == 0 {
		return failed("verify", "", "group 0 can be regained", unix.EPERM)
	}
	return nil
}

func setGroups(groups []uint32, gid, euid int) *ExecError {
	if sameGroups(groups, gid) {
		return nil
	}
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	_, _, errno := unix.RawSyscall(sysSetgroups, uintptr(len(groups)), uintptr(first), 0)
	if errno != 0 {
		return failed("setgroups", "", privilegeHint(euid, errno), errno)
	}
	return nil
}

// sameGroups leaves the primary group out of the comparison: whether it is
// listed among the supplementary ones makes no difference to what it permits.
func sameGroups(want []uint32, gid int) bool {
	have, err := unix.Getgroups()
	if err != nil {
		return false
	}
	set := []int{gid}
	for _, g := range want {
		set = append(set, int(g))
	}
	have = append(have, gid)
	slices.Sort(set)
	slices.Sort(have)
	return slices.Equal(slices.Compact(set), slices.Compact(have))
}

// setID is setresuid or setresgid with one id three times, for this thread.
func setID(trap uintptr, id int) unix.Errno {
	n := uintptr(uint32(id))
	_, _, errno := unix.RawSyscall(trap, n, n, n)
	return errno
}

func idFailed(step string, id, euid int, errno unix.Errno) *ExecError {
	detail := "to " + strconv.Itoa(id)
	if hint := privilegeHint(euid, errno); hint != "" {
		detail += " " + hint
	}
	return failed(step, "", detail, errno)
}

func privilegeHint(euid int, errno unix.Errno) string {
	switch {
	case errno == unix.EPERM && euid != 0:
		return "by user " + strconv.Itoa(euid) + ": only root changes user and groups"
	case errno == unix.EINVAL:
		return "(not mapped in this user namespace?)"
	}
	return ""
}
