package handover

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOptions(t *testing.T) {
	var o Options
	if err := o.setDefaults(); err != nil {
		t.Fatal(err)
	}
	got := []time.Duration{o.UpgradeTimeout, o.DrainTimeout, o.StopTimeout}
	if diff := cmp.Diff([]time.Duration{30 * time.Second, 15 * time.Minute, 25 * time.Second}, got); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	for name, o := range map[string]Options{
		"UpgradeTimeout": {UpgradeTimeout: -1}, "DrainTimeout": {DrainTimeout: -1}, "StopTimeout": {StopTimeout: -1},
	} {
		if c, err := Standalone(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Standalone with a negative %s: %v, %v", name, c, err)
		}
	}
}

func TestNextGeneration(t *testing.T) {
	err := withNextGeneration(7, func() error {
		env, err := parseEnviron(os.Environ(), os.Getpid())
		if env.next != 7 {
			t.Errorf("the next process reads %d, want 7", env.next)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := os.LookupEnv(envSelf); ok {
		t.Errorf("%s=%s is left behind", envSelf, v)
	}
	for _, bad := range []string{"", "0", "-1", "x", "99999999999999999999"} {
		if _, err := parseEnviron([]string{envSelf + "=" + bad}, 1); err == nil || !strings.Contains(err.Error(), envSelf) {
			t.Errorf("%s=%s: %v, want an error that names it", envSelf, bad, err)
		}
	}
}
