// Package handover lets a Go program run under handoverd, which owns its
// listening sockets and replaces the program without closing them. A whole
// server needs five calls:
//
//	child, err := handover.Inherit()
//	ln, err := child.Listen("http", "tcp", ":8080")
//	// start serving ln in a goroutine
//	err = child.Ready()      // the previous generation begins to drain
//	<-child.Draining()       // the next generation has taken over
//	ctx, cancel := child.DrainContext(context.Background())
//	defer cancel()
//	err = drain.All(ctx, server)
//
// The same program runs under systemd socket activation (LISTEN_FDS; Ready
// sends READY=1) and by itself, where Listen binds the address it is given.
// With Standalone in place of Inherit it upgrades itself there, on SIGHUP.
//
// What the package promises:
//
//   - Nothing is accepted before handoverd says so, which it does when this
//     generation has said ready and lived through settle, or at once where
//     nothing else serves. Until then a listener is not even in the process's
//     epoll set (epoll(7)). So a generation that dies while it starts beside a
//     serving one takes no connection with it.
//   - A damaged environment is an error. A supervised program never falls back
//     to binding for itself.
//   - If the supervisor dies, a serving program serves on.
//   - Nothing here removes the path of a UNIX socket that it did not bind.
//
// Inherit installs no signal handler and reads no file. Signals stay the program's
// own; handoverd sends SIGTERM to a program that uses this package only if the
// drain message was received and not answered, or shortly before the deadline.
package handover
