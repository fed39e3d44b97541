//go:build linux

package handover_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/supervisor"
)

// startUnder is Start by way of another program, which must execute its arguments in its own place, and with these
// variables added to the environment.
func (d *Daemon) startUnder(t *testing.T, environ []string, wrapper ...string) {
	t.Helper()
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	argv := append(wrapper, Program(t, handoverdProgram), "run", "-c", d.ConfigFile())
	d.cmd = exec.Command(argv[0], argv[1:]...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env = append(append(os.Environ(), markEnv+"="+d.Dir), environ...)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.PID, d.exited = d.cmd.Process.Pid, make(chan struct{})
	go func(cmd *exec.Cmd, exited chan struct{}) { // waited for through exited
		_ = cmd.Wait()
		close(exited)
	}(d.cmd, d.exited)
}

// withoutPtrace runs a program without the right to look at other users' processes, as a hardened unit or a container does.
var withoutPtrace = []string{"setpriv", "--bounding-set=-sys_ptrace"}

// hiddenProc is withoutPtrace where /proc also hides that they are there (proc(5), hidepid).
var hiddenProc = append([]string{
	"unshare", "--mount", "--propagation", "private",
	"sh", "-c", `mount -t proc -o hidepid=2 proc /proc && exec "$@"`, "sh",
}, withoutPtrace...)

// process is a generation's main process, looked at from outside: what it was given, before it has done anything itself.
type process struct {
	t   testing.TB
	pid int
}

// waitProcess waits until a generation's program runs, whether ready or not.
func waitProcess(t testing.TB, d *Daemon, generation int, exe string) process {
	t.Helper()
	if path, err := filepath.EvalSymlinks(exe); err == nil {
		exe = path
	}
	p := process{t: t}
	eventually(t, fmt.Sprintf("generation %d runs %s", generation, exe), func() bool {
		s, err := d.status()
		if err != nil || len(s.Services) == 0 {
			return false
		}
		for _, g := range s.Services[0].Generations {
			if g.Generation == generation && g.PID != 0 {
				p.pid = g.PID
			}
		}
		link, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid))
		if err != nil || link != exe {
			return false
		}
		// In the middle of execve the new program is there and its arguments and environment are not yet.
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p.pid))
		return err == nil && strings.Contains(string(environ), "HANDOVER_SERVICE=")
	})
	return p
}

func (p process) read(name string) string {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.pid, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(text)
}

func (p process) link(name string) string {
	p.t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/%s", p.pid, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return link
}

// zeroed splits what /proc separates by NUL.
func (p process) zeroed(name string) []string {
	p.t.Helper()
	return strings.Split(strings.TrimSuffix(p.read(name), "\x00"), "\x00")
}

func (p process) environ() map[string]string {
	p.t.Helper()
	env := map[string]string{}
	for _, kv := range p.zeroed("environ") {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	return env
}

// status is a field of /proc/PID/status.
func (p process) status(field string) string {
	p.t.Helper()
	for line := range strings.Lines(p.read("status")) {
		if name, value, _ := strings.Cut(line, ":"); name == field {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	p.t.Fatalf("no %s in the status of %d", field, p.pid)
	return ""
}

// stat is a field of proc_pid_stat(5), by its number there.
func (p process) stat(field int) string {
	p.t.Helper()
	text := p.read("stat")
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:])[field-3]
}

func (p process) limit(name string) string {
	p.t.Helper()
	for line := range strings.Lines(p.read("limits")) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			return strings.Join(strings.Fields(rest)[:2], " ")
		}
	}
	p.t.Fatalf("no limit %q of %d", name, p.pid)
	return ""
}

// files are its descriptors by number.
func (p process) files() map[int]string {
	p.t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.pid))
	if err != nil {
		p.t.Fatal(err)
	}
	m := map[int]string{}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			p.t.Fatal(err)
		}
		if link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.pid, n)); err == nil { // else closed meanwhile
			m[n] = link
		}
	}
	return m
}

// checkFiles waits until the process has these descriptors and no others: it opens files for a moment when it begins.
func checkFiles(p process, want map[int]string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("descriptors %v", want), func() bool { return cmp.Equal(p.files(), want) })
}

