package supervisor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/handoverd/handover/fdpass"
)

// How a tcp probe of a socket that handoverd listens on waits for the program to
// take the connection.
const takenEvery = 10 * time.Millisecond

// asker is how a question is asked, of this generation. The function is called
// beside the loop.
func (l *loop) asker(g *Generation, p *ProbeConfig) func(context.Context) error {
	if p.Kind == "exec" {
		return l.execAsker(g, p)
	}
	if p.URL != "" {
		return httpAsker(inGeneration(p.URL, g.N), "", p.Status, nil)
	}
	network, address, queue := l.whom(g, p)
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
	if p.Kind == "tcp" {
		return func(ctx context.Context) error {
			c, err := dial(ctx)
			if err != nil {
				return withoutAddress(err)
			}
			defer func() { _ = c.Close() }()
			return queue(ctx)
		}
	}
	host := p.Host
	if host == "" {
		host = "localhost"
	}
	return httpAsker("http://"+host+p.Path, host, p.Status, dial)
}

// whom says where the program is asked, and gives a function that waits until it
// has taken the connections that wait for it there.
func (l *loop) whom(g *Generation, p *ProbeConfig) (network, address string, taken func(context.Context) error) {
	taken = func(context.Context) error { return nil } // it listens itself: to connect is enough
	if p.Socket == "" {
		a, _, err := fdpass.ParseAddr(inGeneration(p.Address, g.N))
		if err != nil {
			return "tcp", p.Address, taken // it was checked with another number: to dial it tells
		}
		return dialNetwork(a), dialAddress(a), taken
	}
	for _, k := range g.ownKeys() {
		s := l.sockets.open[k.Key]
		if k.Name != p.Socket || s == nil {
			continue
		}
		return dialNetwork(s.Addr()), dialAddress(s.Addr()), func(ctx context.Context) error { return l.taken(ctx, k.Key) }
	}
	return "tcp", "", taken
}

func dialNetwork(a fdpass.Addr) string {
	if isInet(a.Kind) {
		return "tcp"
	}
	return "unix"
}

// taken waits until nobody waits to be accepted on a socket of ours. The kernel
// completes connections to a socket that listens, whoever accepts them later, so a
// connection alone proves nothing.
func (l *loop) taken(ctx context.Context, key string) error {
	tick := time.NewTicker(takenEvery)
	defer tick.Stop()
	for {
		n := make(chan int, 1)
		l.call(func() {
			if s := l.sockets.open[key]; s != nil {
				n <- queued(s)
				return
			}
			n <- 1
		})
		select {
		case waiting := <-n:
			if waiting == 0 {
				return nil
			}
		case <-ctx.Done():
			return errNotTaken
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errNotTaken
		}
	}
}

var errNotTaken = errors.New("the program does not accept the connection")

// httpAsker asks with a GET on a connection of its own each time.
func httpAsker(target, host string, status int, dial func(context.Context) (net.Conn, error)) func(context.Context) error {
	client := onceClient(dial)
	return func(ctx context.Context) error {
		got, _, err := requestOnce(ctx, client, http.MethodGet, target, host)
		if err != nil {
			return withoutAddress(err)
		}
		if good := got == status || status == 0 && got/100 == 2; !good {
			return fmt.Errorf("HTTP status %d", got)
		}
		return nil
	}
}

// withoutAddress is why there was no answer. Where was asked is configured, and so
// known; the port of our end makes each failure look like another.
func withoutAddress(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = fmt.Errorf("%s: %w", op.Op, op.Err)
	}
	return err
}

// execAsker runs a program: exit status 0 is good. It is told the generation and
// where its own sockets are, and is given none.
func (l *loop) execAsker(g *Generation, p *ProbeConfig) func(context.Context) error {
	proto := handout{service: g.Spec.Config.Name, generation: g.N}
	l.describeOwn(&proto, g)
	return func(ctx context.Context) error {
		h := proto
		h.token = rand.Text()
		sh, err := besideSpec(g.Spec, p.Exec, &h, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return errors.New("its program is not there any more") // no environment in a status
		}
		if err != nil {
			return err
		}
		text, err := l.runBeside(ctx, sh, nil, h.token, p.Timeout)
		if err != nil {
			return fmt.Errorf("%w%s", err, lastLine(text))
		}
		return nil
	}
}

// lastLine is what a program has written last, as a clause: why it does not agree.
func lastLine(text []byte) string {
	const most = 200 // runes
	lines := bytes.Split(bytes.TrimRight(text, "\n"), []byte{'\n'})
	last := strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, string(lines[len(lines)-1])))
	if last == "" {
		return ""
	}
	return fmt.Sprintf(": %.*s", most, last)
}
