package supervisor

import (
	"fmt"
	"os"
	"strings"

	"github.com/handoverd/handover/internal/proc"
)

// Sources say where the sockets of a service would come from if handoverd were killed
// here and now and started again: each is "" if it would work, and else why not.
type Sources struct {
	// Store is the descriptor store of the service manager that has started handoverd.
	Store  string `json:"fd_store,omitempty"`
	Keeper string `json:"keeper,omitempty"`
	// Program is a living generation, by pidfd_getfd(2). One that has given up its
	// user by itself can be asked with CAP_SYS_PTRACE only.
	Program string `json:"program,omitempty"`
	// Helper is a process of the program's user that asks in handoverd's place.
	Helper string `json:"helper,omitempty"`
}

// String is for people: what would work, in the order in which it is tried, or why
// nothing would.
func (s *Sources) String() string {
	var works, not []string
	for _, c := range []struct{ name, fault string }{
		{"systemd's fd store", s.Store}, {"the keeper", s.Keeper}, {"the program (pidfd_getfd)", s.Program}, {"a helper of its user", s.Helper},
	} {
		if c.fault == "" {
			works = append(works, c.name)
		} else {
			not = append(not, fmt.Sprintf("not %s: %s", c.name, c.fault))
		}
	}
	if len(works) == 0 {
		return "nowhere: " + strings.Join(not, "; ")
	}
	return strings.Join(works, ", else ")
}

// sourcesFor looks at the rules of this place for programs of a user.
func sourcesFor(uid int, noKeeper string) Sources {
	s := Sources{Store: "only in a service of systemd", Keeper: noKeeper, Program: proc.FetchRefused(), Helper: proc.FetchRefused()}
	if s.Program == "" {
		s.Program = proc.Blindness(uid)
	}
	if s.Helper == "" {
		s.Helper = proc.HelperBlindness(uid)
	}
	return s
}

// sourcesOf is sourcesFor a service that runs. The rules do not change under it, so
// they are looked at once for each user.
func (l *loop) sourcesOf(svc *Service) *Sources {
	if svc.Spec == nil {
		return nil
	}
	uid := os.Geteuid()
	if svc.Spec.UID != nil {
		uid = int(*svc.Spec.UID)
	}
	s, known := l.rules[uid]
	if !known {
		s = sourcesFor(uid, "")
		l.rules[uid] = s
	}
	s.Store = l.store.off
	if l.store.fault != "" {
		s.Store = l.store.fault
	}
	switch k := &l.keep; {
	case k.off != "":
		s.Keeper = k.off
	case k.client == nil:
		s.Keeper = "there is none at the moment"
	case k.fault != "":
		s.Keeper = k.fault
	}
	return &s
}
