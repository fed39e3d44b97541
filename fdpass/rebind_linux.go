package fdpass

// Rebind binds a new socket at the address of a UNIX socket that cannot be brought back
// to life: it was shut down (ErrShutDown), or its path and the hard link beside it
// are gone (ErrNoLink). The path is the new one's from then on; between the two there is
// a moment without it, in which a client is told ENOENT where it was refused before.
// The caller owns the new socket, and still this one, whose holders have it as it is: no
// holder of the old one accepts what comes to the new one.
//
// The name of an abstract socket is taken as long as a process holds it: EADDRINUSE.
func (s *Socket) Rebind() (*Socket, error) {
	if err := s.open(); err != nil {
		return nil, s.fail("bind", err)
	}
	if err := s.Unlink(); err != nil {
		return nil, err
	}
	return Bind(s.addr, s.opts)
}
