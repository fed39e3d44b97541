package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// tailLines is how many of a generation's last output lines are kept for the
// report of a failure.
const tailLines = 64

// punchStep is how much is read before the file's blocks are given back.
const punchStep = 1 << 20

// maxLine bounds one passed-on line; a longer one is cut into several.
const maxLine = 64 << 10

// output follows what the generations write. Each writes to an O_APPEND file of
// its own and never to a pipe: the writer of a pipe dies of SIGPIPE when
// handoverd is killed, and stops when handoverd is slow. What has been read is
// given back to the file system (fallocate(2), FALLOC_FL_PUNCH_HOLE).
type output struct {
	dir *runtimeDir
	to  io.Writer
	log *slog.Logger

	watch *watcher // tells which files have grown

	mu    sync.Mutex
	files map[at]*followed
}

// followed is one generation's file. It owns both descriptors.
type followed struct {
	f       *os.File
	path    string
	prefix  string
	offset  int64
	punched int64
	part    []byte
	tail    []string
}

func newOutput(dir *runtimeDir, to io.Writer, log *slog.Logger) (*output, error) {
	w, err := newWatcher()
	if err != nil {
		return nil, err
	}
	return &output{dir: dir, to: to, log: log, watch: w, files: map[at]*followed{}}, nil
}

// open makes the place for a generation's output and returns the descriptors
// for its stdout and stderr, which the caller closes by the function returned.
func (o *output) open(a at, spec *Spec, uid, gid int) (stdout, stderr int, done func(), err error) {
	if spec.Config.Log == "inherit" {
		return 1, 2, func() {}, nil
	}
	path := o.dir.file("log", fmt.Sprintf("%s.%d", a.Service, a.Gen))
	// A file of an earlier life with the same number is not continued.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, 0, nil, fmt.Errorf("log: %w", err)
	}
	fd, closeFD, err := rawAppend(path, uid, gid)
	if err != nil {
		return 0, 0, nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		err = o.watch.add(path, a)
	}
	if err != nil {
		closeFD()
		if f != nil {
			_ = f.Close()
		}
		return 0, 0, nil, fmt.Errorf("log: %w", err)
	}
	o.mu.Lock()
	o.files[a] = &followed{f: f, path: path, prefix: fmt.Sprintf("%s.%d | ", a.Service, a.Gen)}
	o.mu.Unlock()
	return fd, fd, closeFD, nil
}

// rawAppend opens a file for a child to append to, and gives it to the user:
// programs open /dev/stderr again by its name.
func rawAppend(path string, uid, gid int) (int, func(), error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return -1, nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	done := func() { _ = unix.Close(fd) }
	if uid >= 0 || gid >= 0 {
		if err := unix.Fchown(fd, uid, gid); err != nil {
			done()
			return -1, nil, &os.PathError{Op: "fchown", Path: path, Err: err}
		}
	}
	return fd, done, nil
}

// follow passes on what is written until close. Run waits for it.
func (o *output) follow() {
	for {
		grown, err := o.watch.wait()
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				o.log.Error("output is not followed any more", "err", err)
			}
			return
		}
		o.mu.Lock()
		for _, a := range grown {
			o.read(o.files[a])
		}
		o.mu.Unlock()
	}
}

// read passes on what is new in one file. The caller holds the lock.
func (o *output) read(f *followed) {
	if f == nil {
		return
	}
	// "echo >/dev/stderr" in a shell opens the file anew and empties it. What
	// was not read by then is lost; what follows is at its begin.
	if info, err := f.f.Stat(); err == nil && info.Size() < f.offset {
		f.offset, f.punched = 0, 0
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := f.f.ReadAt(buf, f.offset)
		f.offset += int64(n)
		f.part = append(f.part, buf[:n]...)
		o.lines(f)
		if err != nil || n == 0 {
			break
		}
	}
	if f.offset-f.punched >= punchStep {
		end := f.offset &^ 4095 // whole blocks
		if err := punch(f.f, f.punched, end-f.punched); err == nil {
			f.punched = end
		}
	}
}

func (o *output) lines(f *followed) {
	for {
		i := bytes.IndexByte(f.part, '\n')
		if i < 0 && len(f.part) < maxLine {
			return
		}
		if i < 0 {
			i = maxLine
			f.part = append(f.part[:i], append([]byte{'\n'}, f.part[i:]...)...)
		}
		o.line(f, string(f.part[:i]))
		f.part = f.part[i+1:]
	}
}

func (o *output) line(f *followed, text string) {
	f.tail = append(f.tail, text)
	if len(f.tail) > tailLines {
		f.tail = append(f.tail[:0], f.tail[len(f.tail)-tailLines:]...)
	}
	// The writer is handoverd's own stderr: there is nobody to tell.
	_, _ = io.WriteString(o.to, f.prefix+text+"\n")
}

// tail returns the last lines of a generation, those not yet passed on included.
func (o *output) tail(a at) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.files[a]
	if f == nil {
		return nil
	}
	o.read(f)
	out := append([]string(nil), f.tail...)
	if len(f.part) > 0 {
		out = append(out, string(f.part))
	}
	return out
}

// end passes on what is left of a generation that is gone, and removes its file.
func (o *output) end(a at) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.files[a]
	if f == nil {
		return
	}
	o.read(f)
	if len(f.part) > 0 {
		o.line(f, string(f.part))
	}
	delete(o.files, a)
	o.watch.remove(a)
	_, _ = f.f.Close(), os.Remove(f.path)
}

func (o *output) close() {
	o.mu.Lock()
	gens := make([]at, 0, len(o.files))
	for a := range o.files {
		gens = append(gens, a)
	}
	o.mu.Unlock()
	for _, a := range gens {
		o.end(a)
	}
	_ = o.watch.close()
}

// control calls f with the descriptor of a regular file.
func control(file syscall.Conn, f func(fd int) error) error {
	c, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := c.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}
