// Package fdpass makes sockets and moves descriptors between processes. It
// knows nothing of generations or services.
//
// A [Socket] is one bound socket, made by raw system calls so that its family,
// options and status flags are exactly those that were asked for ([Bind],
// [Adopt]). [SendFDs] and [RecvFDs] pass raw descriptors over a UNIX socket;
// [Send] and [Recv] do the same with *os.File and *net.UnixConn. [Dup] is the
// only way from a connection to a file. [Set] and [Inherited] are what a started
// program gets.
//
// # Ownership
//
// Three words say who closes a descriptor:
//
//   - a function that takes a descriptor closes it, now or later, also when it
//     fails, unless it says otherwise;
//   - one that borrows a descriptor leaves it open and needs it open only until
//     it returns;
//   - one that returns a descriptor leaves closing it to the caller. On error
//     it returns none and leaves none open.
//
// Every descriptor that this package makes is close-on-exec.
//
// # O_NONBLOCK
//
// The status flags belong to the open file description, which all holders of a
// passed socket share. A [Socket] is made non-blocking once (unless its options
// say otherwise); nothing else here sets or clears the flag. The Fd method of
// [os.File] and exec.Cmd.ExtraFiles may clear it for everybody (golang/go#29277)
// and so are not used.
//
// # The poller
//
// [os.NewFile] puts a non-blocking descriptor into the runtime's epoll set. For
// a listening socket that would wake this process for each connection that
// another one is to accept, and it would look from outside as if this process
// were accepting. So files of listening sockets and of unconnected datagram
// sockets are made here outside of the poller: they serve to be held, passed on,
// or given to [net.FileListener] and [net.FilePacketConn] (which duplicate and
// register the duplicate), not to be read.
//
// The package works on Linux. Elsewhere it compiles, and what needs a socket
// returns an error that wraps [errors.ErrUnsupported].
package fdpass
