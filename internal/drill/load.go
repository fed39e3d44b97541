package drill

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// Mode is what a load does with its connections.
type Mode string

// The modes.
const (
	ModeFresh     Mode = "fresh"     // GET, one connection for each request
	ModeKeepAlive Mode = "keepalive" // GET, again and again on the same connections
	ModePost      Mode = "post"      // POST of numbered and checksummed bodies on the same connections
	ModeStream    Mode = "stream"    // GET of chunked answers that last Delay to Delay + Spread, on the same connections
	ModeTCP       Mode = "tcp"       // connect and close, nothing sent
	ModeUDP       Mode = "udp"       // numbered datagrams, each to be answered exactly once
	ModeWebSocket Mode = "websocket" // numbered messages on connections that stay, each to be answered
	ModeH2C       Mode = "h2c"       // HTTP/2 without TLS and without asking (RFC 9113, 3.3): GET in concurrent streams
	ModeH2        Mode = "h2"        // the same over TLS, agreed on by ALPN
)

// Load says what a run sends. Network, Address and Mode must be set; each other field's zero value is a sensible default.
type Load struct {
	Network string // "tcp", "unix" or "udp"
	Address string // an IP literal of loopback (or localhost) and port, or a path, or @name for an abstract socket
	Mode    Mode

	// Rate is the number of requests due each second, evenly spaced. 0: closed loop, as fast as the clients can.
	Rate float64
	// Clients is the number of requests at once, which is that of connections (ModeUDP: of sockets). With a rate a request
	// waits when all are busy, still counted from when it was due; where a second's requests wait already, or when one has waited
	// for Timeout, it is unsent, a fault of the generator.
	// 0: 16 without a rate and for ModeUDP, else 512.
	Clients int
	// Pause is waited by each client between an answer and its next request (closed loop only). Clients begin spread over
	// it. 0: none.
	Pause time.Duration
	// Timeout bounds each request from its begin, connect included. 0: 10 s, ModeUDP 2 s.
	Timeout time.Duration
	// Delay and Spread set how long the server takes for an answer: from Delay to Delay + Spread, in milliseconds.
	// 0 and 0: ModeStream 1 s to 2 s, other modes ask /fast. Modes other than ModeStream ask /slow when they are set; ModePost, ModeTCP, ModeUDP and ModeWebSocket cannot.
	Delay, Spread time.Duration
	// Payload is the filling of each ModePost body and ModeWebSocket message, in bytes. 0: 256.
	Payload int
	// Streams is the number of clients that share a connection over HTTP/2, which is that of its streams at a time where the
	// server allows as many. 0: 16.
	Streams int
	// TLS makes all modes but ModeTCP speak TLS; nil: none, which ModeH2 refuses. It needs a ServerName, or InsecureSkipVerify.
	// Sessions are not resumed unless it has a ClientSessionCache. Start copies it, and sets NextProtos.
	TLS *tls.Config
	// Duration and Requests bound the run: it stops sending by itself after either. 0: 10 minutes; 50 million.
	Duration time.Duration
	Requests int
	// Host is the Host header. Empty: "drill".
	Host string
	// GenerationHeader is a header field in which a proxy that stands before the server tells its own generation, in decimal: where
	// it is set, that generation is the one that counts, in windows, reports and WaitGeneration. The server's own is verified as
	// ever. A good answer without it is KindWrongBody. Empty: the generation is the server's. ModeTCP and ModeUDP have no header;
	// in ModeWebSocket it is the handshake's.
	GenerationHeader string
	// Plain, where it is set, says that the server does not speak the contract. Delay and Spread cannot be set then, and
	// ModeStream is a GET whose answer may take its time. ModeUDP and ModeWebSocket want answers that hold the number sent, as an
	// echo does.
	Plain *Plain
	// Remote allows addresses that are not loopback's.
	Remote bool
}

// Bounds of what a Load may ask for.
const (
	maxClients  = 20_000
	maxRate     = 200_000
	maxDuration = 4 * time.Hour
	maxPayload  = 512 << 10
	maxStreams  = 1000
)

// target is a checked Load's address.
type target struct {
	network string         // "tcp4", "tcp6", "unix", "udp4", "udp6"
	addr    netip.AddrPort // tcp and udp
	path    string         // unix
}

