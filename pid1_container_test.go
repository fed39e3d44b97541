//go:build linux

package handover_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// sealedRoot makes every file system but /proc read-only, with the exception of one folder, which is on a tmpfs, and then
// executes what follows with the capabilities that container runtimes leave by default (moby, oci/caps/defaults.go): without
// CAP_SYS_PTRACE, CAP_SYS_ADMIN and CAP_SYS_RESOURCE.
func sealedRoot(dir, procOptions string) []string {
	return []string{"sh", "-c", `
set -e
dir=$1; shift
mount --bind "$dir" "$dir"
cut -d' ' -f5 /proc/self/mountinfo | while read -r at; do
	case $at in /proc*|"$dir") ;; *) mount -o remount,bind,ro "$at" ;; esac
done
mount -t proc -o "` + procOptions + `" proc /proc
exec "$@"`, "sh", dir, "setpriv", "--bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap," +
		"+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap"}
}

// TestPID1Container: as process 1 of a container whose root is read-only, with nothing to write to but a tmpfs as
// runtime_dir, handoverd serves, reloads, restarts and stops, with programs of another user whose /proc is closed to it.
func TestPID1Container(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	t.Parallel()
	for _, tt := range []struct {
		name, proc, more, adoption string
	}{
		{"its own user", "rw", "", "seen"},
		{"another user", "rw", `user = "nobody"`, "seen"},
		{"another user, hidepid", "hidepid=2", `user = "nobody"`, "seen"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := NewDaemon(t)
			publicProgram(t, handoverdProgram)
			d.Configure(stepsConfig(tt.more, "serve 3", "notify READY=1")(t, d, fmt.Sprintf("127.0.0.1:%d", FreePort(t))))
			f := startFirst(t, d, sealedRoot(d.Dir, tt.proc)...)
			f.WaitReady()
			s := &scene{Daemon: d, t: t}
			fresh := s.lightLoad()
			if out, err := exec.Command("nsenter", "--target", fmt.Sprint(f.PID), "--mount", "touch", filepath.Join(os.TempDir(), "x")).CombinedOutput(); err == nil ||
				!strings.Contains(string(out), "Read-only") {
				t.Errorf("the root can be written to: %v, %s", err, out)
			}
			d.MustReload()
			s.settle()
			if st := f.Service("web"); st.Generations[0].Adoption != tt.adoption {
				t.Errorf("adoption %q, want %q", st.Generations[0].Adoption, tt.adoption)
			}
			if k := f.Status().Keeper; k == nil || k.PID != 0 || !strings.Contains(k.Off, "process 1") {
				t.Errorf("keeper %+v: process 1 takes all others with it", k)
			}
			fresh.more(20)
			fresh.end()
			_, pid := f.Serving("web")
			if err := unix.Kill(f.outside(pid), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			f.WaitStatus("generation 3 serves alone", func(st *supervisor.Status) bool {
				return settledStatus(st) && st.Services[0].Generations[0].Generation == 3
			})
			f.signal(unix.SIGTERM)
			if code := f.exitCode(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if left := d.Left(); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
			if out := d.Log(); !strings.Contains(out, "web.1 | teststeps: done: serve 3") {
				t.Errorf("the output of the program was not passed on")
			}
			// Whatever it needed it had there.
			for _, bad := range []string{"level=ERROR", "read-only file system", "permission denied"} {
				if strings.Contains(d.Log(), bad) {
					t.Errorf("the log has %q", bad)
				}
			}
		})
	}
}

// outside is the number of a process of the namespace as the test sees it (proc_pid_status(5), NSpid).
func (f *first) outside(pid int) int {
	f.t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		f.t.Fatal(err)
	}
	ours, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", f.PID))
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		if err != nil {
			continue
		}
		theirs, _ := os.Readlink(filepath.Join("/proc", e.Name(), "ns/pid"))
		var number, inner int
		for line := range strings.Lines(string(text)) {
			if _, err := fmt.Sscanf(line, "NSpid:\t%d\t%d", &number, &inner); err == nil && inner == pid && theirs == ours {
				return number
			}
		}
	}
	f.t.Fatalf("no process %d in the namespace", pid)
	return 0
}
