package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/cloudflare/tableflip"

	"github.com/handoverd/handover/internal/wire"
)

// self is a program that upgrades itself, or, under socket activation, only stops by itself.
type self struct {
	Options
	child    *Child
	upgrader *tableflip.Upgrader // nil under socket activation
	hangup   chan os.Signal      // never fires under socket activation
	stop     chan os.Signal
	ready    chan struct{} // closed by Ready
	closing  chan struct{} // closed by Close
	once     sync.Once     // for closing
	ended    chan struct{} // closed when watch has returned
}

// startSelf makes a process without supervisor its own. A signal that comes from now on is not lost.
func (c *Child) startSelf(o Options) error {
	s := &self{
		Options: o, child: c,
		hangup: make(chan os.Signal, 1), stop: make(chan os.Signal, 1),
		ready: make(chan struct{}), closing: make(chan struct{}), ended: make(chan struct{}),
	}
	if !c.env.activated {
		var err error
		if s.upgrader, err = tableflip.New(tableflip.Options{UpgradeTimeout: o.UpgradeTimeout, PIDFile: o.PIDFile}); err != nil {
			return fmt.Errorf("handover: standalone: %w", err)
		}
		signal.Notify(s.hangup, syscall.SIGHUP)
	}
	if !o.KeepSignals {
		signal.Notify(s.stop, syscall.SIGTERM, syscall.SIGINT)
	}
	c.self = s
	go s.watch() // Close waits for it
	return nil
}

// watch obeys signals until the drain begins. Afterwards SIGHUP is ignored, and a second SIGTERM or SIGINT does what it
// does by default.
func (s *self) watch() {
	defer close(s.ended)
	defer signal.Stop(s.stop)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var exit <-chan struct{}
	if s.upgrader != nil {
		exit = s.upgrader.Exit()
	}
	done := make(chan error, 1)
	wanted, busy, ready := false, false, s.ready
	for {
		if wanted && !busy && ready == nil {
			wanted, busy = false, true
			go s.upgrade(ctx, done) // nobody needs to wait: it ends with ctx or its upgrade, and done has room for its one value
		}
		select {
		case <-s.hangup:
			wanted = true
		case <-ready:
			ready = nil
		case err := <-done:
			busy = false
			if err != nil {
				s.Logf("generation %d serves on: upgrade: %v", s.child.env.generation, err)
			}
		case <-exit:
			s.drain("reload", s.DrainTimeout)
			return
		case <-s.stop:
			s.end()
			s.drain(wire.ReasonStop, s.StopTimeout)
			return
		case <-s.closing:
			s.end()
			return
		}
	}
}

// upgrade waits until the generation before this one is gone, tableflip upgrades no sooner, and then does it.
func (s *self) upgrade(ctx context.Context, done chan<- error) {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	err := s.upgrader.WaitForParent(soon)
	cancel()
	if errors.Is(err, context.DeadlineExceeded) {
		s.Logf("the upgrade waits until generation %d has drained", s.child.env.generation-1)
		_ = s.upgrader.WaitForParent(ctx) // only its time matters
	}
	if ctx.Err() != nil {
		done <- ctx.Err()
		return
	}
	// How the one before this has ended is no reason against the next upgrade.
	done <- withNextGeneration(s.child.env.generation+1, func() error { return untilHeard(ctx, s.upgrader.Upgrade) })
}

// untilHeard upgrades when this process is ready and the one before it is gone. tableflip (1.2.3, Upgrader.run) draws by lot
// between a request and news of these two that it has not heard yet, and refuses by what it does not know: it is asked
// again, as nothing has been done then.
func untilHeard(ctx context.Context, upgrade func() error) error {
	pause := time.NewTicker(time.Millisecond)
	defer pause.Stop()
	for {
		err := upgrade()
		if err == nil || err.Error() != tableflipNotReady && err.Error() != tableflipHasParent {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// What tableflip says then. It has no names for these errors.
const (
	tableflipNotReady  = "process is not ready yet"
	tableflipHasParent = "parent hasn't exited"
)

// end is the end without a successor: paths of UNIX sockets are removed.
func (s *self) end() {
	if s.upgrader != nil {
		s.upgrader.Stop()
		<-s.upgrader.Exit()
	}
}

func (s *self) drain(why string, within time.Duration) { s.child.drain(why, int64(bootNow()+within)) }

// sayReady tells the generation before this one, and begins to accept.
func (s *self) sayReady() error {
	if s.upgrader != nil {
		if err := s.upgrader.Ready(); err != nil && !s.orphaned() {
			s.child.accept.settle(err)
			return fmt.Errorf("handover: ready: %w", err)
		}
		s.child.accept.settle(nil)
	}
	close(s.ready)
	return nil
}

// orphaned says that the generation before this one has died, so that it cannot be told and nobody serves but this one.
func (s *self) orphaned() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.upgrader.WaitForParent(ctx)
	return s.upgrader.HasParent() && !errors.Is(err, context.DeadlineExceeded)
}

// close ends watch, and the waiting of listeners that do not accept yet.
func (s *self) close() {
	s.once.Do(func() { close(s.closing) })
	<-s.ended
	s.child.accept.settle(net.ErrClosed)
}

// open gives a descriptor of the socket called name: the last generation's, or a new one.
func (s *self) open(ctx context.Context, name, network, address string, listening bool) (int, error) {
	if listening {
		return s.listen(ctx, name, network, address)
	}
	return s.listenPacket(ctx, name, network, address)
}

func (s *self) listen(ctx context.Context, name, network, address string) (int, error) {
	key := socketName(name, network, address)
	ln, err := s.upgrader.Listener(network, key)
	if err == nil && ln == nil {
		if ln, err = new(net.ListenConfig).Listen(ctx, network, address); err != nil {
			return -1, err
		}
		// Neither a TCP nor a UNIX listener of package net lacks what it asks for.
		err = s.upgrader.AddListener(network, key, ln.(tableflip.Listener))
	}
	return duplicate(ln, err)
}

func (s *self) listenPacket(ctx context.Context, name, network, address string) (int, error) {
	key := socketName(name, network, address)
	pc, err := s.upgrader.PacketConn(network, key)
	if err == nil && pc == nil {
		if pc, err = new(net.ListenConfig).ListenPacket(ctx, network, address); err != nil {
			return -1, err
		}
		err = s.upgrader.AddPacketConn(network, key, pc.(tableflip.PacketConn))
	}
	return duplicate(pc, err)
}

// socketName is the address under which tableflip keeps a socket. It removes the path of a UNIX socket by that; others
// can be told apart by their names, so that two of port 0 are two.
func socketName(name, network, address string) string {
	switch network {
	case "unix", "unixpacket", "unixgram":
		return address
	}
	return name + " " + address
}

// duplicate takes conn, gives a descriptor of its socket, and closes it: the copy is in no epoll set.
func duplicate(conn interface{ Close() error }, err error) (int, error) {
	if err != nil {
		return -1, err
	}
	defer func() { _ = conn.Close() }() // another descriptor of the socket stays
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	if cerr := raw.Control(func(n uintptr) { fd, err = duplicateFD(n) }); cerr != nil {
		return -1, cerr
	}
	return fd, err
}
