package proc

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// pair is a connection to ln: its client's and its server's end.
func pair(t *testing.T, ln net.Listener) (client, server net.Conn) {
	t.Helper()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	server, err = ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return client, server
}

func portOf(ln net.Listener) uint16 { return netip.MustParseAddrPort(ln.Addr().String()).Port() }

// only is the one connection of the listener that has this client.
func only(t *testing.T, ln net.Listener, client net.Conn) Connection {
	t.Helper()
	all, err := Connections([]uint16{portOf(ln)})
	if err != nil {
		t.Fatal(err)
	}
	remote := netip.MustParseAddrPort(client.LocalAddr().String())
	for _, c := range all {
		if c.Remote == remote {
			return c
		}
	}
	t.Fatalf("no connection of %v in %+v", remote, all)
	return Connection{}
}

func TestConnections(t *testing.T) {
	for _, network := range []string{"tcp4", "tcp"} { // 127.0.0.1, and a dual-stack socket that gets IPv4
		t.Run(network, func(t *testing.T) {
			address := "127.0.0.1:0"
			if network == "tcp" {
				address = ":0"
			}
			ln, err := net.Listen(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = ln.Close() }()
			before, err := PassiveOpens()
			if err != nil {
				t.Fatal(err)
			}
			waiting, err := net.Dial("tcp4", "127.0.0.1:"+portText(ln))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = waiting.Close() }()
			if c := only(t, ln, waiting); c.Inode != 0 || c.Local.Port() != portOf(ln) || c.Local.Addr() != netip.MustParseAddr("127.0.0.1") {
				t.Errorf("a connection that waits to be accepted: %+v", c)
			}
			if after, err := PassiveOpens(); err != nil || after <= before {
				t.Errorf("%d connections were taken before, %d after one: %v", before, after, err)
			}
			server, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			first := only(t, ln, waiting)
			if first.Inode == 0 || first.Closing || first.Unread != 0 {
				t.Errorf("accepted: %+v", first)
			}
			if held, err := Holds([]int{os.Getpid()}, []uint64{first.Inode, 1}); err != nil || len(held) != 1 || !held[first.Inode] {
				t.Errorf("held: %v, %v", held, err)
			}
			if first.Silent(time.Hour) || !first.Silent(0) {
				t.Errorf("silent: %+v", first)
			}
			if _, err := waiting.Write([]byte("12345")); err != nil {
				t.Fatal(err)
			}
			if c := only(t, ln, waiting); c.Unread != 5 || c.Silent(0) || c.Cookie != first.Cookie {
				t.Errorf("with 5 bytes that nobody has read: %+v, before %+v", c, first)
			}
			if err := server.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func portText(ln net.Listener) string {
	_, port, err := net.SplitHostPort(ln.Addr().String())
	if err != nil {
		panic(err)
	}
	return port
}

func TestHalfOpen(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	pair(t, ln)
	if n, err := HalfOpen([]uint16{portOf(ln)}); len(n) != 0 || err != nil {
		t.Errorf("%d handshakes, %v", n, err)
	}
}

// TestManyPorts: of many ports the same is found as of each alone.
func TestManyPorts(t *testing.T) {
	var ports []uint16
	for range manyPorts + 1 {
		ln, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ln.Close() })
		pair(t, ln)
		ports = append(ports, portOf(ln))
	}
	all, err := Connections(ports)
	if err != nil {
		t.Fatal(err)
	}
	got := map[uint16]int{}
	for _, c := range all {
		got[c.Local.Port()]++
	}
	want := map[uint16]int{}
	for _, port := range ports {
		one, err := Connections([]uint16{port})
		if err != nil {
			t.Fatal(err)
		}
		want[port] = len(one)
	}
	if diff := cmp.Diff(want, got); diff != "" || want[ports[0]] == 0 {
		t.Errorf("connections by port (-each alone +together):\n%s", diff)
	}
	if n, err := HalfOpen(ports); len(n) != 0 || err != nil {
		t.Errorf("%d handshakes, %v", n, err)
	}
}

func TestUnixQueue(t *testing.T) {
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	raw, err := ln.(*net.UnixListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var inode uint64
	var st unix.Stat_t
	if err := errors.Join(raw.Control(func(fd uintptr) { err = unix.Fstat(int(fd), &st) }), err); err != nil {
		t.Fatal(err)
	}
	inode = st.Ino
	for want := range 3 {
		if n, err := UnixQueue(inode); n != want || err != nil {
			t.Errorf("%d wait, want %d: %v", n, want, err)
		}
		c, err := net.Dial("unix", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	if n, err := UnixQueue(1); err == nil {
		t.Errorf("a queue of a socket that there is not: %d", n)
	}
}
