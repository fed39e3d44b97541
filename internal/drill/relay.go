package drill

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// relayQueue bounds the pieces under way in one direction; then the reader waits, as on a full network path.
const relayQueue = 64

// relayPiece is the size of one read, in bytes.
const relayPiece = 4 << 10

// piecePool holds the relay's buffers.
var piecePool = sync.Pool{New: func() any { return new([relayPiece]byte) }}

// Relay stands between clients and a TCP server and lets every byte, FIN and RST take a time to pass, each way. Half-close is
// forwarded as half-close, a reset as a reset (SO_LINGER with 0, socket(7)). Two things it cannot hide: the client's
// connect succeeds at once, so a server that refuses shows as a reset connection (DialFailures counts them); and the
// connection reaches the server without delay, before its first byte.
type Relay struct {
	delay    time.Duration
	listener *net.TCPListener
	dialer   dialer
	wg       sync.WaitGroup

	mu     sync.Mutex
	links  map[*link]struct{}
	closed bool

	accepted, refused, resets atomic.Int64
}

// RelayStats is what a relay has seen.
type RelayStats struct {
	Accepted     int // connections from clients
	DialFailures int // of them, those that the server did not take
	Resets       int // resets passed on, either way
}

// NewRelay listens on a free port of 127.0.0.1 and relays to server, an IP literal of loopback and port. delay is one way:
// 5 ms give a round trip of 10 ms. The caller calls Close.
func NewRelay(server string, delay time.Duration) (*Relay, error) {
	t, err := parseTarget("tcp", server)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	if !t.loopback() {
		return nil, fmt.Errorf("relay: address %s: %w", server, errNotLoopback)
	}
	ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	r := &Relay{delay: delay, listener: ln, dialer: dialer{target: t}, links: map[*link]struct{}{}}
	r.wg.Add(1)
	// Waited for by Close.
	go r.accept()
	return r, nil
}

// Addr is where clients connect to.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Stats tells what has passed.
func (r *Relay) Stats() RelayStats {
	return RelayStats{Accepted: int(r.accepted.Load()), DialFailures: int(r.refused.Load()), Resets: int(r.resets.Load())}
}

// Close accepts nothing more, resets the connections that are left, and waits for all goroutines.
func (r *Relay) Close() error {
	err := r.listener.Close()
	r.mu.Lock()
	r.closed = true
	for l := range r.links {
		l.reset()
	}
	r.mu.Unlock()
	r.wg.Wait()
	return err
}

func (r *Relay) accept() {
	defer r.wg.Done()
	for {
		c, err := r.listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// EMFILE and the like: the client waits in the queue meanwhile.
			time.Sleep(time.Millisecond)
			continue
		}
		r.accepted.Add(1)
		r.wg.Add(1)
		// Waited for by Close.
		go r.relay(c)
	}
}

// relay serves one client; it takes c.
func (r *Relay) relay(c *net.TCPConn) {
	defer r.wg.Done()
	up, err := r.dialer.dial(time.Now().Add(10 * time.Second))
	if err != nil {
		r.refused.Add(1)
		resetConn(c)
		return
	}
	l := &link{relay: r, over: make(chan struct{}), client: c, server: up.(*net.TCPConn)}
	if !r.add(l) {
		l.reset()
		return
	}
	var half sync.WaitGroup
	half.Add(2)
	// Both waited for below.
	go l.half(&half, l.client, l.server)
	go l.half(&half, l.server, l.client)
	half.Wait()
	r.mu.Lock()
	delete(r.links, l)
	r.mu.Unlock()
	// Both ends have sent FIN and all of it was passed on, or both were reset: closing says nothing new.
	_ = l.client.Close()
	_ = l.server.Close()
}

func (r *Relay) add(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.links[l] = struct{}{}
	}
	return !r.closed
}

// link is one client's connection and its counterpart.
type link struct {
	relay          *Relay
	client, server *net.TCPConn
	once           sync.Once
	over           chan struct{} // closed by reset
	finished       atomic.Int32  // directions whose FIN was passed on
}

// resetConn closes with RST.
func resetConn(c *net.TCPConn) {
	// Both fail only on a connection that is closed already.
	_ = c.SetLinger(0)
	_ = c.Close()
}

// reset ends both ends with RST.
func (l *link) reset() {
	l.once.Do(func() {
		close(l.over)
		resetConn(l.client)
		resetConn(l.server)
	})
}

// piece is something on its way: bytes, or the end.
type piece struct {
	at    time.Time // when it is to be passed on
	buf   *[relayPiece]byte
	n     int
	fin   bool
	reset bool
}

// half passes one direction on, from its reading to its end.
func (l *link) half(done *sync.WaitGroup, from, to *net.TCPConn) {
	defer done.Done()
	pieces := make(chan piece, relayQueue)
	var reader sync.WaitGroup
	reader.Add(1)
	// Waited for below.
	go l.read(&reader, from, pieces)
	l.write(to, pieces)
	reader.Wait()
}

// read reads until the end, then watches for a reset that follows a FIN.
func (l *link) read(done *sync.WaitGroup, from *net.TCPConn, pieces chan<- piece) {
	defer done.Done()
	defer close(pieces)
	for {
		buf := piecePool.Get().(*[relayPiece]byte)
		n, err := from.Read(buf[:])
		p := piece{at: time.Now().Add(l.relay.delay), buf: buf, n: n}
		if n == 0 {
			p.reset = errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ETIMEDOUT) || errors.Is(err, syscall.EPIPE)
			p.fin = !p.reset
		}
		select {
		case pieces <- p:
		case <-l.over:
			return
		}
		if p.fin {
			break
		}
		if p.reset {
			return
		}
	}
	if waitReset(from) {
		select {
		case pieces <- piece{at: time.Now().Add(l.relay.delay), reset: true}:
		case <-l.over:
		}
	}
}

// write passes on what read gave, each piece in its time.
func (l *link) write(to *net.TCPConn, pieces <-chan piece) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for p := range pieces {
		timer.Reset(time.Until(p.at))
		select {
		case <-timer.C:
		case <-l.over:
			return
		}
		var err error
		switch {
		case p.reset:
			l.relay.resets.Add(1)
			l.reset()
			return
		case p.fin:
			err = to.CloseWrite()
			l.finish()
		default:
			_, err = to.Write(p.buf[:p.n])
		}
		if p.buf != nil {
			piecePool.Put(p.buf)
		}
		if err != nil && !p.fin {
			// The receiver has reset its end; its sender has to hear of it too.
			l.relay.resets.Add(1)
			l.reset()
			return
		}
	}
}

// finish notes that a FIN was passed on. After the second one nothing can follow, and closing ends the wait for resets.
func (l *link) finish() {
	if l.finished.Add(1) == 2 {
		l.once.Do(func() {
			close(l.over)
			_ = l.client.Close()
			_ = l.server.Close()
		})
	}
}
