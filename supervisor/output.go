package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// tailLines is how many of a generation's last output lines are kept for the
// report of a failure.
const tailLines = 64

// How much is read at a time and how much is given back at a time, how much of what was read last stays in the file for
// the report of a failure, and how far a file may be ahead of what is passed on: a
// program that writes faster than that is read would fill the file system.
const (
	readStep   = 64 << 10
	punchStep  = 1 << 20
	tailBytes  = 64 << 10
	maxBacklog = 16 << 20
)

// maxLine bounds one passed-on line; a longer one is cut into several.
const maxLine = 64 << 10

// output follows what the generations write. Each writes to an O_APPEND file of
// its own and never to a pipe: the writer of a pipe dies of SIGPIPE when
// handoverd is killed, and stops when handoverd is slow. What has been read is
// given back to the file system (fallocate(2), FALLOC_FL_PUNCH_HOLE).
//
// Each file has a goroutine of its own. The loop waits for none of them, however
// much a program writes and however slowly it is passed on.
type output struct {
	dir *runtimeDir
	log *slog.Logger

	writing sync.Mutex // one line at a time
	to      io.Writer
	count   atomic.Int64 // of the lines that were passed on
	closing atomic.Bool

	watch *watcher // tells which files have grown

	passing passing
	dry     bool // nothing is passed on: a pre-flight

	mu      sync.Mutex
	files   map[at]*followed
	readers sync.WaitGroup // close waits for them
}

// followed is one generation's file. It owns its descriptor.
type followed struct {
	f      *os.File
	path   string
	prefix string
	grown  chan struct{} // it may have; capacity 1
	over   chan struct{} // closed when nothing of the generation is left

	mu      sync.Mutex // never held while anything is passed on
	mark    *os.File   // has the offset of what was passed on; nil: it is not written down
	offset  int64
	punched int64
	skipped int64 // bytes that were not read, and not said to be
	part    []byte
	last    []string
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
	file := newFollowed(f, path, a)
	if file.mark, err = os.Create(path + markSuffix); err != nil {
		o.log.Warn("where its output was read to is not written down", "service", a.Service, "gen", a.Gen, "err", err)
	}
	o.add(a, file)
	return fd, fd, closeFD, nil
}

func newFollowed(f *os.File, path string, a at) *followed {
	return &followed{
		f: f, path: path, prefix: fmt.Sprintf("%s.%d | ", a.Service, a.Gen),
		grown: make(chan struct{}, 1), over: make(chan struct{}),
	}
}

// add begins to pass a file on.
func (o *output) add(a at, file *followed) {
	o.mu.Lock()
	o.files[a] = file
	o.mu.Unlock()
	if o.dry {
		return
	}
	o.readers.Add(1) // close waits for it
	go o.pass(file)
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

// follow wakes the readers of the files that grow until close. Run waits for it.
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
			if f := o.files[a]; f != nil {
				f.look(maxBacklog)
				select {
				case f.grown <- struct{}{}:
				default:
				}
			}
		}
		o.mu.Unlock()
	}
}

// pass passes on what is written to one file until the generation is gone.
// close waits for it.
func (o *output) pass(f *followed) {
	defer o.readers.Done()
	for over := false; !over; {
		select {
		case <-f.grown:
		case <-f.over:
			over = true
		}
		end := f.look(o.backlog()) // not further: who writes on is read again, or gone
		for o.read(f, end) {
			f.look(o.backlog())
		}
	}
	defer o.passing.ends.Add(-1)
	f.mu.Lock()
	part := f.part
	f.mu.Unlock()
	if len(part) > 0 {
		o.line(f, part)
	}
	_ = f.f.Close()
	if f.mark != nil {
		_ = f.mark.Close()
	}
}

// look returns the size of the file. It gives the blocks of what has been read
// back, but for the last ones, and skips the oldest part of what was written much
// faster than it is passed on, or while nobody reads what is.
func (f *followed) look(backlog int64) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := f.f.Stat()
	if err != nil {
		return 0
	}
	size := info.Size()
	if size < f.offset {
		// "echo >/dev/stderr" in a shell opens the file anew and empties it.
		// What was not read by then is lost; what follows is at its begin.
		f.offset, f.punched = 0, 0
	}
	if behind := size - f.offset; behind > backlog {
		f.skipped += behind - readStep
		f.offset += behind - readStep
	}
	end := (f.offset - tailBytes) &^ 4095 // whole blocks
	if end-f.punched >= punchStep {
		if err := punch(f.f, f.punched, end-f.punched); err == nil {
			f.punched = end
		}
	}
	return size
}

