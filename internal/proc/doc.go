// Package proc looks at processes, waits for them and ends them.
//
// It holds what the supervisor needs to know of the kernel's process table and nothing of generations, services or
// policy: a clock that survives a restart (Instant), signals that cannot hit a stranger (pidfd and start time), a
// reaper that keeps a dead child's number from being used again until it is released (Reaper), everything that a
// leader started (Members), and which processes wait for connections on which sockets (Looker, Listening).
//
// Nothing here changes the process looked at. Looking needs the kernel's leave: a process of another user can be
// seen only with CAP_SYS_PTRACE, or by a helper that runs as that user (Helper); see Blindness.
//
// Sources: man proc(5) and its proc_pid_*(5) pages, ptrace(2) "Ptrace access mode checking", wait(2), pidfd_open(2),
// pidfd_send_signal(2), sock_diag(7), epoll(7).
package proc
