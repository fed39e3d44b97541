// Command testchild is the program that the tests let handoverd run: a server
// that serves internal/site and that misbehaves on request.
//
// Environment:
//
//	TESTCHILD_MODE       how it behaves, see below; default ok
//	TESTCHILD_FAIL_GEN   N: only generation N behaves so, every other one is ok.
//	TESTCHILD_MODE_FILE  a file whose content, when there is any, is the mode.
//	                     Read once at start; it goes before both of the others.
//	TESTCHILD_COUNTS     a file that counts, see countbook_linux.go
//	TESTCHILD_SOCKETS    names of the sockets to listen on, with blanks between;
//	                     default http. The modes that take descriptor 3 and
//	                     udp have one socket.
//	TESTCHILD_NETWORK    of the socket: tcp (default), tcp4, tcp6, unix
//	TESTCHILD_ADDR       where it binds without a supervisor; 127.0.0.1:0
//	TESTCHILD_LINES      not empty: a line to stderr for each request
//	TESTCHILD_DELAY      a duration, for the modes that wait
//	TESTCHILD_HEALTH     "NAME NETWORK": the socket of a second server, which
//	                     answers 200, and
//	TESTCHILD_HEALTH_FILE  503 while this file says "bad", nothing while it
//	                     says "hang"
//
// Modes that use package handover:
//
//	ok               ready at once, drained losslessly
//	crash-init       exits with 3 after TESTCHILD_DELAY, never ready
//	crash-accepting  the same, but serves until then, on the raw descriptor
//	hang-init        never ready
//	hang-accepting   never ready, but serves, on the raw descriptor
//	ready-then-die   exits with 3 TESTCHILD_DELAY after it said ready, without
//	                 waiting for the acknowledgement
//	ignore-drain     serves on whatever it is told; SIGTERM is ignored
//	double-fork      ok, and starts a grandchild in a session of its own that
//	                 sleeps; its pid is the line "grandchild PID" on stdout
//	udp              answers datagrams of the socket http
//
// Modes that do not, and take descriptor 3 as it comes:
//
//	accept-raw           accepts at once through the runtime's poller; SIGTERM
//	                     drains it
//	accept-notify        the same, and sends READY=1 to NOTIFY_SOCKET
//	accept-newline       the same, and writes a newline to HANDOVER_READY_FD
//	raw-ready-then-die   accept-notify that exits with 3 after TESTCHILD_DELAY:
//	                     a program that has accepted when it dies in settle
//	raw-ignore-drain     accept-raw that ignores SIGTERM
//	blocking-accept      a thread that sits in accept(2), for each connection
//	select               a thread that sits in select(2) with the socket in the set
//
// A delay of 0 is no delay. An unknown mode exits with 2.
package main