// touch writes to a FIFO, which lets whoever waits for that go on.
func touch(t *testing.T, fifo string) {
	t.Helper()
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0) // waits for the reader
	if err == nil {
		_, err = f.WriteString("\n")
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// check compares what a process is with what it should be.
func check(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// plain is a service that only is: it has no sockets and is ready when it has lived for a moment.
func plain(more string, command ...string) string {
	return fmt.Sprintf(`
[service.web]
command = %s
%s
[service.web.ready]
when = "alive"
alive_for = "200ms"
settle = "1ms"
`, quoted(command...), more)
}

// sleeper is a program that changes nothing about itself.
const sleeper = "/bin/sleep"

// TestSpawnConfigured: a process is what the configuration says, and nothing of what handoverd was started with is in the way.
func TestSpawnConfigured(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	work := filepath.Join(d.Dir, "work")
	if err := os.Mkdir(work, 0o755); err != nil {
		t.Fatal(err)
	}
	// A group that lists the user, in a group(5) of this daemon alone.
	groups, err := os.ReadFile("/etc/group")
	if err != nil {
		t.Fatal(err)
	}
	groupFile := writeFile(t, d, "group", string(groups)+"handoverd-test:x:64999:daemon,nobody\n")
	d.Configure(plain(fmt.Sprintf(`
user = "nobody"
group = "www-data"
directory = %q
umask = "0027"
env = { FROM_ENV = "yes", BOTH = "env", HOME = "/elsewhere" }
env_file = %q
rlimits = { nofile = 333, core = 0, nproc = 4321 }
nice = 5
oom_score_adj = 321
ambient_caps = ["net_bind_service", "CAP_NET_RAW"]
`, work, writeFile(t, d, "environment", "# comment\n\nFROM_FILE=a b=c\nBOTH=file\n")), sleeper, "1000"))
	// Ignored signals are what nohup leaves behind; the umask and the limit are the shell's own.
	d.startUnder(t, nil, "unshare", "--mount", "--propagation", "private", "sh", "-c",
		`mount --bind "$1" /etc/group && shift && trap "" HUP INT USR2 && umask 077 && ulimit -n 2048 && exec "$@"`, "sh", groupFile)
	d.WaitReady()
	p := waitProcess(t, d, 1, sleeper)

	check(t, "uids", p.status("Uid"), "65534 65534 65534 65534")
	check(t, "gids", p.status("Gid"), "33 33 33 33")
	check(t, "groups", p.status("Groups"), "33 64999")
	check(t, "umask", p.status("Umask"), "0027")
	check(t, "directory", p.link("cwd"), work)
	check(t, "no_new_privs", p.status("NoNewPrivs"), "1")
	const bindAndRaw = "0000000000002400" // bits 10 and 13, capabilities(7)
	check(t, "ambient capabilities", p.status("CapAmb"), bindAndRaw)
	check(t, "effective capabilities", p.status("CapEff"), bindAndRaw)
	check(t, "permitted capabilities", p.status("CapPrm"), bindAndRaw)
	check(t, "files", p.limit("Max open files"), "333 333")
	check(t, "core", p.limit("Max core file size"), "0 0")
	check(t, "processes", p.limit("Max processes"), "4321 4321")
	check(t, "nice", p.stat(19), "5")
	check(t, "oom_score_adj", p.read("oom_score_adj"), "321\n")
	check(t, "parent", p.status("PPid"), fmt.Sprint(d.PID))
	check(t, "process group and session", []string{p.stat(5), p.stat(6)}, []string{fmt.Sprint(p.pid), fmt.Sprint(p.pid)})
	check(t, "controlling terminal", p.stat(7), "0")
	check(t, "ignored and blocked signals", []string{p.status("SigIgn"), p.status("SigBlk")}, []string{"0000000000000000", "0000000000000000"})
	files := p.files()
	log := filepath.Join(d.Dir, "log", "web.1")
	if !strings.HasPrefix(files[3], "socket:") { // its end of the child protocol
		t.Errorf("descriptor 3 is %q", files[3])
	}
	checkFiles(p, map[int]string{0: "/dev/null", 1: log, 2: log, 3: files[3]})
	env := p.environ()
	for name, want := range map[string]string{
		"FROM_ENV": "yes", "FROM_FILE": "a b=c", "BOTH": "env", "HOME": "/elsewhere",
		"USER": "nobody", "LOGNAME": "nobody", "SHELL": "/usr/sbin/nologin",
		"HANDOVER_FD": "3", "HANDOVER_GENERATION": "1", "HANDOVER_SERVICE": "web",
		"NOTIFY_SOCKET": filepath.Join(d.Dir, "notify", "web.1"),
	} {
		check(t, name, env[name], want)
	}
	for _, name := range []string{"LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"} {
		if v, ok := env[name]; ok {
			t.Errorf("%s=%s without a socket", name, v)
		}
	}
	d.Stop()
}

// TestSpawnPlain: where nothing is configured a process has what handoverd has.
func TestSpawnPlain(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	d.Configure(plain("", "sleep", "1000"))
	d.startUnder(t, nil, "sh", "-c", `cd / && umask 027 && ulimit -S -n 777 && exec "$@"`, "sh")
	d.WaitReady()
	p := waitProcess(t, d, 1, sleeper)
	check(t, "uids", p.status("Uid"), "0 0 0 0")
	check(t, "umask", p.status("Umask"), "0027")
	check(t, "directory", p.link("cwd"), "/")
	check(t, "no_new_privs", p.status("NoNewPrivs"), "0")
	check(t, "nice", p.stat(19), process{t, d.PID}.stat(19))
	check(t, "ambient capabilities", p.status("CapAmb"), "0000000000000000")
	check(t, "soft limit of files", strings.Fields(p.limit("Max open files"))[0], "1025") // one descriptor of its own and 1,024
	d.Stop()
}

// junk is the environment of a handoverd that is itself the child of a supervisor, of each of them.
var junk = []string{
	"LISTEN_FDS", "LISTEN_PID", "LISTEN_PIDFDID", "LISTEN_FDNAMES", "LISTEN_FDS_FIRST_FD", "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC",
	"FDSTORE", "MAINPID", "MAINPIDFDID", "INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID",
	"NGINX", "ANGIE", "GUNICORN_FD", "GUNICORN_PID", "PUMA_INHERIT_0", "UNICORN_FD", "RESTART_EPOCH",
	"HAPROXY_MWORKER", "HAPROXY_MWORKER_REEXEC", "HAPROXY_MWORKER_WAIT_ONLY", "HAPROXY_PROCESSES",
	"TABLEFLIP_HAS_PARENT_7DIU3", "SERVER_STARTER_PORT", "SERVER_STARTER_GENERATION", "MULTIBINDER_SOCK",
	"EINHORN_FD_COUNT", "EINHORN_FD_0", "EINHORN_SOCK_PATH", "ECDYSIS_RUST_UPGRADE", "OXY_NOTIFY_SOCKET",
	"HANDOVER_FD", "HANDOVER_FD_OTHER", "HANDOVER_GENERATION", "HANDOVER_SERVICE", "HANDOVER_TOKEN", "HANDOVERD_ANYTHING",
}

// TestEnvironmentIsScrubbed: nothing by which another supervisor speaks to its child comes through, neither to a program nor to a
// check; all else does.
func TestEnvironmentIsScrubbed(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	record := filepath.Join(d.Dir, "check.environ")
	d.Configure(plain(`dialects = ["haproxy"]
check = `+quoted("/bin/sh", "-c", "cat /proc/self/environ >"+record), sleeper, "1000"))
	environ := []string{"HARMLESS=kept"}
	for _, name := range junk {
		environ = append(environ, name+"=junk")
	}
	d.startUnder(t, environ)
	d.WaitReady()
	p := waitProcess(t, d, 1, sleeper)
	checked, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	for who, text := range map[string]string{"the program": p.read("environ"), "the check": string(checked)} {
		if !strings.Contains(text, "HARMLESS=kept\x00") || !strings.Contains(text, "PATH=") {
			t.Errorf("%s lacks what is harmless: %q", who, text)
		}
		for kv := range strings.SplitSeq(text, "\x00") {
			if strings.HasSuffix(kv, "=junk") {
				t.Errorf("%s sees %s", who, kv)
			}
		}
	}
	d.Stop()
}

// TestArguments: $HANDOVER_X and ${HANDOVER_X} are expanded in the command, every other dollar stays.
func TestArguments(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	arguments := map[string]string{
		"$HANDOVER_FD_HTTP":                "3",
		"${HANDOVER_FD_ADMIN_V6}":          "4",
		"fd@$HANDOVER_FD_HTTP,x":           "fd@3,x",
		"a${HANDOVER_GENERATION}b":         "a1b",
		"$HANDOVER_SERVICE.$HANDOVER_FD":   "web.5",
		"$HANDOVER_FD_HTTPS":               "$HANDOVER_FD_HTTPS",
		"${HANDOVER_FD_HTTP":               "${HANDOVER_FD_HTTP",
		"$HOME":                            "$HOME",
		"$$":                               "$$",
		"$":                                "$",
		"${}":                              "${}",
		"${HANDOVER_NOTHING}":              "${HANDOVER_NOTHING}",
		"100$":                             "100$",
		"$$HANDOVER_FD_HTTP":               "$3",
		"${HOME}${HANDOVER_FD_HTTP}$1 \t#": "${HOME}3$1 \t#",
	}
	command, want := []string{"/bin/sh", "-c", "kill -STOP $$", "sh"}, []string{"/bin/sh", "-c", "kill -STOP $$", "sh"}
	for arg, expanded := range arguments {
		command, want = append(command, strings.ReplaceAll(arg, "\t", `\t`)), append(want, expanded)
	}
	d := NewDaemon(t)
	d.Configure(fmt.Sprintf(`
[service.web]
command = %s
[service.web.socket]
http = "tcp4://127.0.0.1:0"
admin-v6 = "unix:@%s"
`, quoted(command...), d.Dir))
	d.Start()
	check(t, "arguments", waitProcess(t, d, 1, "/bin/sh").zeroed("cmdline"), want)
}

// TestOutput: what a program writes is passed on with its name and number; it may open its standard error again by
// name; and the end of it is in the report of a failure.
func TestOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	fifo := filepath.Join(d.Dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1000)
	d.Configure(plain(`user = "nobody"`, "/bin/sh", "-c",
		"echo out; echo err >&2; echo again "+long+" >>/dev/stderr; read x <"+fifo+"; echo emptied >/dev/stderr; echo after; printf 'no end'; exec sleep 1000"))
	d.Start()
	d.WaitReady()
	for _, line := range []string{"out", "err", "again " + long} {
		d.WaitLog("web.1 | " + line + "\n")
	}
	// A shell's > empties the file; what it writes then is not taken for something that was read already, as long as it is less.
	touch(t, fifo)
	d.WaitLog("web.1 | emptied\nweb.1 | after\n")
	info, err := os.Stat(filepath.Join(d.Dir, "log", "web.1"))
	if err != nil {
		t.Fatal(err)
	}
	if sys := info.Sys().(*syscall.Stat_t); sys.Uid != 65534 || info.Mode() != 0o600 {
		t.Errorf("the file is of user %d, mode %v, want 65534 and 0600", sys.Uid, info.Mode())
	}
	d.Configure(plain("", "/bin/sh", "-c", `i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; printf 'the last'; exit 7`) + "init_grace = \"50s\"\n")
	report, err := d.Reload(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	r := report.Results[0]
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprintf("line %d", i))
	}
	want = append(want, "the last")
	if r.Outcome != supervisor.OutcomeFailed || !strings.Contains(r.How, "exit status 7") {
		t.Errorf("reload: %+v, want it failed with exit status 7", report)
	}
	check(t, "last lines in the report", r.Output, want[len(want)-len(r.Output):])
	if n := len(r.Output); n != 64 && n != 65 { // the last line has no end
		t.Errorf("the report has %d lines, want 64", n)
	}
	for _, line := range want {
		d.WaitLog("web.2 | " + line + "\n")
	}
	d.Stop()
	if !strings.Contains(d.Log(), "web.1 | no end\n") {
		t.Error("a line without an end is lost")
	}

	d = NewDaemon(t)
	d.Configure(plain(`log = "inherit"`, "/bin/sh", "-c", "echo straight; exec sleep 1000"))
	d.Start()
	d.WaitReady()
	d.WaitLog("\nstraight\n")
	p := waitProcess(t, d, 1, sleeper)
	check(t, "standard output and error", []string{p.link("fd/1"), p.link("fd/2")}, []string{d.logFile(), d.logFile()})
	d.Stop()
}

