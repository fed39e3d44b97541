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

// What may be a firewall of the client's over TCP is the server's mistake on a UNIX socket.
func TestPermission(t *testing.T) {
	for network, fault := range map[string]string{"unix": "", "tcp4": "EACCES"} {
		d := dialer{target: target{network: network}}
		if f := d.failure(os.NewSyscallError("connect", syscall.EACCES)); f.kind != KindOther || f.fault != fault {
			t.Errorf("%s: %s %q, want the fault %q", network, f.kind, f.fault, fault)
		}
	}
}

// A server may tell another generation with each answer, for hours.
func TestGenerationsAreBounded(t *testing.T) {
	b := newBook()
	for i := range 2 * maxGenerations {
		start := b.begin(time.Time{})
		b.end(outcome{start: start, due: start, end: start, generation: i + 1})
	}
	if b.ok != 2*maxGenerations || len(b.generations) != maxGenerations || len(b.spans) != maxGenerations {
		t.Errorf("ok %d, %d generations, %d spans", b.ok, len(b.generations), len(b.spans))
	}
}

func TestPastDatagramsAreBounded(t *testing.T) {
	d := &datagrams{run: &Run{}, conn: new(net.UDPConn), pending: map[uint64]*datagram{}, past: map[uint64]bool{}}
	for i := range uint64(2 * maxPast) {
		d.settle(&datagram{number: i}, true)
	}
	if len(d.past) != maxPast || !d.past[2*maxPast-1] || d.past[0] {
		t.Errorf("%d datagrams are known, want the latest %d", len(d.past), maxPast)
	}
}

func TestFaultsAreApart(t *testing.T) {
	b := newBook()
	w := &Window{begin: time.Now(), failures: map[Kind]int{}, generations: map[int]int{}}
	b.recent = []*Window{w}
	start := b.begin(b.begin(time.Now()))
	b.end(outcome{start: start, due: start, end: start, fail: &failure{fault: "EMFILE"}})
	b.end(outcome{start: start, due: start, end: start})
	if w.requests != 1 || w.ok != 1 {
		t.Errorf("the window has %d requests, %d answered", w.requests, w.ok)
	}
	if b.sent != 1 || b.ok != 1 || len(b.failures) != 0 || b.faults["EMFILE"] != 1 || b.inFlight != 0 {
		t.Errorf("sent %d, ok %d, failures %v, faults %v, in flight %d", b.sent, b.ok, b.failures, b.faults, b.inFlight)
	}
}
