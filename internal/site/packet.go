package site

import (
	"errors"
	"fmt"
	"net"
)

// ServePacket answers every datagram that verifies, once, as the given generation, until c is closed or fails. It borrows
// c: the caller closes it, and ServePacket then returns nil. A read deadline that passes is an error like any other.
func ServePacket(c net.PacketConn, generation int) error {
	in, out := make([]byte, 2048), make([]byte, 0, 128)
	for {
		n, from, err := c.ReadFrom(in)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read a datagram as generation %d: %w", generation, err)
		}
		number, _, ok := parseSent(in[:n])
		if !ok {
			continue
		}
		out = appendAnswer(out[:0], generation, number)
		// An answer that cannot be sent is a datagram lost: the client counts it, and the next one may pass.
		_, _ = c.WriteTo(out, from)
	}
}
