package supervisor

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// pathMask are the changes of a directory by which a name in it, or the name that it has
// itself, comes to mean something else. None of them happens when somebody connects.
const pathMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// pathWatcher tells when somebody removes or replaces the path of a UNIX socket: it
// watches the directory. It is not told of the directories above that one.
type pathWatcher struct {
	f *os.File

	mu    sync.Mutex
	paths map[string]bool
	dirs  map[int32]string // by watch
}

func newPathWatcher() (*pathWatcher, error) {
	f, err := newInotify()
	if err != nil {
		return nil, err
	}
	return &pathWatcher{f: f, paths: map[string]bool{}, dirs: map[int32]string{}}, nil
}

// add begins to watch a path, or watches it anew where another directory has taken the
// place of the one that it was in.
func (w *pathWatcher) add(path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	dir := filepath.Dir(path)
	return control(w.f, func(fd int) error {
		id, err := unix.InotifyAddWatch(fd, dir, pathMask)
		if err != nil {
			return fmt.Errorf("inotify_add_watch %s: %w", dir, err)
		}
		w.dirs[int32(id)], w.paths[path] = dir, true
		return nil
	})
}

// remove ends the watch of a path, and that of its directory with the last one.
func (w *pathWatcher) remove(path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.paths, path)
	dir := filepath.Dir(path)
	for other := range w.paths {
		if filepath.Dir(other) == dir {
			return
		}
	}
	for id, d := range w.dirs {
		if d == dir {
			delete(w.dirs, id)
			_ = control(w.f, func(fd int) error { // gone by itself, if the directory is
				_, err := unix.InotifyRmWatch(fd, uint32(id))
				return err
			})
		}
	}
}

// wait blocks until paths may have changed. After close it is os.ErrClosed.
func (w *pathWatcher) wait() ([]string, error) {
	buf := make([]byte, 16*(unix.SizeofInotifyEvent+unix.NAME_MAX+1))
	for {
		changes, err := readChanges(w.f, buf)
		if err != nil {
			return nil, err
		}
		if changed := w.changed(changes); len(changed) > 0 {
			return changed, nil
		}
	}
}

func (w *pathWatcher) changed(changes []change) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range changes {
		dir, known := w.dirs[c.watch]
		for p := range w.paths {
			if c.lost || known && (c.gone && filepath.Dir(p) == dir || p == filepath.Join(dir, c.name)) {
				seen[p] = true
			}
		}
		if known && c.gone { // the next add watches what is at its path then
			delete(w.dirs, c.watch)
			_ = control(w.f, func(fd int) error { // ended by itself, but where it was renamed
				_, err := unix.InotifyRmWatch(fd, uint32(c.watch))
				return err
			})
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func (w *pathWatcher) close() error { return w.f.Close() }
