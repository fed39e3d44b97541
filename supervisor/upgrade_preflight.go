package supervisor

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/proc"
)

// chosenBinary is the file that is to take over. It is opened once: what the pre-flight
// has tried is what is executed, whatever becomes of the path.
type chosenBinary struct {
	path string
	fd   int
	args []string
	text imageText // when it was opened
}

// imageText tells two contents of the same file apart.
type imageText struct {
	size     int64
	modified time.Duration // since 1970
}

func (b *chosenBinary) close() { _ = unix.Close(b.fd) }

// chooseBinary opens the file that a request names, or the one that handoverd was
// started from as it is now. It is called beside the loop.
func (l *loop) chooseBinary(path string) (*chosenBinary, error) {
	self := &l.opts.Self
	if len(self.Args) == 0 {
		return nil, errors.New("this handoverd was not started in a way that it could be executed again")
	}
	args := slices.Clone(self.Args)
	if path != "" {
		args[0] = path
	} else {
		var err error
		if path, err = executable(args[0], l.opts.Dir, self.Environ); err != nil {
			if path, err = os.Executable(); err != nil {
				return nil, err
			}
		}
	}
	fd, err := openImage(path)
	if err != nil {
		return nil, err
	}
	b := &chosenBinary{path: path, fd: fd, args: args}
	if b.text, err = writtenTo(fd); err == nil {
		err = checkImage(fd)
	}
	if err != nil {
		b.close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// changed is an error if the file was overwritten after it had been opened: what would be
// executed is not what was tried.
func (b *chosenBinary) changed() error {
	text, err := writtenTo(b.fd)
	if err == nil && text != b.text {
		err = errors.New("it was written to after its pre-flight had begun")
	}
	return err
}

// rehearse begins the pre-flight: the new binary does all of its restore that changes
// nothing, on copies of the descriptors, in a child process.
func (l *loop) rehearse(a acRehearse) {
	over, fds, err := l.handOver(unix.F_DUPFD_CLOEXEC)
	if err != nil {
		closeFDs(fds)
		l.queue(evRehearsed{ID: a.ID, Fault: err.Error()})
		return
	}
	var ctx context.Context
	ctx, l.up.cancel = context.WithTimeout(l.ctx, a.Within)
	l.s.hub.send(Event{Kind: "upgrade", Upgrade: l.upgradeStatus()})
	l.readers.Add(1) // Run waits for it
	go l.runRehearsal(ctx, a, over, fds)
}

// runRehearsal tells the loop how the pre-flight has ended. It takes fds. Run waits for
// it.
func (l *loop) runRehearsal(ctx context.Context, a acRehearse, over *handedOver, fds map[string]int) {
	defer l.readers.Done()
	defer closeFDs(fds)
	e := evRehearsed{ID: a.ID}
	b, err := l.openBinary(ctx, a.Binary)
	if err == nil {
		l.log.Info("upgrade of handoverd: pre-flight", "upgrade", a.ID, "binary", b.path)
		if e.To, err = l.askRehearsal(ctx, b, over, fds); err != nil {
			b.close()
			err = fmt.Errorf("pre-flight: %w", err)
		}
	}
	switch {
	case err == nil:
		l.call(func() { l.chosen(a.ID, b) })
	case errors.Is(ctx.Err(), context.Canceled):
		return // nobody wants to know
	case errors.Is(err, context.DeadlineExceeded):
		e.Fault = fmt.Sprintf("pre-flight: it has not answered within %v, and was killed", a.Within)
	default:
		e.Fault = err.Error()
	}
	l.post(e)
}

// chosen takes the binary whose pre-flight was well.
func (l *loop) chosen(id int, b *chosenBinary) {
	if self := l.state.Self; self == nil || self.ID != id {
		b.close()
		return
	}
	l.up.binary = b
	l.stepUpgrade()
}

// openBinary is chooseBinary until ctx ends: a file system that does not answer holds up nobody.
func (l *loop) openBinary(ctx context.Context, path string) (*chosenBinary, error) {
	opened := make(chan openedBinary)
	go l.tryOpen(ctx, path, opened) // waited for until ctx ends; where the file system hangs, by nobody
	select {
	case o := <-opened:
		return o.b, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type openedBinary struct {
	b   *chosenBinary
	err error
}

// tryOpen ends once somebody has the file, or nobody wants it any more.
func (l *loop) tryOpen(ctx context.Context, path string, opened chan<- openedBinary) {
	b, err := l.chooseBinary(path)
	select {
	case opened <- openedBinary{b, err}:
	case <-ctx.Done():
		if err == nil {
			b.close()
		}
	}
}

// first numbers of the pre-flight's descriptors.
const (
	rehearsalMemfd = 3
	rehearsalReply = 4
	rehearsalFirst = 5
)

// askRehearsal runs the pre-flight and returns its answer.
func (l *loop) askRehearsal(ctx context.Context, b *chosenBinary, over *handedOver, fds map[string]int) (version string, err error) {
	files := []uintptr{0, 0, 0, 0, 0}
	over.FDs = map[string]int{handedAnswer: rehearsalReply}
	for name, fd := range fds {
		over.FDs[name] = len(files)
		files = append(files, uintptr(fd))
	}
	text, err := json.Marshal(over)
	if err != nil {
		return "", err
	}
	mem, err := sealedMemfd("handoverd-rehearsal", text)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(mem) }()
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: os.DevNull, Err: err}
	}
	defer func() { _ = unix.Close(null) }()
	said, saidFD, closeSaid, err := tailPipe(16 << 10)
	if err != nil {
		return "", err
	}
	answered, answerFD, closeAnswer, err := tailPipe(16 << 10)
	if err != nil {
		closeSaid()
		return "", err
	}
	files[0], files[1], files[2] = uintptr(null), uintptr(saidFD), uintptr(saidFD)
	files[rehearsalMemfd], files[rehearsalReply] = uintptr(mem), uintptr(answerFD)
	exit, err := l.runImage(ctx, b, files)
	closeSaid() // the ends of the pipes that the child had are closed by its end
	closeAnswer()
	if err != nil {
		return "", err
	}
	var answer rehearsalAnswer
	if json.Unmarshal(answered(), &answer) != nil {
		return "", fmt.Errorf("%s%s", silence(exit.Status), lastLines(said(), checkLines))
	}
	if answer.Fault != "" {
		return answer.Version, errors.New(answer.Fault)
	}
	return answer.Version, nil
}

// silence says what it means that the binary has ended without an answer.
func silence(status unix.WaitStatus) string {
	if status == 0 {
		return "it exited with status 0 without an answer: it is no handoverd, or one that is older than upgrades"
	}
	return "it has not answered: " + describeStatus(uint32(status))
}

// runImage runs the binary as a pre-flight to its end, or kills it when ctx ends. What it has started
// ends with it: it has the sockets.
func (l *loop) runImage(ctx context.Context, b *chosenBinary, files []uintptr) (proc.Exit, error) {
	token := rand.Text()
	environ := append(withoutUpgrade(l.opts.Self.Environ), fmt.Sprintf("%s=%d%s", UpgradeVariable, rehearsalMemfd, rehearsalSuffix))
	environ = setenv(environ, proc.TokenVariable, token)
	done := make(chan proc.Exit, 1)
	pid, err := l.reaper.Start(func() (pid int, err error) {
		l.thread.Do(func() { pid, err = startRehearsal(b, b.args, environ, files) })
		return pid, err
	}, func(e proc.Exit) { done <- e })
	if err != nil {
		return proc.Exit{}, err
	}
	// Held by the reaper until here: its number, and that of its group, are nobody else's.
	defer func() { _ = l.reaper.Release(pid) }()
	select {
	case exit := <-done:
		endBeside(pid, token)
		return exit, nil
	case <-ctx.Done():
		_ = unix.Kill(-pid, unix.SIGKILL)
		<-done
		endBeside(pid, token)
		return proc.Exit{}, ctx.Err()
	}
}

func withoutUpgrade(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(e string) bool { return strings.HasPrefix(e, UpgradeVariable+"=") })
}

