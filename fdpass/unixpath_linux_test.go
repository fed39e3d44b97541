package fdpass_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
	"github.com/handoverd/handover/internal/fdleak"
)

func lstat(t testing.TB, path string) *syscall.Stat_t {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Sys().(*syscall.Stat_t)
}

func absent(t testing.TB, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v, want it absent", path, err)
	}
}

// umask(2) belongs to the process; these tests do not run in parallel.
func withUmask(t testing.TB, mask int) {
	old := unix.Umask(mask)
	t.Cleanup(func() { unix.Umask(old) })
}

func TestUnixModeOwnerLink(t *testing.T) {
	fdleak.Snapshot(t)
	withUmask(t, 0o077)
	path := filepath.Join(t.TempDir(), "app.sock")
	s := bind(t, "unix:"+path+"?mode=0660&owner=7&group=daemon")
	st := lstat(t, path)
	if st.Mode != unix.S_IFSOCK|0o660 || st.Uid != 7 || st.Gid != 1 || st.Nlink != 2 {
		t.Errorf("mode %#o uid %d gid %d links %d", st.Mode, st.Uid, st.Gid, st.Nlink)
	}
	link, exists := s.HardLink()
	if want := filepath.Join(filepath.Dir(path), ".app.sock.handoverd"); link != want || !exists {
		t.Errorf("HardLink() = %q, %v", link, exists)
	}
	if lstat(t, link).Ino != st.Ino {
		t.Error("the hard link is another file")
	}
	if err := s.Apply(fdpass.Options{Mode: new(uint32(0o600)), Group: "2"}); err != nil {
		t.Fatal(err)
	}
	if st := lstat(t, path); st.Mode&0o777 != 0o600 || st.Uid != 0 || st.Gid != 2 {
		t.Errorf("after Apply: mode %#o uid %d gid %d", st.Mode, st.Uid, st.Gid)
	}
	if err := s.Apply(fdpass.Options{}); err != nil {
		t.Fatal(err)
	}
	if st := lstat(t, path); st.Mode&0o777 != fdpass.DefaultMode || st.Gid != 0 {
		t.Errorf("after Apply of defaults: mode %#o gid %d", st.Mode, st.Gid)
	}
	if err := s.Unlink(); err != nil {
		t.Fatal(err)
	}
	absent(t, path)
	absent(t, link)
}

func TestUnixStale(t *testing.T) {
	fdleak.Snapshot(t)
	dir := t.TempDir()
	for _, kind := range []string{"unix", "unixgram", "unixpacket"} {
		for _, before := range []string{"unix", "unixgram", "unixpacket"} {
			path := filepath.Join(dir, kind+before)
			old := bind(t, before+":"+path)
			link, _ := old.HardLink()
			a, _, err := fdpass.ParseAddr(kind + ":" + path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fdpass.Bind(a, fdpass.Options{}); !errors.Is(err, unix.EADDRINUSE) {
				t.Errorf("%s over a living %s: %v", kind, before, err)
			}
			if err := old.Close(); err != nil {
				t.Fatal(err)
			}
			stale := lstat(t, path).Ino
			s := bind(t, kind+":"+path)
			if lstat(t, link).Ino != lstat(t, path).Ino || lstat(t, path).Nlink != 2 {
				t.Errorf("%s over a stale %s: link not renewed (stale inode %d)", kind, before, stale)
			}
			if err := s.Unlink(); err != nil {
				t.Error(err)
			}
		}
	}
}

// The check must not disturb the server that it finds.
func TestUnixStaleCheckIsUnseen(t *testing.T) {
	fdleak.Snapshot(t)
	path := filepath.Join(t.TempDir(), "s")
	s := bind(t, "unix:"+path)
	if _, err := fdpass.Bind(s.Addr(), fdpass.Options{}); !errors.Is(err, unix.EADDRINUSE) {
		t.Fatal(err)
	}
	if fd, _, err := unix.Accept4(s.FD(), unix.SOCK_CLOEXEC); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("accept after the check: %d, %v", fd, err)
	}
	// Bound and not yet listening is not stale either.
	half, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(half)
	if err := unix.Bind(half, &unix.SockaddrUnix{Name: path + "2"}); err != nil {
		t.Fatal(err)
	}
	a := s.Addr()
	a.Path = path + "2"
	if _, err := fdpass.Bind(a, fdpass.Options{}); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("over a socket that does not listen yet: %v", err)
	}
}

