// Package sdnotify speaks sd_notify(3) on both sides: [Listen] and
// [Socket.Recv] for the supervisor, [Notify] for a program under systemd, and
// [Sender] for the supervisor under systemd. It also knows how descriptors are named in
// systemd's store, and what systemctl prints about a unit.
//
// A message is one datagram of newline-separated KEY=VALUE assignments, sent
// to the UNIX socket that $NOTIFY_SOCKET names. [Parse] reads one; like
// systemd it ignores what it does not know, so a program may say more than
// this package understands.
package sdnotify
