// Package drain ends a program without losing work: it stops admitting, lets
// what was admitted finish, closes what the work needed, and puts a deadline
// behind all of it.
//
// # Inside a Go program
//
// [Sequence] is the whole order, from the signal to the exit: lame duck (still
// serving, while the routing layer is told), drain, closers, done. It needs no
// supervisor, and takes one. What it drains are Targets:
//
//   - [HTTP] wraps an http.Server so that it leaves losslessly, on HTTP/1 and
//     HTTP/2. Its Shutdown closes only the listeners and goes on serving the
//     connections it has accepted, each of which is told to go away.
//   - [Streams] says goodbye to long-lived connections, WebSockets, event
//     streams, raw TCP, each in its own protocol, spread over a window.
//   - [Workers] claim jobs from a queue; they finish the job in hand or give it
//     back.
//   - [Graceful] takes a server with GracefulStop and Stop, such as gRPC's.
//   - [Group] is work in flight of any other kind.
//
// [All] drains several of them, or anything with Shutdown and Close, under one
// context, for programs that want no more than that.
//
// The wait of a lame duck is a control loop over the routing layer, and there are
// three of them: [Timer] waits for a fixed time, [ProbesSeen] until the probers
// have seen readiness fail, [Acknowledged] until the balancer says so. Which one
// ended the wait, and when the last new connection came, is in the [Report].
//
// # From outside, for a supervisor
//
// [Reload] and [Stop] give the signal ladder (drain, SIGTERM, SIGKILL) as plain
// data, and [Budget] refuses times that cannot work and draws the time line of
// those that can. Nothing of these sends a signal or starts a timer.
//
// # What it relies on
//
// The listening socket should live on in another process, or nobody should
// connect any more (that is what a lame duck is for): connections that wait in
// the kernel's accept queue when a listener is closed are left there for the
// other holders of the socket. A program that holds its socket alone resets what
// is queued, with this package as without.
//
// Beside the standard library it imports one small package of this module, and
// nothing in it is particular to Linux.
package drain
