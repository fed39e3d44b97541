package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/handoverd/handover"
	"github.com/handoverd/handover/drain"
	"github.com/handoverd/handover/internal/site"
)

// died is the exit status of a mode that dies on purpose.
const died = 3

// A process is what every mode has.
type process struct {
	settings
	counts *countbook
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("testchild: ")
	p, err := newProcess()
	check(err)
	switch m := p.mode; m {
	case "ok", "double-fork", "ignore-drain", "ready-then-die", "udp", "hang-init", "crash-init":
		p.native(m)
	case "accept-raw", "accept-notify", "accept-newline", "raw-ready-then-die", "raw-ignore-drain", "hang-accepting", "crash-accepting":
		p.raw(m)
	case "blocking-accept", "select":
		p.thread(m)
	default:
		log.Printf("unknown mode %q", m)
		os.Exit(2)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func newProcess() (*process, error) {
	s, err := readSettings()
	if err != nil {
		return nil, err
	}
	counts, err := openCounts(s.counts, s.generation)
	if err == nil && dooms[s.mode] {
		counts.doomed.Store(1)
	}
	return &process{s, counts}, err
}

// dooms are the modes that end the process, or have it killed, whatever it has accepted.
var dooms = map[string]bool{
	"crash-init": true, "crash-accepting": true, "hang-init": true, "hang-accepting": true,
	"ready-then-die": true, "raw-ready-then-die": true, "ignore-drain": true, "raw-ignore-drain": true,
}

// server answers the site and counts. A connection is counted soon after it was
// accepted, so the book stands inside one accept all the time.
func (p *process) server() *drain.Server {
	s := p.site()
	p.counts.entered.Add(1)
	s.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			p.counts.connections.Add(1)
		}
	}
	return drain.HTTP(s)
}

// site is the server for a listener that counts what it accepts.
func (p *process) site() *http.Server {
	h := site.Handler(p.generation)
	if p.lines {
		h = talkative(h)
	}
	return &http.Server{Handler: p.counts.handler(h)}
}

// talkative writes a line to stderr for each request, as many servers do.
func talkative(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s", r.Method, r.URL.Path)
		h.ServeHTTP(w, r)
	})
}

// native runs the modes that use package handover.
func (p *process) native(mode string) {
	child, err := handover.Inherit()
	check(err)
	p.nativeHealth(child)
	target := p.listen(child, mode)
	switch mode {
	case "crash-init":
		time.Sleep(p.delay)
		os.Exit(died)
	case "hang-init":
		select {}
	case "ready-then-die":
		go p.die() // not waited for: it ends the process
	case "ignore-drain":
		signal.Ignore(syscall.SIGTERM)
	case "double-fork":
		check(grandchild())
	}
	check(child.Ready())
	log.Printf("generation %d is ready", p.generation)
	<-child.Draining()
	if mode == "ignore-drain" {
		select {}
	}
	ctx, cancel := child.DrainContext(context.Background())
	defer cancel()
	check(drain.All(ctx, target))
}

// listen takes the socket and serves it.
func (p *process) listen(child *handover.Child, mode string) drain.Target {
	network := p.network
	if mode == "udp" {
		if network == "" {
			network = "udp"
		}
		c, err := child.ListenPacket("http", network, p.address)
		check(err)
		log.Printf("listening on %s", c.LocalAddr())
		t := &packets{conn: c, done: make(chan error, 1)}
		go t.serve(p.generation) // Shutdown waits for it
		return t
	}
	if network == "" {
		network = "tcp"
	}
	s := p.server()
	for _, name := range p.sockets {
		l, err := child.Listen(name, network, p.address)
		check(err)
		if len(p.sockets) == 1 {
			log.Printf("listening on %s", l.Addr())
		}
		go serve(s, l) // the drain waits for what it accepted
	}
	return s
}

func serve(s *drain.Server, l net.Listener) {
	// After a supervisor that gave up on this process the listener never
	// accepts; Ready says so too and ends the program.
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		log.Print(err)
	}
}

func (p *process) die() {
	time.Sleep(p.delay)
	os.Exit(died)
}

// packets answers datagrams until it is shut down: it then reads nothing more
// and has answered everything that it had read.
type packets struct {
	conn net.PacketConn
	done chan error
}

func (t *packets) serve(generation int) { t.done <- site.ServePacket(t.conn, generation) }

// Shutdown stops reading by a deadline in the past: closing would fail the
// answer to the datagram in hand.
func (t *packets) Shutdown(context.Context) error {
	if err := t.conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return err
	}
	if err := <-t.done; err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return t.conn.Close()
}

func (t *packets) Close() error { return t.conn.Close() }

// grandchild starts a sleeping process whose parent ends at once, in a session
// of its own, as a daemon would.
func grandchild() error {
	cmd := exec.Command("/bin/sh", "-c", `sleep 1000 </dev/null >/dev/null 2>&1 & echo grandchild $!`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("grandchild: %w", err)
	}
	_, err = os.Stdout.Write(out)
	return err
}
