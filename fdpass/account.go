package fdpass

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// lookupOwner is the user and group id of o, -1 where none is set.
func lookupOwner(o Options) (uid, gid int, err error) {
	if uid, err = lookupID("owner", "/etc/passwd", o.Owner); err != nil {
		return -1, -1, err
	}
	if gid, err = lookupID("group", "/etc/group", o.Group); err != nil {
		return -1, -1, err
	}
	return uid, gid, nil
}

// lookupID reads a number, or a name from passwd(5) or group(5), which both have
// the name first and the id third. Other sources (LDAP, DynamicUser) would need
// the C library: their users are given as numbers.
func lookupID(option, file, name string) (id int, err error) {
	if name == "" {
		return -1, nil
	}
	// chown(2) takes the highest id for "leave it".
	if n, err := strconv.ParseUint(name, 10, 32); err == nil && n < 1<<32-1 {
		return int(n), nil
	}
	f, err := os.Open(file)
	if err != nil {
		return -1, fmt.Errorf("%s %q: %w", option, name, err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	// A group with many members is one long line.
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Split(lines.Text(), ":")
		if len(fields) < 3 || fields[0] != name {
			continue
		}
		n, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			return -1, fmt.Errorf("%s %q: its id in %s: %w", option, name, file, err)
		}
		return int(n), nil
	}
	if err := lines.Err(); err != nil {
		return -1, fmt.Errorf("%s %q: read %s: %w", option, name, file, err)
	}
	return -1, fmt.Errorf("%s %q is not in %s: other directories are not asked, write its number", option, name, file)
}
