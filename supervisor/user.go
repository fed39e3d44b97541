package supervisor

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// accountFiles are the files of passwd(5) and group(5). They are parsed
// here because the binary is static: without cgo there is no NSS, and with
// it the answer would depend on how the binary was built. Names of LDAP or
// of systemd's DynamicUser are not in them; numbers work for those.
type accountFiles struct {
	passwd, group string
}

var systemAccounts = accountFiles{passwd: "/etc/passwd", group: "/etc/group"}

// account is whom a generation runs as.
type account struct {
	// Name, Home and Shell are "" where no line of passwd(5) says them.
	Name, Home, Shell string
	UID, GID          uint32
	// Groups are for setgroups(2): GID first, then those that group(5)
	// lists the user in.
	Groups []uint32
}

// errNoAccount is what a lookup of a name or number that is in no file
// wraps.
var errNoAccount = errors.New("not found")

// resolve returns the account of a user and group, each a name, a number
// or "", and nil when both are "". The group is the user's own when it is
// "". A user of "" is the one handoverd runs as.
func (f accountFiles) resolve(user, group string) (*account, error) {
	if user == "" && group == "" {
		return nil, nil
	}
	a := &account{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	if user != "" {
		found, err := f.user(user)
		switch {
		case err == nil:
			a = found
		case errors.Is(err, errNoAccount) && group != "" && isNumber(user):
			if a.UID, err = parseID(user); err != nil {
				return nil, err
			}
		case errors.Is(err, errNoAccount) && isNumber(user):
			return nil, fmt.Errorf("user %s is not in %s: name a group as well", user, f.passwd)
		default:
			return nil, err
		}
	}
	if group != "" {
		gid, err := f.gid(group)
		if err != nil {
			return nil, err
		}
		a.GID = gid
	}
	a.Groups = []uint32{a.GID}
	if a.Name == "" {
		return a, nil
	}
	err := scanColons(f.group, 4, func(field []string) bool {
		gid, err := parseID(field[2])
		if err == nil && !slices.Contains(a.Groups, gid) && slices.Contains(strings.Split(field[3], ","), a.Name) {
			a.Groups = append(a.Groups, gid)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// user finds a line of passwd(5) by name, else by number.
func (f accountFiles) user(user string) (*account, error) {
	var byName, byNumber *account
	err := scanColons(f.passwd, 7, func(field []string) bool {
		uid, uidErr := parseID(field[2])
		gid, gidErr := parseID(field[3])
		if uidErr != nil || gidErr != nil {
			return true
		}
		a := &account{Name: field[0], UID: uid, GID: gid, Home: field[5], Shell: field[6]}
		if field[0] == user {
			byName = a
			return false
		}
		if field[2] == user && byNumber == nil {
			byNumber = a
		}
		return true
	})
	switch {
	case err != nil:
		return nil, err
	case byName != nil:
		return byName, nil
	case byNumber != nil:
		return byNumber, nil
	}
	return nil, fmt.Errorf("user %q: %w in %s%s", user, errNoAccount, f.passwd, numberHint(user))
}

// uid of a name or number; a number need not be in the file.
func (f accountFiles) uid(user string) (uint32, error) {
	a, err := f.user(user)
	if err == nil {
		return a.UID, nil
	}
	if isNumber(user) {
		return parseID(user)
	}
	return 0, err
}

// gid of a name or number; a number need not be in the file.
func (f accountFiles) gid(group string) (uint32, error) {
	var gid uint32
	found := false
	err := scanColons(f.group, 3, func(field []string) bool {
		n, err := parseID(field[2])
		if err == nil && field[0] == group {
			gid, found = n, true
		}
		return !found
	})
	switch {
	case found:
		return gid, nil
	case isNumber(group):
		return parseID(group)
	case err != nil:
		return 0, err
	}
	return 0, fmt.Errorf("group %q: %w in %s%s", group, errNoAccount, f.group, numberHint(group))
}

func numberHint(name string) string {
	if isNumber(name) {
		return ""
	}
	return " (only this file is read; others' accounts by number)"
}

func isNumber(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// parseID refuses 4294967295, which setresuid(2) reads as "leave as it is".
func parseID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n == 1<<32-1 {
		return 0, fmt.Errorf("%q is not the number of a user or group", s)
	}
	return uint32(n), nil
}

// scanColons calls line with the fields of each line that has at least
// fields of them, until it returns false. Lines of NIS ("+name") have no
// number and fall out at the caller.
func scanColons(path string, fields int, line func([]string) bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20) // a group may list thousands of members
	for in.Scan() {
		field := strings.Split(in.Text(), ":")
		if len(field) < fields || strings.HasPrefix(field[0], "#") {
			continue
		}
		if !line(field) {
			return nil
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
