package shim

import (
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const nobody, daemon = 65534, 1

func TestUserGroupAndGroupsAreDropped(t *testing.T) {
	s := held()
	s.UID, s.GID, s.Groups = new(uint32(nobody)), new(uint32(daemon)), []uint32{7, 8}
	p := runHeld(t, s, nil)
	got := map[string]string{}
	for _, f := range []string{"Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapAmb"} {
		got[f] = p.status(f)
	}
	none := strings.Repeat("0", 16)
	want := map[string]string{
		"Uid": "65534 65534 65534 65534", "Gid": "1 1 1 1", "Groups": "7 8",
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapAmb": none,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestADropTakesRootsGroupsEvenWhenNoneAreNamed(t *testing.T) {
	if err := syscall.Setgroups([]int{0, 4}); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setgroups([]int{0}) }()
	s := held()
	s.UID, s.GID = new(uint32(nobody)), new(uint32(nobody))
	if got := runHeld(t, s, nil).status("Groups"); got != "" {
		t.Errorf("groups %q", got)
	}
	s = held() // no change of user: they stay
	if got := runHeld(t, s, nil).status("Groups"); got != "0 4" {
		t.Errorf("groups %q, want those of the parent", got)
	}
	s.SetGroups, s.Groups = true, []uint32{9}
	if got := runHeld(t, s, nil).status("Groups"); got != "9" {
		t.Errorf("groups %q, want 9", got)
	}
}

func TestTheProgramCannotGetBack(t *testing.T) {
	for _, nnp := range []bool{false, true} {
		s := helper("regain")
		s.UID, s.GID, s.NoNewPrivs = new(uint32(nobody)), new(uint32(nobody)), nnp
		if got := run(t, s, nil).line(); got != "uid 65534 gid 65534" {
			t.Errorf("%q", got)
		}
	}
}

func TestAmbientCapability(t *testing.T) {
	for _, user := range []bool{true, false} {
		s := held()
		s.AmbientCaps, s.NoNewPrivs = []uintptr{unix.CAP_NET_BIND_SERVICE}, true
		fields := []string{"CapAmb"}
		if user {
			s.UID, s.GID = new(uint32(nobody)), new(uint32(nobody))
			fields = append(fields, "CapInh", "CapPrm", "CapEff")
		}
		p := runHeld(t, s, nil)
		for _, f := range fields {
			if got := p.status(f); got != "0000000000000400" {
				t.Errorf("dropped %v: %s %s", user, f, got)
			}
		}
	}
}

// The test binary itself, started as a user, starts programs: as another user
// (EPERM, saying so) and as itself (nothing to change, nothing refused).
func TestWithoutRoot(t *testing.T) {
	s := helper("nonroot")
	s.UID, s.GID = new(uint32(nobody)), new(uint32(nobody))
	p := run(t, s, nil)
	got := p.line()
	if !strings.Contains(got, "only root changes user and groups") || !strings.Contains(got, "operation not permitted") {
		t.Errorf("%q", got)
	}
	if got := p.line(); got != "<nil>" {
		t.Errorf("as itself: %q", got)
	}
}