// tailPipe makes a pipe of which the last bytes are kept. closeWrite closes the end for
// the child, and waits until all that was written has been read, for a moment where
// somebody else holds the end too.
func tailPipe(keep int) (tail func() []byte, childFD int, closeWrite func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, -1, nil, err
	}
	if err := control(w, func(fd int) error {
		childFD, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		return err
	}); err != nil {
		return nil, -1, nil, errors.Join(err, r.Close(), w.Close())
	}
	t := &pipeTail{r: r, keep: keep, done: make(chan struct{})}
	go t.read() // closeWrite waits for it
	return t.bytes, childFD, func() {
		_ = unix.Close(childFD)
		_ = w.Close()
		_ = r.SetReadDeadline(time.Now().Add(time.Second))
		<-t.done
		_ = r.Close()
	}, nil
}

type pipeTail struct {
	r    *os.File
	keep int
	done chan struct{}

	mu   sync.Mutex
	text []byte
}

// read ends with the pipe or its deadline.
func (t *pipeTail) read() {
	defer close(t.done)
	buf := make([]byte, 4096)
	for {
		n, err := t.r.Read(buf)
		t.mu.Lock()
		t.text = append(t.text, buf[:n]...)
		t.text = t.text[max(0, len(t.text)-t.keep):]
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (t *pipeTail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return bytes.Clone(t.text)
}
