package fdpass

import (
	"fmt"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Apply gives an open socket new options: the backlog at once for all holders,
// and the mode, owner and group of a UNIX path. An owner or group that is no
// longer set becomes that of this process. If o changes any other option
// ([Options.Diff]), nothing is applied and the error names it. A path that was
// removed or replaced is an error: Restore it first.
func (s *Socket) Apply(o Options) error { return s.fail("apply", s.apply(o)) }

func (s *Socket) apply(o Options) error {
	if err := s.open(); err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	a, err := Canonical(s.addr, o)
	if err != nil {
		return err
	}
	kept, refused := s.opts.Diff(o)
	if a.Key() != s.addr.Key() {
		refused = append(refused, "v6only")
	}
	if len(refused) > 0 {
		return fmt.Errorf("%s cannot change on an open socket: it needs a new one", strings.Join(refused, ", "))
	}
	if s.addr.onDisk() && len(kept) > 0 {
		if err := s.applyPath(o); err != nil {
			return err
		}
	}
	if !s.addr.Kind.Datagram() && s.opts.backlog() != o.backlog() {
		if err := listenAgain(s.fd, s.addr, o.backlog()); err != nil {
			return err
		}
	}
	s.opts = o
	return nil
}

func (s *Socket) applyPath(o Options) error {
	uid, gid, err := lookupOwner(o)
	if err != nil {
		return err
	}
	if o.Owner == "" && s.opts.Owner != "" {
		uid = unix.Geteuid()
	}
	if o.Group == "" && s.opts.Group != "" {
		gid = unix.Getegid()
	}
	d, err := lockDir(path.Dir(s.addr.Path))
	if err != nil {
		return err
	}
	defer d.close()
	name := path.Base(s.addr.Path)
	// Mode first: the owner may be given away, and then only it and root may
	// change the mode (chmod(2)).
	if err := d.chmod(name, s.path, o.mode()); err != nil {
		return err
	}
	return d.chown(name, s.path, uid, gid)
}
