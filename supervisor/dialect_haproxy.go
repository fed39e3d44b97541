package supervisor

import "golang.org/x/sys/unix"

// haproxyDialect is HAProxy with "bind fd@${HANDOVER_FD_NAME}". The numbers
// come with the native dialect; started as -Ws it also says READY=1.
// SIGUSR1 is its soft stop, while SIGTERM is an exit at once (HAProxy
// management guide, 4, "Stopping and restarting HAProxy").
type haproxyDialect struct{}

func (haproxyDialect) environ(h *handout) []string { return []string{"NOTIFY_SOCKET=" + h.notify} }
func (haproxyDialect) listenPID() bool             { return false }
func (haproxyDialect) drainSignal() unix.Signal    { return unix.SIGUSR1 }
