package fdpass

import (
	"errors"
	"os"
	"slices"
)

// Set is descriptors with names, in order. It owns them until they are taken. The
// zero value is empty and ready. A name may occur more than once, as it may in
// LISTEN_FDNAMES. A Set is not safe for concurrent use.
type Set struct {
	entries []entry
}

type entry struct {
	name string
	file *os.File
}

// Add takes f and puts it at the end, under name.
func (s *Set) Add(name string, f *os.File) {
	s.entries = append(s.entries, entry{name, f})
}

// Names returns the names in order.
func (s *Set) Names() []string {
	names := make([]string, len(s.entries))
	for i, e := range s.entries {
		names[i] = e.name
	}
	return names
}

// Take removes the first descriptor called name and returns it; the caller owns
// it. Without one it returns nil and false.
func (s *Set) Take(name string) (*os.File, bool) {
	i := slices.IndexFunc(s.entries, func(e entry) bool { return e.name == name })
	if i < 0 {
		return nil, false
	}
	f := s.entries[i].file
	s.entries = slices.Delete(s.entries, i, i+1)
	return f, true
}

// Len returns how many descriptors there are.
func (s *Set) Len() int { return len(s.entries) }

// Close closes the descriptors that were not taken and empties the set. A second
// Close does nothing.
func (s *Set) Close() error {
	var errs []error
	for _, e := range s.entries {
		errs = append(errs, e.file.Close())
	}
	s.entries = nil
	return errors.Join(errs...)
}
