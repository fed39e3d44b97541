//go:build linux

package handover_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestUnits: systemd-analyze has nothing to say about the units that are shipped. What they do is tested by make systemd.
func TestUnits(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs real programs; it runs without -short")
	}
	t.Parallel()
	dir := t.TempDir()
	program := Program(t, handoverdProgram)
	service := rewrite(t, unitFile(t, "handoverd.service"), "=/usr/bin/handoverd ", "="+program+" ")
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("handoverd.service", service)
	write("handoverd.socket", unitFile(t, "handoverd.socket"))
	if text := verify(t, dir, "handoverd.service", "handoverd.socket"); text != "" {
		t.Errorf("systemd-analyze verify:\n%s", text)
	}

	// What this systemd is too old for, it says; and nothing else.
	write("handoverd.service.d/notify-reload.conf", unitFile(t, "notify-reload.conf"))
	version, err := exec.CommandContext(limited(t), "systemd-analyze", "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	number := regexp.MustCompile(`^systemd (\d+)`).FindSubmatch(version)
	n, err := strconv.Atoi(string(number[1]))
	if err != nil {
		t.Fatal(err)
	}
	text := verify(t, dir, "handoverd.service")
	if n < 253 {
		text = strings.Replace(text, "Failed to parse service type, ignoring: notify-reload", "", 1)
	}
	if n < 254 {
		text = strings.Replace(text, "Unknown key 'FileDescriptorStorePreserve' in section [Service], ignoring.", "", 1)
	}
	if left := regexp.MustCompile(`(?m)^.*notify-reload\.conf:\d+: $\n?`).ReplaceAllString(text, ""); left != "" {
		t.Errorf("systemd-analyze verify of systemd %d, with notify-reload.conf:\n%s", n, text)
	}
}

func unitFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("examples/systemd", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func verify(t *testing.T, dir string, units ...string) string {
	t.Helper()
	for i := range units {
		units[i] = filepath.Join(dir, units[i])
	}
	cmd := exec.CommandContext(limited(t), "systemd-analyze", append([]string{"verify", "--man=no"}, units...)...)
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(text)
}
