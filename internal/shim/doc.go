// Package shim is the exec shim, both ends: how handoverd starts a program.
//
// A Go process can run no code of its own between fork and exec, and
// LISTEN_PID must be the pid that fork returned. So [Start] executes handoverd
// itself (/proc/self/exe: after a package upgrade the path may name another
// version) as a child called "handoverd-shim". The child receives a sealed
// memfd with the [Spec] and the descriptors over a UNIX socketpair, turns
// itself into what the Spec says, waits for [Process.Go], and calls execve.
// The pid never changes, and the caller can write it down before Go: when the
// caller dies first, the shim reads EOF and ends, so no program runs that
// nobody knows of.
//
//	Start ── memfd, descriptors (≤ 253 a message) ──► shim: prepares all it can
//	write pid and start time down                     shim: waits
//	Go    ── "go" ─────────────────────────────────► shim: execve
//	Result ◄── EOF (exec happened, or the shim was killed) or one report
//
// # The order in the child
//
// receive, decode, move its own descriptors above all targets, nice,
// oom_score_adj, dup3 to the targets, rlimits upwards, umask, setgroups,
// setresgid, setresuid, proof that it cannot get back, capabilities,
// no_new_privs, chdir, wait for go, rlimits exactly, signal dispositions and
// mask, execve. What needs privileges comes before they are dropped; chdir
// comes after, so that a directory the user may not enter is an error here and
// not a surprise in the program. Everything but the last three happens before
// go and hides behind what the caller does meanwhile; a failure is therefore
// often reported before Go is called.
//
// All of it runs on the process's main thread, to which Go locks package
// initialisation: prctl(2), capset(2), setpriority(2), the signal mask, and the
// raw forms of setresuid(2) act on one thread, and execve keeps that of the
// caller. The setuid family of package syscall is not used: it wants every
// thread (AllThreadsSyscall), which a cgo binary, so every -race build, lacks.
//
// # Cost, and why so few imports
//
// The child is dispatched by this package's own init. Go initialises packages
// that are ready in the order of their import paths, so a binary that imports
// this package becomes the shim before net/http, cobra or a metrics library
// have initialised, as long as this package needs none of them. It is a matter
// of cost only: package os, and whatever sorts before the last import of this
// one, do come first, and may have opened files (see childFiles). That
// is why it imports neither os nor fmt nor encoding/json, and why errors here
// are a [StartError] or an [ExecError] and not an os.SyscallError. The
// Spec is not sent as JSON for another reason too: encoding/json replaces bytes
// that are not UTF-8, and arguments, environment and paths may hold any byte.
//
// Measured with /bin/true (Go 1.26.8, Linux 6.18, two busy cores, medians of 400
// pairs): 0.55 ms bare; through the shim 1.3 to 1.9 ms more, with or without
// net/http and cobra in the binary. An empty Go program alone takes 0.5 ms
// more. BenchmarkSpawn measures the same in the test binary, whose own imports
// sort before this package: 3 ms more.
//
// # Threads of the parent
//
// Start forks on the calling thread. PR_SET_PDEATHSIG of a program follows the
// thread that forked it (prctl(2)), so that thread must live as long as the
// children: call Start from the process's main thread, locked.
//
// Linux only. Elsewhere Start fails with errors.ErrUnsupported.
package shim
