package supervisor

import (
	"bytes"
	"context"
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
}

func (b *chosenBinary) close() { _ = unix.Close(b.fd) }

// chooseBinary opens the file that a request names, or the one that handoverd was
// started from as it is now.
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
	return &chosenBinary{path: path, fd: fd, args: args}, nil
}

// rehearse begins the pre-flight: the new binary does all of its restore that changes
// nothing, on copies of the descriptors, in a child process.
func (l *loop) rehearse(a acRehearse) {
	b, err := l.chooseBinary(a.Binary)
	if err != nil {
		l.queue(evRehearsed{ID: a.ID, Fault: err.Error()})
		return
	}
	up := &l.up
	up.binary = b
	var ctx context.Context
	ctx, up.cancel = context.WithTimeout(l.ctx, a.Within)
	over, fds, err := l.handOver(unix.F_DUPFD_CLOEXEC)
	if err != nil {
		closeFDs(fds)
		l.queue(evRehearsed{ID: a.ID, Fault: err.Error()})
		return
	}
	l.log.Info("upgrade of handoverd: pre-flight", "upgrade", a.ID, "binary", b.path)
	l.s.hub.send(Event{Kind: "upgrade", Upgrade: l.upgradeStatus()})
	l.readers.Add(1) // Run waits for it
	go l.runRehearsal(ctx, a, b, over, fds)
}

// runRehearsal tells the loop how the pre-flight has ended. It takes fds. Run waits for
// it.
func (l *loop) runRehearsal(ctx context.Context, a acRehearse, b *chosenBinary, over *handedOver, fds map[string]int) {
	defer l.readers.Done()
	defer closeFDs(fds)
	version, err := l.askRehearsal(ctx, b, over, fds)
	e := evRehearsed{ID: a.ID, To: version}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return // nobody wants to know
	case errors.Is(err, context.DeadlineExceeded):
		e.Fault = fmt.Sprintf("pre-flight: it has not answered within %v, and was killed", a.Within)
	case err != nil:
		e.Fault = "pre-flight: " + err.Error()
	}
	l.post(e)
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
		return "", fmt.Errorf("it has not answered: %s%s", describeStatus(uint32(exit.Status)), lastLines(said(), checkLines))
	}
	if answer.Fault != "" {
		return answer.Version, errors.New(answer.Fault)
	}
	return answer.Version, nil
}

// runImage runs the binary as a pre-flight to its end, or kills it with all that it has
// started in its session when ctx ends.
func (l *loop) runImage(ctx context.Context, b *chosenBinary, files []uintptr) (proc.Exit, error) {
	environ := append(withoutUpgrade(l.opts.Self.Environ), fmt.Sprintf("%s=%d%s", UpgradeVariable, rehearsalMemfd, rehearsalSuffix))
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
		_ = unix.Kill(-pid, unix.SIGKILL)
		return exit, nil
	case <-ctx.Done():
		_ = unix.Kill(-pid, unix.SIGKILL)
		<-done
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
