// Package wire is the protocol between the supervisor and a generation of a
// program, both ends of it.
//
// The connection is one SOCK_SEQPACKET socketpair, made by [Pair]. Its one end
// stays in the supervisor as a [Conn]; the other is inherited by the program,
// which finds its number in the environment variable [EnvFD] and wraps it with
// [NewConn]. Every packet is one JSON object of 1 to [MaxPacket] bytes, a
// [Message]; descriptors travel beside it as SCM_RIGHTS (unix(7)).
//
//	child       hello, sockets, bind, ready, draining, status, extend, bye
//	supervisor  sockets, bound, accept, ack, lame_duck, drain, error
//
// Compatibility: an unknown field is ignored, so fields may be added. An
// unknown verb is an error, which the receiver answers with [Error]; it never
// ends the connection. A change that an old peer would misread needs a new
// [Version]. testdata/v1 keeps a message of each kind as it was first released.
//
// Neither end trusts the other: a write never waits (a peer that does not read
// is a silent peer, see [ErrFull]), and no packet leaves a descriptor open that
// its receiver does not know about.
package wire
