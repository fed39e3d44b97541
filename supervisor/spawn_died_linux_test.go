package supervisor

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/shim"
)

// What Go's runtime says before it ends a shim is in the reason, with the errno in words.
func TestShimDied(t *testing.T) {
	const died = "shim: it ended before it could execute the program: "
	for _, tt := range []struct {
		how    string
		output []string
		want   string
		errno  error
	}{
		{"killed by SIGKILL", nil, "killed by SIGKILL", nil},
		{
			"exit status 2",
			[]string{"runtime: epollcreate failed with 24", "fatal error: runtime: netpollinit failed", "", "goroutine 1 …"},
			"exit status 2: runtime: epollcreate failed with 24: too many open files", unix.EMFILE,
		},
		{
			"exit status 2",
			[]string{"runtime: failed to create new OS thread (have 2 already; errno=11)", "fatal error: newosproc"},
			"exit status 2: runtime: failed to create new OS thread (have 2 already; errno=11): resource temporarily unavailable", unix.EAGAIN,
		},
		{"exit status 2", []string{"fatal error: runtime: cannot allocate memory", "x"}, "exit status 2: fatal error: runtime: cannot allocate memory", nil},
		{"exit status 2", []string{"panic: no errno=24 of the runtime's"}, "exit status 2", nil},
	} {
		err := shimDied(tt.how, tt.output)
		if err.Error() != died+tt.want || !errors.Is(err, shim.ErrDied) || tt.errno != nil && !errors.Is(err, tt.errno) {
			t.Errorf("%q: %v, want %s%s", tt.output, err, died, tt.want)
		}
	}
}
