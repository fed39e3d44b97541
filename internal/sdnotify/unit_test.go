package sdnotify

import (
	"strings"
	"testing"
)

func TestFDName(t *testing.T) {
	for _, row := range []struct{ text, name string }{
		{"socket/tcp|127.0.0.1|80", "socket/tcp|127.0.0.1|80"},
		{"socket/tcp|::|80|dual", "socket/tcp|%3A%3A|80|dual"},
		{"socket/unix|/run/a b:c%\xff", "socket/unix|/run/a%20b%3Ac%25%FF"},
	} {
		if got := FDName(row.text); got != row.name {
			t.Errorf("FDName(%q) = %q, want %q", row.text, got, row.name)
		}
	}
	long := "socket/" + strings.Repeat("ü", 53) // of 113 bytes, 325 as %XX
	if name := FDName(long); len(name) > maxName || name == FDName(long+"x") || name != FDName(long) {
		t.Errorf("the name of a long text is %q", name)
	}
	if text, ok := FDText(FDName(long)); ok {
		t.Errorf("a digest stands for %q", text)
	}
}

// FuzzFDName: every text has a name that systemd takes, and another one than every other.
func FuzzFDName(f *testing.F) {
	for _, s := range []string{"", "socket/tcp|0.0.0.0|80", "a:b%\x00\xff", "%3A", "%3a", "%sha256-00", strings.Repeat("ü", 100)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		name := FDName(s)
		if len(name) > maxName {
			t.Fatalf("FDName(%q) has %d bytes", s, len(name))
		}
		for _, c := range []byte(name) {
			if c < ' ' || c >= 0x7f || c == ':' {
				t.Fatalf("FDName(%q) = %q", s, name)
			}
		}
		text, ok := FDText(name)
		if ok && text != s || !ok && !strings.HasPrefix(name, digestMark) {
			t.Fatalf("FDText(FDName(%q)) = %q, %v", s, text, ok)
		}
		if text, ok := FDText(s); ok && FDName(text) != s { // from anybody
			t.Fatalf("FDText(%q) = %q, whose name is %q", s, text, FDName(text))
		}
	})
}

func TestUnitOf(t *testing.T) {
	for _, row := range []struct {
		cgroup, unit string
		user         bool
	}{
		{"0::/system.slice/handoverd.service\n", "handoverd.service", false},
		{"0::/system.slice/system-hd.slice/hd@web.service/sub\n", "hd@web.service", false},
		{"0::/user.slice/user-1000.slice/user@1000.service/app.slice/hd.service\n", "hd.service", true},
		{"0::/user.slice/user-1000.slice/user@1000.service/init.scope\n", "", false},
		{"0::/user.slice/user-0.slice/session-3.scope\n", "", false},
		{"12:pids:/system.slice/other.service\n1:name=systemd:/system.slice/handoverd.service\n0::/\n", "handoverd.service", false},
		{"0::/\n", "", false},
		{"nonsense", "", false},
		{"", "", false},
	} {
		if unit, user := UnitOf(row.cgroup); unit != row.unit || user != row.user {
			t.Errorf("UnitOf(%q) = %q, %v, want %q, %v", row.cgroup, unit, user, row.unit, row.user)
		}
	}
}

func TestJobs(t *testing.T) {
	jobs := "  81 handoverd.service  restart running\n 9 a.service stop waiting\nnonsense\n"
	for unit, want := range map[string]string{"handoverd.service": "restart", "a.service": "stop", "b.service": "", "nonsense": ""} {
		if got := JobOf(jobs, unit); got != want {
			t.Errorf("JobOf(%q) = %q, want %q", unit, got, want)
		}
	}
	show := "Restart=on-failure\nFileDescriptorStoreMax=12\n"
	for name, want := range map[string]string{"Restart": "on-failure", "FileDescriptorStoreMax": "12", "Rest": "", "Other": ""} {
		if got := Property(show, name); got != want {
			t.Errorf("Property(%q) = %q, want %q", name, got, want)
		}
	}
	for _, row := range []struct {
		job, restart string
		closes       bool
	}{
		{"stop", "always", true},
		{"restart", "no", false},
		{"start", "no", false},
		{"try-restart", "no", false},
		{"", "no", true},
		{"", "on-failure", true},
		{"", "always", false},
		{"", "on-success", false},
		{"", "", true},
	} {
		if got := ClosesWith(row.job, row.restart); got != row.closes {
			t.Errorf("ClosesWith(%q, %q) = %v", row.job, row.restart, got)
		}
	}
}

func TestRestartsAfter(t *testing.T) {
	// The table of Restart= in systemd.service(5).
	results := []string{"success", "exit-code", "signal", "core-dump", "timeout", "watchdog", "oom-kill"}
	for restart, want := range map[string]string{
		"no": "-------", "always": "+++++++", "on-success": "+------", "on-failure": "-++++++",
		"on-abnormal": "--+++++", "on-abort": "--++---", "on-watchdog": "-----+-", "": "-------",
	} {
		for i, result := range results {
			if got := RestartsAfter(restart, result); got != (want[i] == '+') {
				t.Errorf("RestartsAfter(%q, %q) = %v", restart, result, got)
			}
		}
	}
}
