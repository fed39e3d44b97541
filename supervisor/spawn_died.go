package supervisor

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/shim"
)

// headBytes is how much of the begin of a generation's output is read for shimDied.
const headBytes = 4 << 10

// runtimeErrno is how Go's runtime writes an errno, as a number (netpoll_epoll.go and os_linux.go of its source):
// "runtime: epollcreate failed with 24", "runtime: failed to create new OS thread (have 2 already; errno=11)".
var runtimeErrno = regexp.MustCompile(`^runtime: .*(?:failed with|errno=) ?([0-9]+)\)?$`)

// shimDied says why a shim ended before it could execute the program: how it ended, and what its own Go runtime wrote
// before that, where it was the runtime, which ends a process for which it cannot have an epoll set or a thread. output
// is the begin of what it wrote; a stack follows there.
func shimDied(how string, output []string) error {
	err := fmt.Errorf("%w: %s", shim.ErrDied, how)
	for _, line := range output {
		if n := runtimeErrno.FindStringSubmatch(line); n != nil {
			errno, _ := strconv.Atoi(n[1]) // digits, and 0 for more of them than any errno has
			return fmt.Errorf("%w: %s: %w", err, line, unix.Errno(errno))
		}
	}
	for _, line := range output {
		if strings.HasPrefix(line, "fatal error: ") {
			return fmt.Errorf("%w: %w", err, errors.New(line))
		}
	}
	return err
}
