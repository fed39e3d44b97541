package supervisor

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// watcher tells which output files have grown. Nothing runs while nobody writes.
type watcher struct {
	f *os.File

	mu    sync.Mutex
	files map[int32]at
	ids   map[at]int32
	buf   []byte
}

func newWatcher() (*watcher, error) {
	f, err := newInotify()
	if err != nil {
		return nil, err
	}
	return &watcher{f: f, files: map[int32]at{}, ids: map[at]int32{}, buf: make([]byte, 64*unix.SizeofInotifyEvent)}, nil
}

func (w *watcher) add(path string, a at) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return control(w.f, func(fd int) error {
		id, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY)
		if err != nil {
			return fmt.Errorf("inotify_add_watch %s: %w", path, err)
		}
		w.files[int32(id)], w.ids[a] = a, int32(id)
		return nil
	})
}

// remove ends the watch of a file. One that was deleted has none any more.
func (w *watcher) remove(a at) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id, ok := w.ids[a]
	if !ok {
		return
	}
	delete(w.ids, a)
	delete(w.files, id)
	_ = control(w.f, func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(id))
		return err
	})
}

// wait blocks until files have grown. After close it is os.ErrClosed.
func (w *watcher) wait() ([]at, error) {
	for {
		changes, err := readChanges(w.f, w.buf)
		if err != nil {
			return nil, err
		}
		if grown := w.grown(changes); len(grown) > 0 {
			return grown, nil
		}
	}
}

func (w *watcher) grown(changes []change) []at {
	w.mu.Lock()
	defer w.mu.Unlock()
	var grown []at
	for _, c := range changes {
		if c.lost { // look at all
			for _, a := range w.files {
				grown = append(grown, a)
			}
			continue
		}
		if a, ok := w.files[c.watch]; ok && !slices.Contains(grown, a) {
			grown = append(grown, a)
		}
	}
	return grown
}

func (w *watcher) close() error { return w.f.Close() }

// punch gives the blocks of a part of a file back; its size stays.
func punch(f *os.File, offset, size int64) error {
	return control(f, func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, size)
	})
}

// rlimitNumber is the number of a resource limit, named as in the configuration.
func rlimitNumber(name string) (int, bool) {
	n, ok := map[string]int{
		"as": unix.RLIMIT_AS, "core": unix.RLIMIT_CORE, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA,
		"fsize": unix.RLIMIT_FSIZE, "locks": unix.RLIMIT_LOCKS, "memlock": unix.RLIMIT_MEMLOCK,
		"msgqueue": unix.RLIMIT_MSGQUEUE, "nice": unix.RLIMIT_NICE, "nofile": unix.RLIMIT_NOFILE,
		"nproc": unix.RLIMIT_NPROC, "rss": unix.RLIMIT_RSS, "rtprio": unix.RLIMIT_RTPRIO,
		"rttime": unix.RLIMIT_RTTIME, "sigpending": unix.RLIMIT_SIGPENDING, "stack": unix.RLIMIT_STACK,
	}[name]
	return n, ok
}