// read passes on the next part of a file before end, and reports whether there was
// one.
func (o *output) read(f *followed, end int64) bool {
	o.passing.begin()
	defer o.passing.end()
	f.mu.Lock()
	from, skipped := f.offset, f.skipped
	f.skipped = 0
	var lines [][]byte
	if skipped > 0 {
		if len(f.part) > 0 {
			lines, f.part = append(lines, f.part), nil
		}
		lines = append(lines, fmt.Appendf(nil, "(%d bytes skipped: written faster than they are passed on)", skipped))
	}
	f.mu.Unlock()
	var n int
	if from < end {
		buf := make([]byte, readStep)
		n, _ = f.f.ReadAt(buf, from)
		f.mu.Lock()
		if f.offset == from { // else it was skipped meanwhile
			f.offset += int64(n)
			f.part = append(f.part, buf[:n]...)
			lines = append(lines, f.cut()...)
		}
		f.mu.Unlock()
	}
	for _, l := range lines {
		o.line(f, l)
	}
	if n > 0 {
		f.note()
	}
	return n > 0
}

// cut takes the whole lines from what was read, and remembers the last ones.
// The caller holds f.mu.
func (f *followed) cut() [][]byte {
	var lines [][]byte
	for {
		i := bytes.IndexByte(f.part, '\n')
		next := i + 1
		if i < 0 || i > maxLine {
			if len(f.part) < maxLine {
				break
			}
			i, next = maxLine, maxLine
		}
		lines = append(lines, f.part[:i])
		f.part = f.part[next:]
	}
	f.part = bytes.Clone(f.part) // and not the whole buffer
	for _, l := range lines[max(0, len(lines)-tailLines):] {
		f.last = append(f.last, string(l))
	}
	f.last = append(f.last[:0], f.last[max(0, len(f.last)-tailLines):]...)
	return lines
}

func (o *output) line(f *followed, text []byte) {
	o.writing.Lock()
	defer o.writing.Unlock()
	// The writer is handoverd's own stderr: there is nobody to tell.
	_, _ = fmt.Fprintf(o.to, "%s%s\n", f.prefix, text)
	o.count.Add(1)
}

// tail returns the last lines of a generation, those not yet passed on included.
// It waits for nobody: what is not passed on yet it reads itself.
func (o *output) tail(a at) []string {
	o.mu.Lock()
	f := o.files[a]
	o.mu.Unlock()
	if f == nil {
		return nil
	}
	f.mu.Lock()
	out, text, from := slices.Clone(f.last), bytes.Clone(f.part), f.offset
	f.mu.Unlock()
	if info, err := f.f.Stat(); err == nil && info.Size()-from > tailBytes {
		out, text, from = nil, nil, info.Size()-tailBytes
	}
	buf := make([]byte, tailBytes)
	n, _ := f.f.ReadAt(buf, from)
	if text = append(text, buf[:n]...); len(text) > 0 {
		out = append(out, strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")...)
	}
	return out[max(0, len(out)-tailLines):]
}

// head returns the first lines of what a generation has written, as far as they were not
// given back. It waits for nobody.
func (o *output) head(a at) []string {
	o.mu.Lock()
	f := o.files[a]
	o.mu.Unlock()
	if f == nil {
		return nil
	}
	buf := make([]byte, headBytes)
	n, _ := f.f.ReadAt(buf, 0)
	return strings.Split(string(buf[:n]), "\n")
}

// end has the rest of a generation that is gone passed on, and its file removed.
func (o *output) end(a at) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.files[a]
	if f == nil {
		return
	}
	delete(o.files, a)
	o.watch.remove(a)
	_, _ = os.Remove(f.path), os.Remove(f.path+markSuffix) // it stays open until it has been passed on
	o.passing.ends.Add(1)
	close(f.over)
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
