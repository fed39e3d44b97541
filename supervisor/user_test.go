package supervisor

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAccounts(t *testing.T) {
	self := account{UID: uint32(os.Geteuid()), GID: 33, Groups: []uint32{33}}
	haproxy := account{
		Name: "haproxy", Home: "/var/lib/haproxy", Shell: "/usr/sbin/nologin", UID: 105, GID: 110,
		Groups: []uint32{110, 120, 121},
	}
	moved := haproxy
	moved.GID, moved.Groups = 120, []uint32{120, 121}
	for _, tt := range []struct {
		user, group string
		want        *account
	}{
		{"", "", nil},
		{"", "www", &self},
		{"haproxy", "", &haproxy},
		{"105", "", &haproxy},
		{"haproxy", "tls", &moved},
		{"haproxy", "120", &moved},
		{"4711", "4712", &account{UID: 4711, GID: 4712, Groups: []uint32{4712}}},
		// A name of digits is a name first, as in chown(1).
		{"1234", "", &account{Name: "1234", Home: "/home/odd", Shell: "/bin/sh", UID: 77, GID: 78, Groups: []uint32{78}}},
	} {
		got, err := testAccounts.resolve(tt.user, tt.group)
		if err != nil {
			t.Errorf("%q:%q: %v", tt.user, tt.group, err)
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%q:%q (-want +got):\n%s", tt.user, tt.group, d)
		}
	}
}

func TestAccountErrors(t *testing.T) {
	for _, tt := range []struct{ user, group string }{
		{"nobody", ""},
		{"nisuser", ""},
		{"+nisuser", ""},
		{"broken", ""},
		{"short", ""},
		{"# comment", ""},
		{"haproxy", "nogroup"},
		{"4711", ""},
		{"4294967295", "1"},
		{"99999999999", "1"},
		{"root", "4294967295"},
	} {
		if a, err := testAccounts.resolve(tt.user, tt.group); err == nil {
			t.Errorf("%q:%q is %+v", tt.user, tt.group, a)
		}
	}
	if _, err := testAccounts.resolve("nobody", ""); !errors.Is(err, errNoAccount) {
		t.Errorf("%v is not errNoAccount", err)
	}
	missing := accountFiles{passwd: "testdata/none", group: "testdata/none"}
	if _, err := missing.resolve("root", ""); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no passwd: %v", err)
	}
	if gid, err := missing.gid("12"); err != nil || gid != 12 {
		t.Errorf("a number needs no file: %d, %v", gid, err)
	}
}
