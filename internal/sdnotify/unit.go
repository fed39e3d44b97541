package sdnotify

import "strings"

// UnitOf finds the unit in the text of /proc/PID/cgroup, and whether it is one of a
// user's manager; "" where the process runs in no service of systemd. A service may
// have control groups below its own.
func UnitOf(cgroup string) (unit string, user bool) {
	for line := range strings.Lines(cgroup) {
		// hierarchy:controllers:path (cgroups(7)); of version 1 the one named systemd counts.
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || fields[1] != "" && fields[1] != "name=systemd" {
			continue
		}
		found, inUser := "", false
		for part := range strings.SplitSeq(fields[2], "/") {
			if !strings.HasSuffix(part, ".service") {
				continue
			}
			inUser = inUser || strings.HasPrefix(found, "user@")
			found = part
		}
		if found != "" && !strings.HasPrefix(found, "user@") {
			return found, inUser
		}
	}
	return "", false
}

// JobOf finds the kind of job that is under way for a unit in what `systemctl
// list-jobs --plain --no-legend` prints, ID UNIT KIND STATE in each line: "stop",
// "restart", "start" and so on; "" for none.
func JobOf(jobs, unit string) string {
	for line := range strings.Lines(jobs) {
		if f := strings.Fields(line); len(f) >= 3 && f[1] == unit {
			return f[2]
		}
	}
	return ""
}

// Property finds a value in what `systemctl show` prints, NAME=VALUE in each line.
func Property(show, name string) string {
	for line := range strings.Lines(show) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			return value
		}
	}
	return ""
}

// ClosesWith reports whether a service that ends in order under such a job is not
// started again, so that systemd closes the descriptors that it keeps for it: restart
// is the unit's Restart= (systemd.service(5)), and counts where there is no job.
func ClosesWith(job, restart string) bool {
	switch job {
	case "":
		return !RestartsAfter(restart, "success")
	case "stop":
		return true
	}
	return false
}

// RestartsAfter reports whether systemd starts a service again that ended without a
// job of somebody: by its Restart= and $SERVICE_RESULT (systemd.service(5), and
// service_shall_restart in systemd 252).
func RestartsAfter(restart, result string) bool {
	switch restart {
	case "always":
		return true
	case "on-success":
		return result == "success"
	case "on-failure":
		return result != "success"
	case "on-abnormal":
		return result != "success" && result != "exit-code"
	case "on-abort":
		return result == "signal" || result == "core-dump"
	case "on-watchdog":
		return result == "watchdog"
	}
	return false
}
