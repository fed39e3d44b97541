package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// pathMask are the changes of a directory by which a name in it comes to mean
// something else. None of them happens when somebody connects.
const pathMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR

// pathWatcher tells when somebody removes or replaces the path of a UNIX socket, by
// inotify(7) on its directory. Like watcher it wakes nobody while nothing happens.
type pathWatcher struct {
	f *os.File

	mu    sync.Mutex
	paths map[string]bool
	dirs  map[int32]string // by watch
}

func newPathWatcher() (*pathWatcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	return &pathWatcher{f: os.NewFile(uintptr(fd), "inotify"), paths: map[string]bool{}, dirs: map[int32]string{}}, nil
}

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
		n, err := w.f.Read(buf)
		if err != nil {
			if errors.Is(err, os.ErrClosed) {
				return nil, os.ErrClosed
			}
			return nil, fmt.Errorf("inotify: %w", err)
		}
		if changed := w.parse(buf[:n]); len(changed) > 0 {
			return changed, nil
		}
	}
}

func (w *pathWatcher) parse(b []byte) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[string]bool{}
	for len(b) >= unix.SizeofInotifyEvent {
		id := int32(binary.NativeEndian.Uint32(b))
		mask := binary.NativeEndian.Uint32(b[4:])
		end := min(len(b), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:])))
		name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:end]), "\x00")
		b = b[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 { // some were lost: look at all
			for p := range w.paths {
				seen[p] = true
			}
		} else if p := filepath.Join(w.dirs[id], name); w.paths[p] {
			seen[p] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

func (w *pathWatcher) close() error { return w.f.Close() }
