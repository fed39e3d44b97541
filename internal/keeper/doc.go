// Package keeper is the process that holds a copy of what handoverd would lose
// when it is killed: every bound socket, and its ends of each generation's
// channels. It is the same binary in a mode without logic ([Serve]): it holds
// descriptors by name, lets them go when told, and hands copies to whoever
// proves that he has the runtime directory's lock.
//
//	handoverd ── hello (the lock), keep, drop ──► keeper     beside its work
//	          ── hello (the lock), take ────────► keeper     after another was killed
//	          ◄── hello, kept, error ────────────
//
// What is sent lies in the socket's queue from the moment that sendmsg(2)
// returns, and the keeper reads it whatever becomes of the sender. So nothing
// is waited for: a descriptor counts as kept once it has been sent.
//
// The keeper holds duplicates and never reads from them. Messages that a child
// sends while no handoverd runs wait in the channels, and the child sees no end.
//
// # Who may ask
//
// The socket is in the runtime directory, mode 0600. A client must have the
// keeper's own user (SO_PEERCRED, unix(7)), and sends a descriptor of a lock file
// along, [LockName]: the lock of flock(2) belongs to the open file, so the keeper
// asks for it on that descriptor, which succeeds only if this open file has it. Who
// holds the runtime directory makes that file anew ([Claim]), so there is one such
// open file in the world.
//
// # Protocol
//
// SOCK_SEQPACKET; one JSON object a packet, of at most [MaxPacket] bytes and 253
// descriptors (SCM_MAX_FD, unix(7)), one for each name. Unknown fields are
// ignored. Whatever the version that hello names, hello, take, kept and error are
// as they are here: a handoverd of another version can take everything back and
// start a keeper of its own.
//
// Linux only. Elsewhere everything fails with errors.ErrUnsupported.
package keeper
