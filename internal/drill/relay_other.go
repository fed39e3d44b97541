//go:build !linux

package drill

import "net"

// waitReset cannot see a reset after a FIN here.
func waitReset(*net.TCPConn) bool { return false }
