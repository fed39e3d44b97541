package drill

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// Errors that no server on loopback can be made to give at will.
func TestConnectFailure(t *testing.T) {
	tests := []struct {
		errno syscall.Errno
		kind  Kind
		fault string
	}{
		{syscall.ECONNREFUSED, KindRefused, ""},
		{syscall.ENOENT, KindRefused, ""},
		{syscall.ECONNRESET, KindResetConnect, ""},
		{syscall.ETIMEDOUT, KindTimeout, ""},
		{syscall.EADDRNOTAVAIL, KindOther, "EADDRNOTAVAIL"},
		{syscall.EMFILE, KindOther, "EMFILE"},
		{syscall.ENETUNREACH, KindOther, ""},
	}
	for _, tt := range tests {
		err := fmt.Errorf("dial: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", tt.errno)})
		if f := connectFailure(err); f.kind != tt.kind || f.fault != tt.fault {
			t.Errorf("%v: %s %q, want %s %q", tt.errno, f.kind, f.fault, tt.kind, tt.fault)
		}
	}
}

func TestFaultsAreApart(t *testing.T) {
	b := newBook()
	start := b.begin(b.begin(time.Now()))
	b.end(outcome{start: start, due: start, end: start, fail: &failure{fault: "EMFILE"}})
	b.end(outcome{start: start, due: start, end: start})
	if b.sent != 1 || b.ok != 1 || len(b.failures) != 0 || b.faults["EMFILE"] != 1 || b.inFlight != 0 {
		t.Errorf("sent %d, ok %d, failures %v, faults %v, in flight %d", b.sent, b.ok, b.failures, b.faults, b.inFlight)
	}
}
