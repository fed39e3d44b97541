// Package drain retires a program without losing work: it stops admitting,
// lets what was admitted finish, and puts a deadline behind both.
//
// Inside a Go program:
//
//   - [HTTP] wraps an http.Server so that it leaves losslessly. Its Shutdown
//     closes only the listeners and goes on serving the connections it has
//     accepted, each of which is told to go away by its next response.
//   - [Group] does the same for what net/http does not know: raw TCP, hijacked
//     connections, jobs.
//   - [All] drains several of them (or anything with Shutdown and Close) at
//     the same time under one context, and closes the stragglers.
//
// From outside, for a supervisor, [Reload] and [Stop] give the signal ladder
// (drain, SIGTERM, SIGKILL) as plain data, and [Budget] refuses times that
// cannot work. Nothing here sends a signal or starts a timer of its own for it.
//
// The package assumes that the listening socket lives on in another process:
// connections that wait in the kernel's accept queue when a listener is closed
// are left there for the other holders of the socket. A program that holds its
// socket alone resets what is queued, with this package as without.
//
// It imports the standard library only and nothing in it is particular to Linux.
package drain
