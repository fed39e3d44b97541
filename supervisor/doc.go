// Package supervisor owns the listening sockets of services and hands them to
// one generation of each service's program after the other.
//
//	Config ──diff──► sockets (bound once, owned for the life of handoverd)
//	                    │
//	reload, signal ─┐   ▼ spawn: exec shim, "go" after the state is written
//	CLI request ────┼─► loop ──────────────► the program ══ control socket
//	child events ───┤  (one   ◄── ready, accepting, exit ──┘
//	earliest timer ─┘  goroutine)
//	                     │ Commit (state written first)
//	                     ▼
//	                 retire the old one: drain message or signal → SIGTERM → SIGKILL
//
// The invariant: of each service at most one generation is starting and at most
// one is serving; every other living generation is draining, ending or being
// killed, under a deadline. Listening sockets are open in handoverd from their
// first bind until it exits or the configuration drops them.
//
// The decisions are made by transition, a pure function of state, event and
// time. One goroutine, the loop, owns the state, feeds it events, writes the
// state file, and then carries out the actions. What waits (a child's messages,
// /proc, a check command) has a goroutine of its own that posts events.
package supervisor
