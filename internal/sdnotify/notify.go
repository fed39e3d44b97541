package sdnotify

import (
	"fmt"
	"net"
	"time"
)

// sendTimeout bounds Notify: a service manager that has stopped reading must
// not stop the program that reports to it.
const sendTimeout = 5 * time.Second

// Notify sends state, one or more KEY=VALUE lines, to socket: a path or, with
// a leading "@", an abstract name. It waits at most 5 s for room in the
// receiver's queue.
func Notify(socket, state string) error {
	if socket == "" || (socket[0] != '/' && socket[0] != '@') {
		return fmt.Errorf("sdnotify: socket %q: neither a path nor an abstract name", socket)
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("sdnotify: %w", err)
	}
	defer func() { _ = conn.Close() }() // sent or not is known by then
	if err := conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return fmt.Errorf("sdnotify: %w", err)
	}
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("sdnotify: %w", err)
	}
	return nil
}
