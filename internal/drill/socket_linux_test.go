package drill_test

import (
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/drill"
)

// TestRefused: a port that is bound and does not listen refuses every connection, and nobody else can take it meanwhile.
func TestRefused(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	addr := "127.0.0.1:" + strconv.Itoa(sa.(*unix.SockaddrInet4).Port)
	for _, mode := range []drill.Mode{drill.ModeFresh, drill.ModeTCP, drill.ModeKeepAlive} {
		rep := run(t, drill.Load{Address: addr, Mode: mode, Clients: 3, Requests: 30})
		if rep.Sent != 30 || rep.Failures[drill.KindRefused] != 30 || rep.Failed() != 30 {
			t.Errorf("want 30 refused: %s", rep.String())
		}
	}
	rep := run(t, drill.Load{Network: "unix", Address: tempSocket(t), Mode: drill.ModeFresh, Requests: 30})
	if rep.Failures[drill.KindRefused] != 30 || rep.Failed() != 30 {
		t.Errorf("unix: want 30 refused: %s", rep.String())
	}
}

// TestFullBacklog: a full accept queue of a UNIX socket is waited for, as blocking clients do, and is no failure.
func TestFullBacklog(t *testing.T) {
	path := tempSocket(t)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	r, err := drill.Start(t.Context(), drill.Load{Network: "unix", Address: path, Mode: drill.ModeTCP, Clients: 8, Requests: 8})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.WaitOK(t.Context(), 2); err != nil { // backlog + 1
		t.Error(err)
	}
	for range 8 {
		c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(c)
	}
	<-r.Done()
	if rep := r.Stop(); rep.OK != 8 || rep.Failed() != 0 {
		t.Error(rep.String())
	}
}
