// Command teststeps is a program that a test puts together: each argument is a
// step. When all have been taken it goes on serving until SIGTERM drains it. It
// knows nothing of package handover. After each step that has ended it writes
// the line "done: STEP"; one that fails ends it with status 1.
//
//	serve FD               accepts on an inherited descriptor
//	listen ADDR            binds this TCP address itself and serves there
//	listen-reuseport ADDR  the same, with SO_REUSEPORT
//	spin FD                accept(2) in a loop that never waits
//	notify TEXT            sends TEXT to NOTIFY_SOCKET, with a new line for each |
//	notify-and-end TEXT    has a child send it, and waits for the child's end
//	child STEP             has a child take the step and live on
//	wait FIFO              waits until somebody writes to the FIFO
//	undumpable             hides itself from all that lack CAP_SYS_PTRACE
//	end                    exits with 0
//
// What it serves is package site, as the generation in HANDOVER_GENERATION.
package main
