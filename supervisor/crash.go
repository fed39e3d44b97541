package supervisor

// closing notes the addresses of sockets that a crash loop is about to close: a port
// that the kernel has chosen is to be the same at the next try.
func (l *loop) closing() {
	for key := range l.missing {
		if l.sockets.open[key] != nil { // a reload has bound it
			delete(l.missing, key)
		}
	}
	for _, svc := range l.state.Services {
		if !svc.closed() || svc.Removed || l.state.Stop != nil {
			continue
		}
		for _, k := range sharedKeys(svc.Spec) {
			if s := l.sockets.open[k.Key]; s != nil {
				l.missing[k.Key] = heldSocket{Addr: s.Addr(), Options: s.Options(), Inode: s.Inode()}
			}
		}
	}
}

// waitsClosed reports whether a service waits for its next try with its sockets
// closed: then there is something to go on with although nothing is open.
func (s *State) waitsClosed() bool {
	for _, svc := range s.Services {
		if svc.closed() && svc.Restart != nil {
			return true
		}
	}
	return false
}