func TestUnixForeignPath(t *testing.T) {
	fdleak.Snapshot(t)
	dir := t.TempDir()
	file, link, sub, fifo := dir+"/file", dir+"/link", dir+"/dir", dir+"/fifo"
	err := errors.Join(os.WriteFile(file, []byte("x"), 0o600), os.Symlink(file, link), os.Mkdir(sub, 0o700), unix.Mkfifo(fifo, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "a regular file", link: "a symbolic link", sub: "a directory", fifo: "a FIFO"} {
		_, err := fdpass.Bind(fdpass.Addr{Kind: fdpass.Unix, Path: path}, fdpass.Options{})
		if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "left alone") {
			t.Errorf("%s: %v", path, err)
		}
		lstat(t, path)
	}
	// A foreign file at the name of the hard link: the socket does without.
	if err := os.WriteFile(dir+"/.s.handoverd", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := bind(t, "unix:"+dir+"/s")
	if _, exists := s.HardLink(); exists {
		t.Error("HardLink exists over a foreign file")
	}
	if err := os.Remove(dir + "/s"); err != nil {
		t.Fatal(err)
	}
	if err := s.Restore(); !errors.Is(err, fdpass.ErrNoLink) {
		t.Errorf("Restore without a link: %v", err)
	}
	if err := os.WriteFile(dir+"/s", []byte("y"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Unlink(); err != nil {
		t.Fatal(err)
	}
	lstat(t, dir+"/s")
	lstat(t, dir+"/.s.handoverd")
}

func TestUnixRestore(t *testing.T) {
	fdleak.Snapshot(t)
	for _, kind := range []string{"unix", "unixpacket"} {
		for name, harm := range map[string]func(string) error{
			"unlinked":      os.Remove,
			"replaced":      func(p string) error { return errors.Join(os.Remove(p), os.WriteFile(p, nil, 0o600)) },
			"rebound":       rebind,
			"renamed over":  func(p string) error { return errors.Join(rebind(p+"2"), os.Rename(p+"2", p)) },
			"link unlinked": func(p string) error { return os.Remove(filepath.Join(filepath.Dir(p), ".s.handoverd")) },
			"nothing":       func(string) error { return nil },
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "s")
				s := bind(t, kind+":"+path)
				before := lstat(t, path)
				queued := dial(t, kind, path)
				if err := harm(path); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if err := s.Restore(); err != nil {
						t.Fatal(err)
					}
				}
				after := lstat(t, path)
				if after.Ino != before.Ino || after.Nlink != 2 || after.Mode != before.Mode {
					t.Errorf("inode %d mode %#o links %d, want inode %d mode %#o", after.Ino, after.Mode, after.Nlink, before.Ino, before.Mode)
				}
				later := dial(t, kind, path)
				for i, c := range []net.Conn{queued, later} {
					if _, err := c.Write([]byte{byte('a' + i)}); err != nil {
						t.Fatal(err)
					}
					fd, _, err := unix.Accept4(s.FD(), unix.SOCK_CLOEXEC)
					if err != nil {
						t.Fatalf("accept of client %d: %v", i, err)
					}
					b := make([]byte, 4)
					if n, err := unix.Read(fd, b); err != nil || string(b[:n]) != string(rune('a'+i)) {
						t.Errorf("client %d: read %q, %v", i, b[:n], err)
					}
					_ = unix.Close(fd)
				}
				sa, err := unix.Getsockname(s.FD())
				if err != nil || sa.(*unix.SockaddrUnix).Name != path {
					t.Errorf("getsockname: %v, %v", sa, err)
				}
				names, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*"))
				if err != nil || len(names) != 1 {
					t.Errorf("files beside the path: %v, %v", names, err)
				}
			})
		}
	}
}

// rebind leaves a foreign socket file at p.
func rebind(p string) error {
	if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: p}), unix.Close(fd))
}

func dial(t testing.TB, network, path string) net.Conn {
	t.Helper()
	c, err := net.Dial(network, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestAdopt(t *testing.T) {
	fdleak.Snapshot(t)
	dir := t.TempDir()
	var socks []*fdpass.Socket
	for _, addr := range []string{
		"tcp://:0", "tcp6://:0", "tcp://127.0.0.1:0", "udp://127.0.0.1:0",
		"unix:" + dir + "/s", "unixgram:" + dir + "/d", "unix:@handover-adopt",
	} {
		socks = append(socks, bind(t, addr))
	}
	for i, s := range socks {
		for j, other := range socks {
			fd, err := unix.Dup(s.FD())
			if err != nil {
				t.Fatal(err)
			}
			got, err := fdpass.Adopt(fd, other.Addr(), other.Options())
			if (err == nil) != (i == j) {
				t.Errorf("adopt %v as %v: %v", s.Addr(), other.Addr(), err)
			}
			if err != nil {
				if err := unix.Close(fd); err != nil {
					t.Errorf("after a refused Adopt: %v", err)
				}
				continue
			}
			if got.Inode() != s.Inode() || got.Addr() != s.Addr() || !traitsOf(t, got.FD()).CloseOnExec {
				t.Errorf("adopted %v: %v, inode %d and %d", s.Addr(), got.Addr(), got.Inode(), s.Inode())
			}
			if err := got.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := fdpass.Adopt(-1, socks[0].Addr(), fdpass.Options{}); !errors.Is(err, unix.EBADF) {
		t.Errorf("adopt of -1: %v", err)
	}
}

// A filter that whoever was killed has left on a socket does not outlive its adoption.
func TestAdoptFilter(t *testing.T) {
	fdleak.Snapshot(t)
	s := bind(t, "tcp4://127.0.0.1:0")
	nothing := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K} // lets nothing through
	if err := unix.SetsockoptSockFprog(s.FD(), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing}); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(s.FD())
	if err != nil {
		t.Fatal(err)
	}
	got, err := fdpass.Adopt(fd, s.Addr(), s.Options())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = got.Close() }()
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.Addr().Port))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

// An adopted UNIX socket knows its own file, also when a foreign one is at the path.
func TestAdoptPath(t *testing.T) {
	fdleak.Snapshot(t)
	path := filepath.Join(t.TempDir(), "s")
	s := bind(t, "unix:"+path)
	own := lstat(t, path).Ino
	if err := rebind(path); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(s.FD())
	if err != nil {
		t.Fatal(err)
	}
	got, err := fdpass.Adopt(fd, s.Addr(), s.Options())
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if _, exists := got.HardLink(); !exists {
		t.Error("the hard link was not found")
	}
	if err := got.Restore(); err != nil || lstat(t, path).Ino != own {
		t.Errorf("Restore: %v, inode %d, want %d", err, lstat(t, path).Ino, own)
	}
	if err := unix.Shutdown(fd, unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	if _, err := fdpass.Adopt(fd, s.Addr(), s.Options()); !errors.Is(err, fdpass.ErrShutDown) {
		t.Errorf("adopt of a dead listener: %v", err)
	}
}
