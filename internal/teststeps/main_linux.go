package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/drain"
	"github.com/handoverd/handover/internal/site"
)

// A script is the program while it takes its steps.
type script struct {
	generation int
	notify     string // NOTIFY_SOCKET
	servers    []drain.Target
}

// steps are what a script can do, each with one argument.
var steps = map[string]func(*script, string) error{}

func init() { // not in the declaration: a step may take steps
	steps["serve"] = (*script).serve
	steps["listen"] = (*script).listen
	steps["listen-reuseport"] = (*script).listenReusePort
	steps["spin"] = (*script).spin
	steps["notify"] = (*script).notifyText
	steps["notify-and-end"] = (*script).notifyAndEnd
	steps["wait"] = (*script).wait
	steps["undumpable"] = (*script).undumpable
	steps["child"] = (*script).child
	steps["end"] = func(*script, string) error { os.Exit(0); return nil }
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("teststeps: ")
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	s, err := newScript()
	if err != nil {
		log.Fatal(err)
	}
	for _, line := range os.Args[1:] {
		name, arg, _ := strings.Cut(line, " ")
		step := steps[name]
		if step == nil {
			log.Fatalf("unknown step %q", name)
		}
		if err := step(s, arg); err != nil {
			log.Fatalf("%s: %v", line, err)
		}
		log.Printf("done: %s", line)
	}
	<-term
	if err := drain.All(context.Background(), s.servers...); err != nil {
		log.Fatal(err)
	}
}

// serve accepts on an inherited descriptor through the runtime's poller.
func (s *script) serve(fd string) error {
	n, err := strconv.Atoi(fd)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(n), "socket")
	l, err := net.FileListener(f)
	if err != nil {
		return err
	}
	s.accept(l)
	return f.Close()
}

func (s *script) accept(l net.Listener) {
	server := drain.HTTP(&http.Server{Handler: site.Handler(s.generation)})
	s.servers = append(s.servers, server)
	go serve(server, l) // the drain waits for what it accepted
}

func serve(s *drain.Server, l net.Listener) {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		log.Print(err)
	}
}

// listen binds an address itself, whatever was inherited.
func (s *script) listen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	log.Printf("listening on %s", l.Addr())
	s.accept(l)
	return nil
}

// listenReusePort binds an address that somebody else is bound to.
func (s *script) listenReusePort(address string) error {
	config := net.ListenConfig{Control: reusePort}
	l, err := config.Listen(context.Background(), "tcp4", address)
	if err != nil {
		return err
	}
	s.accept(l)
	return nil
}

func reusePort(_, _ string, c syscall.RawConn) error {
	var err error
	controlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	if controlErr != nil {
		return controlErr
	}
	return os.NewSyscallError("setsockopt SO_REUSEPORT", err)
}

// spin calls accept without waiting, as a program does that takes the socket
// for a blocking one.
func (s *script) spin(fd string) error {
	n, err := strconv.Atoi(fd)
	if err != nil {
		return err
	}
	go spin(n) // not waited for: it ends with the process
	return nil
}

func spin(fd int) {
	runtime.LockOSThread()
	for {
		if conn, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC); err == nil {
			_ = unix.Close(conn)
		}
	}
}

// notifyText sends one datagram; "|" stands for the end of a line.
func (s *script) notifyText(text string) error {
	c, err := net.Dial("unixgram", s.notify)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write([]byte(strings.ReplaceAll(text, "|", "\n")))
	return err
}

// notifyAndEnd has a child of this process send the datagram and end.
func (s *script) notifyAndEnd(text string) error { return itself("notify "+text, "end").Run() }

// child has a child of this process take one step and live on.
func (s *script) child(step string) error { return itself(step).Start() }

// itself is this program with another script. It inherits the sockets, which are
// not close-on-exec until somebody takes them.
func itself(steps ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", steps...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// wait ends when somebody has written to the FIFO at path (fifo(7)).
func (s *script) wait(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Read(make([]byte, 1))
	return err
}

// undumpable hides this process from all that lack CAP_SYS_PTRACE, its own user
// included (prctl(2), PR_SET_DUMPABLE; proc(5)).
func (s *script) undumpable(string) error {
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}