// withDefaults checks the load and fills in its zero fields.
func (l Load) withDefaults() (Load, target, error) {
	t, err := parseTarget(l.Network, l.Address)
	if err != nil {
		return l, t, err
	}
	if !l.Remote && !t.loopback() {
		return l, t, fmt.Errorf("address %s: %w", l.Address, errNotLoopback)
	}
	if l.Plain != nil && (l.Delay != 0 || l.Spread != 0) {
		return l, t, errors.New("a server without the contract cannot be told how long to take")
	}
	if err := l.checkMode(); err != nil {
		return l, t, err
	}
	setDefault(&l.Timeout, 10*time.Second)
	setDefault(&l.Duration, 10*time.Minute)
	setDefault(&l.Requests, 50_000_000)
	setDefault(&l.Payload, 256)
	setDefault(&l.Streams, 16)
	switch {
	case l.Clients != 0:
	case l.Rate > 0 && l.Mode != ModeUDP:
		l.Clients = 512
	default:
		l.Clients = 16
	}
	if l.Mode == ModeStream && l.Plain == nil && l.Delay == 0 && l.Spread == 0 {
		l.Delay, l.Spread = time.Second, time.Second
	}
	switch {
	case l.Clients < 0 || l.Clients > maxClients:
		err = fmt.Errorf("clients: %d, want 1 to %d", l.Clients, maxClients)
	case l.Rate < 0 || l.Rate > maxRate:
		err = fmt.Errorf("rate: %v/s, want at most %d/s", l.Rate, maxRate)
	case l.Duration < 0 || l.Duration > maxDuration:
		err = fmt.Errorf("duration: %v, want at most %v", l.Duration, maxDuration)
	case l.Payload < 0 || l.Payload > maxPayload:
		err = fmt.Errorf("payload: %d bytes, want at most %d", l.Payload, maxPayload)
	case l.Streams < 0 || l.Streams > maxStreams:
		err = fmt.Errorf("streams: %d, want 1 to %d", l.Streams, maxStreams)
	case l.Requests < 0 || l.Pause < 0 || l.Timeout < 0 || l.Delay < 0 || l.Spread < 0:
		err = errors.New("negative number of requests or time")
	case l.Delay+l.Spread >= l.Timeout:
		err = fmt.Errorf("answers that take up to %v need a longer timeout than %v", l.Delay+l.Spread, l.Timeout)
	}
	return l, t, err
}

// setDefault sets *p when it has its zero value.
func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (l *Load) checkMode() error {
	datagram := strings.HasPrefix(l.Network, "udp")
	switch l.Mode {
	case ModeFresh, ModeKeepAlive, ModeStream:
	case ModeH2C, ModeH2:
		if (l.TLS != nil) != (l.Mode == ModeH2) {
			return errors.New("mode h2c goes without TLS, mode h2 with it")
		}
	case ModePost, ModeTCP, ModeWebSocket:
		if l.Delay != 0 || l.Spread != 0 {
			return fmt.Errorf("mode %s has no delay", l.Mode)
		}
	case ModeUDP:
		if l.Rate == 0 || l.Delay != 0 || l.Spread != 0 {
			return errors.New("mode udp needs a rate and has no delay")
		}
		setDefault(&l.Timeout, 2*time.Second)
	default:
		return fmt.Errorf("unknown mode %q", l.Mode)
	}
	if l.GenerationHeader != "" && (l.Mode == ModeTCP || l.Mode == ModeUDP) {
		return fmt.Errorf("mode %s has no header %s", l.Mode, l.GenerationHeader)
	}
	if datagram != (l.Mode == ModeUDP) {
		return fmt.Errorf("mode %s does not go with network %q", l.Mode, l.Network)
	}
	if l.Pause != 0 && l.Rate != 0 {
		return errors.New("a pause goes with the closed loop only: leave out the rate")
	}
	return nil
}

// errNotLoopback keeps a mistyped address from becoming an attack on somebody.
var errNotLoopback = errors.New("not a loopback address")

func parseTarget(network, address string) (target, error) {
	if network == "unix" {
		if address == "" {
			return target{}, errors.New("address: empty path")
		}
		return target{network: network, path: address}, nil
	}
	if network != "tcp" && network != "udp" {
		return target{}, fmt.Errorf("network: %q, want tcp, udp or unix", network)
	}
	if port, ok := strings.CutPrefix(address, "localhost:"); ok {
		address = "127.0.0.1:" + port
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return target{}, fmt.Errorf("address: %w", err)
	}
	if ap.Port() == 0 {
		return target{}, fmt.Errorf("address %s: port 0", address)
	}
	ap = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	if ap.Addr().Is4() {
		return target{network: network + "4", addr: ap}, nil
	}
	return target{network: network + "6", addr: ap}, nil
}

// loopback reports whether the target is on this machine.
func (t target) loopback() bool { return t.network == "unix" || t.addr.Addr().IsLoopback() }

// overHTTP2 says whether clients share connections.
func (l *Load) overHTTP2() bool { return l.Mode == ModeH2C || l.Mode == ModeH2 }

// tlsConfig is the connections' own.
func (l *Load) tlsConfig() *tls.Config {
	if l.TLS == nil || l.Mode == ModeTCP {
		return nil
	}
	c := l.TLS.Clone()
	c.NextProtos = nil
	if l.Mode == ModeH2 {
		c.NextProtos = []string{"h2"}
	}
	return c
}