// TestRelease: a symlink "current" that moves takes effect at a reload and not before: a restart runs the release that was
// committed.
func TestRelease(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	rows := []struct{ name, directory, command, search string }{
		{"relative to the directory", "current", "./server", ""},
		{"through the symlink", ".", "current/server", ""},
		{"absolute", "", "DIR/current/server", ""},
		{"in PATH", "", "server", "DIR/current"},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel() // they mostly wait
			d := NewDaemon(t)
			program := func(release int) string { return filepath.Join(d.Dir, fmt.Sprintf("releases/%d/server", release)) }
			for release := 1; release <= 2; release++ {
				text, err := os.ReadFile(sleeper)
				if err == nil {
					err = os.MkdirAll(filepath.Dir(program(release)), 0o755)
				}
				if err == nil {
					err = os.WriteFile(program(release), text, 0o755)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			point := func(release int) {
				link := filepath.Join(d.Dir, "current")
				err := os.Symlink(filepath.Dir(program(release)), link+".new")
				if err == nil {
					err = os.Rename(link+".new", link)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			point(1)
			more := ""
			if row.directory != "" {
				more = fmt.Sprintf("directory = %q\n", filepath.Join(d.Dir, row.directory))
			}
			if row.search != "" {
				more += fmt.Sprintf("env = { PATH = %q }\n", strings.ReplaceAll(row.search, "DIR", d.Dir))
			}
			d.Configure(plain(more, strings.ReplaceAll(row.command, "DIR", d.Dir), "1000"))
			d.Start()
			d.WaitReady()
			directory := func(p process) string { return p.link("cwd") }
			first := waitProcess(t, d, 1, program(1))
			cwd := directory(first)
			point(2)
			if err := unix.Kill(first.pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			check(t, "directory of the restarted one", directory(waitProcess(t, d, 2, program(1))), cwd)
			d.WaitReady()
			d.MustReload()
			want := cwd
			if row.directory == "current" {
				want = filepath.Dir(program(2))
			}
			check(t, "directory of the new release", directory(waitProcess(t, d, 3, program(2))), want)
			check(t, "name that it was started by", waitProcess(t, d, 3, program(2)).zeroed("cmdline")[0], strings.ReplaceAll(row.command, "DIR", d.Dir))
			d.Stop()
		})
	}
}

// TestCheck: the check runs, as the service's user, before the first start and each reload and not before a restart; what
// fails it is refused with its output.
func TestCheck(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	d := NewDaemon(t)
	record := writeFile(t, d, "runs", "")
	if err := os.Chmod(record, 0o666); err != nil {
		t.Fatal(err)
	}
	const broken = "broken configuration, line 7"
	flag := filepath.Join(d.Dir, "flag")
	config := plain(fmt.Sprintf("user = \"nobody\"\numask = \"0027\"\ncheck = %s\n", quoted("/bin/sh", "-c",
		fmt.Sprintf(`echo $(id -u) $(umask) $HANDOVER_FD_HTTP >>%s; if [ -e %s ]; then echo %s >&2; exit 3; fi`, record, flag, broken))), sleeper, "1000")
	d.Configure(config)
	d.Start()
	d.WaitReady()
	runs := func() string {
		text, err := os.ReadFile(record)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const one = "65534 0027\n"
	check(t, "checks of the start", runs(), one)
	if err := unix.Kill(waitProcess(t, d, 1, sleeper).pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitProcess(t, d, 2, sleeper)
	d.WaitReady()
	check(t, "checks after a restart", runs(), one)
	d.MustReload()
	check(t, "checks after a reload", runs(), one+one)

	writeFile(t, d, "flag", "")
	_, pid := d.Serving("web")
	report, err := d.Reload(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	r := report.Results[0]
	if r.Outcome != supervisor.OutcomeRefused || !strings.Contains(r.Reason, broken) || !strings.Contains(r.Reason, "exit status 3") {
		t.Errorf("reload: %+v, want it refused with exit status 3 and %q", report, broken)
	}
	d.WaitLog(broken)
	if _, now := d.Serving("web"); now != pid {
		t.Errorf("process %d serves, want %d", now, pid)
	}
	check(t, "checks after all", runs(), one+one+one)
	d.Stop()

	// The first start: nothing is run and nothing is left.
	d = NewDaemon(t)
	d.Configure(config)
	d.Configure(plain(fmt.Sprintf("check = %s\n", quoted("/bin/sh", "-c", "echo "+broken+"; exit 1")), sleeper, "1000"))
	d.Start()
	if code := d.WaitExit(); code != 1 || !strings.Contains(d.Log(), broken) {
		t.Errorf("a first start with a failing check exits with %d, want 1; log: %s", code, d.Log())
	}
	if left := d.Left(); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// TestCheckHangs: a check that does not end is ended, with what it started, at the end of the init grace.
func TestCheckHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	config := func(more string) string {
		return strings.Replace(plain(more, sleeper, "1000"), `alive_for`, "init_grace = \"1s\"\nalive_for", 1)
	}
	d := StartDaemon(t, config(""))
	_, pid := d.Serving("web")
	d.Configure(config("check = " + quoted("/bin/sh", "-c", "echo it takes a while; sleep 1000 & (setsid sleep 1000) & wait") + "\n"))
	report, err := d.Reload(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	r := report.Results[0]
	if r.Outcome != supervisor.OutcomeRefused || !strings.Contains(r.Reason, "killed after 1s") || !strings.Contains(r.Reason, "it takes a while") {
		t.Errorf("reload: %+v, want it refused after 1s, with the output", report)
	}
	if left := d.Left(); !slices.Equal(left, []int{pid}) {
		t.Errorf("processes %v are left, want %d alone", left, pid)
	}
	d.Stop()
}

// TestCheckSockets: a check gets the sockets where it names them, as HAProxy's does, and nowhere else: nginx -t would unlink
// the paths of those it does not know.
func TestCheckSockets(t *testing.T) {
	if testing.Short() {
		t.Skip("runs real programs; it runs without -short")
	}
	for more, want := range map[string]bool{
		"":                         false,
		`check_sockets = true`:     true,
		`dialects = ["haproxy"]`:   true,
		`dialects = ["nginx"]`:     false,
		"dialects = [\"systemd\"]": false,
	} {
		t.Run(more, func(t *testing.T) {
			d := NewDaemon(t)
			record := filepath.Join(d.Dir, "files")
			d.Configure(fmt.Sprintf(`
[service.web]
command = [%q, "1000"]
check = %s
%s
[service.web.socket]
http = "tcp4://127.0.0.1:0"
`, sleeper, quoted("/bin/sh", "-c", "readlink /proc/$$/fd/* >"+record+"; echo $HANDOVER_FD_HTTP >>"+record), more))
			d.Start()
			waitProcess(t, d, 1, sleeper)
			text, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			inode := d.Service("web").Sockets[0].Inode
			got := strings.Contains(string(text), fmt.Sprintf("socket:[%d]", inode))
			if got != want || strings.HasSuffix(string(text), "\n3\n") != want {
				t.Errorf("the check has its socket %d: %v, want %v:\n%s", inode, got, want, text)
			}
			if n := strings.Count(string(text), "socket:"); n > 1 {
				t.Errorf("the check has %d sockets:\n%s", n, text)
			}
		})
	}
}
