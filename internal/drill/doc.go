// Package drill drives servers from the client's side and counts, exactly and by kind, what a reload costs the client: a
// server's log cannot see a refused connection.
//
// It speaks HTTP/1.1, HTTP/2 and WebSocket with clients of its own, because net/http's retries: a request on a reused
// connection that the server closed under it is sent again there, and the loss is never seen. Here nothing is ever sent
// twice, but a stream that an HTTP/2 server refused and said to be unprocessed, once, and that is counted
// ([Report.RefusedStreams]). Each request
// ends in exactly one of: answered, a failure of one [Kind], or a fault of the generator (no free port, no descriptor).
//
// A server need not speak the contract: [Load.Plain] checks what can be proved of any. A [Load] says what to send; [Start] begins a [Run]; [Run.Stop] ends it, waits for everything in flight, and gives the
// [Report]. While it runs, [Run.Mark] opens a [Window] (one reload), and [Run.WaitGeneration] tells when a client has seen
// a generation. [Relay] stands between the two ends and adds a delay.
//
// # Open and closed loop
//
// With a rate, requests are sent when they are due, whatever became of the earlier ones, and latency is counted from when
// they were due: a server that stalls for a second is seen to stall by every request of that second. Without a rate each
// client sends its next request when it has the answer (and has paused).
//
// # Connections
//
// A good connection is never reset. In [ModeFresh] every request says Connection: close, and the client reads to EOF, so
// the server closes first and TIME_WAIT is on its side. In the other modes an answer with Connection: close makes the
// client read to EOF, close, and open another connection for the next request; that is no failure. A connection that the
// server closed without saying so fails the next request on it, marked as reused.
//
// Over HTTP/2 several clients share a connection, and a reader sees its end, as that of every client there does: with no
// stream open it costs nothing. A WebSocket has a reader, too: one that ends without a close frame is a loss at once, as a
// request of its own where no message is under way ([KindClosed], [Report.Closes]).
//
// Towards 127.0.0.0/8 the connections come from 127.0.0.2 to 127.0.0.250 in turn, and with IP_BIND_ADDRESS_NO_PORT (Linux 4.2,
// ip(7)) the kernel chooses the port at connect, where it need be free only for this pair of addresses: 28,000 ports times
// 249 addresses. It also makes it impossible that a socket connects to itself when the server's port is closed.
//
// # Bounds
//
// A run sends to loopback addresses and UNIX sockets only (unless Load.Remote is set), and ends by itself after Load.Duration or Load.Requests. The
// number of goroutines is that of the clients and a few more, and one for each connection over HTTP/2 and each WebSocket; a
// relay has five for each connection.
package drill
