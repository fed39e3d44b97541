package proc

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/fdleak"
)

// members returns the numbers of all processes of a leader's generation.
func members(t *testing.T, leader int) []int {
	t.Helper()
	list, err := Members(leader, "")
	if err != nil {
		t.Fatal(err)
	}
	numbers := make([]int, 0, len(list))
	for _, m := range list {
		numbers = append(numbers, m.PID)
	}
	return numbers
}

// endAll ends what is left of a leader's generation before the leader itself is reaped. One pass is not enough: a
// master may start a worker anew between the signal to the old one and its own.
func endAll(t *testing.T, leader int) {
	t.Helper()
	t.Cleanup(func() {
		for deadline, none := time.Now().Add(20*time.Second), 0; none < 2; {
			left, err := KillMembers(leader, "", unix.SIGKILL)
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("%d are left: %v", left, err)
			}
			if none++; left > 0 {
				none = 0
			}
		}
	})
}

const haproxyConfig = `
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 1s
frontend f
  bind fd@3
  http-request return status 200 content-type text/plain string ok
`

// HAProxy uses epoll, or with -de poll. After its soft stop it has no descriptor of the listener, but with epoll an
// entry is left, which wakes it for each connection.
func TestLookHAProxy(t *testing.T) {
	config := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(config, []byte(haproxyConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, flags := range []string{"-db", "-db -de"} {
		t.Run(flags, func(t *testing.T) {
			fdleak.Snapshot(t)
			fd, inode, port := listen(t, unix.SOCK_NONBLOCK)
			args := append([]string{"haproxy"}, strings.Fields(flags)...)
			k := start(t, kidOptions{path: "/usr/sbin/haproxy", args: append(args, "-f", config), files: []int{fd}})
			endAll(t, k.pid)
			var l Looker
			k.until(t, "polling", func() bool { return look(t, &l, k.pid, inode).Polled[inode] == 1 })

			// A connection in the middle of a request keeps it alive after the soft stop.
			c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := c.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n")); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
				t.Fatalf("%q, %v", line, err)
			}
			if err := SignalPidfd(k.pidfd, unix.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			var s Sight
			k.until(t, "released", func() bool {
				s = look(t, &l, k.pid, inode)
				return !s.Held[inode] && !s.Waiting(inode)
			})
			if want := flags == "-db"; s.Stale[inode] != want {
				t.Errorf("stale: %v, want %v", s.Stale[inode], want)
			}
		})
	}
}

func TestLookNginx(t *testing.T) {
	fdleak.Snapshot(t)
	dir := t.TempDir()
	fd, inode, port := listen(t, unix.SOCK_NONBLOCK)
	config := fmt.Sprintf(`daemon off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/error.log;
events { worker_connections 64; }
http {
  access_log off;
  client_body_temp_path %[1]s/a; proxy_temp_path %[1]s/b; fastcgi_temp_path %[1]s/c; uwsgi_temp_path %[1]s/d; scgi_temp_path %[1]s/e;
  server { listen 127.0.0.1:%[2]d; return 204; }
}`, dir, port)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	k := start(t, kidOptions{
		path: "/usr/sbin/nginx", args: []string{"nginx", "-e", dir + "/error.log", "-c", file},
		env: []string{"NGINX=3;"}, files: []int{fd},
	})
	endAll(t, k.pid)
	var l Looker
	var s Sight
	k.until(t, "a worker polling", func() bool {
		var err error
		if s, err = l.Look(members(t, k.pid), []uint64{inode}); err != nil {
			t.Fatal(err)
		}
		return s.Polled[inode] == 1
	})
	if len(s.Blind) > 0 || len(s.Stale) > 0 {
		t.Errorf("%+v", s)
	}
	if alone := look(t, &l, k.pid, inode); alone.Waiting(inode) || !alone.Held[inode] {
		t.Errorf("the master itself: %+v", alone)
	}
}
