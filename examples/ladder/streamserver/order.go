package main

import (
	"context"
	"net"
	"sync"

	"github.com/handoverd/handover/drain"
)

// A door is a listener that tells when it has been closed.
type door struct {
	net.Listener
	once   sync.Once
	closed chan struct{}
}

func (d *door) Close() error {
	err := d.Listener.Close()
	d.once.Do(func() { close(d.closed) })
	return err
}

// goodbyes are the streams as a Target that waits for the door: a client that is
// told to come back does so at once, and shall not meet this process again.
type goodbyes struct {
	*drain.Streams
	door *door
}

// Shutdown waits no longer for the door than ctx lasts.
func (g goodbyes) Shutdown(ctx context.Context) error {
	select {
	case <-g.door.closed:
	case <-ctx.Done():
	}
	return g.Streams.Shutdown(ctx)
}
