package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/handoverd/handover/drain"
)

// share opens a second listener on the socket of l, as a new generation does.
func share(t *testing.T, l net.Listener) net.Listener {
	t.Helper()
	rc, err := l.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var fd int
	var derr error
	if err := rc.Control(func(old uintptr) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		if fd, derr = syscall.Dup(int(old)); derr == nil {
			syscall.CloseOnExec(fd)
		}
	}); err != nil || derr != nil {
		t.Fatal(err, derr)
	}
	f := os.NewFile(uintptr(fd), "shared")
	defer f.Close()
	second, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	return second
}

// A load calls without pause, counts what was asked, and what was lost.
type load struct {
	address string
	stop    atomic.Bool
	asked   atomic.Int64
	wg      sync.WaitGroup
	mu      sync.Mutex
	lost    []string
}

// run calls until stopped; on one connection for as long as the server keeps it,
// or on a new one each time.
func (l *load) run(call func(*grpc.ClientConn, string) error, fresh bool) {
	defer l.wg.Done()
	var cc *grpc.ClientConn
	for n := 0; !l.stop.Load(); n++ {
		if cc == nil {
			c, err := grpc.NewClient(l.address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
			if err != nil {
				l.fail(err)
				return
			}
			cc = c
		}
		l.asked.Add(1)
		if err := call(cc, strconv.Itoa(n)); err != nil {
			l.fail(err)
		}
		if fresh {
			cc.Close()
			cc = nil
		}
	}
	if cc != nil {
		cc.Close()
	}
}

func (l *load) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = append(l.lost, err.Error())
}

func unary(cc *grpc.ClientConn, want string) error {
	got := new(wrapperspb.StringValue)
	if err := cc.Invoke(context.Background(), "/handover.Echo/Say", wrapperspb.String(want), got); err != nil {
		return err
	}
	return same(got.Value, want)
}

func stream(cc *grpc.ClientConn, want string) error {
	s, err := cc.NewStream(context.Background(), &grpc.StreamDesc{ServerStreams: true}, "/handover.Echo/Spell")
	if err != nil {
		return err
	}
	if err := s.SendMsg(wrapperspb.String(want)); err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	got := ""
	for {
		part := new(wrapperspb.StringValue)
		switch err := s.RecvMsg(part); {
		case errors.Is(err, io.EOF):
			return same(got, want)
		case err != nil:
			return err
		}
		got += part.Value
	}
}

func same(got, want string) error {
	if got != want {
		return fmt.Errorf("asked %q, got %q", want, got)
	}
	return nil
}

// Many generations on one socket, each retired under load by the Sequence.
func TestDrainsLoseNoCall(t *testing.T) {
	leaves := 50
	if testing.Short() {
		leaves = 10
	}
	base, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	var served atomic.Int64
	count := func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		served.Add(1)
		return next(ctx, in)
	}
	countStream := func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		served.Add(1)
		return next(srv, s)
	}
	serve := func() (leave func()) {
		server := grpc.NewServer(grpc.UnaryInterceptor(count), grpc.StreamInterceptor(countStream))
		server.RegisterService(&echo, nil)
		stopper := drain.Graceful(server)
		l := stopper.Listener(share(t, base))
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(l) }()
		return func() {
			seq := drain.Sequence{Deadline: 20 * time.Second}
			seq.Add("grpc", stopper)
			seq.Begin("test")
			if err := seq.Run(context.Background()); err != nil {
				t.Errorf("leave: %v", err)
			}
			// A generation may be told to leave before it has begun to serve.
			if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				t.Errorf("Serve = %v", err)
			}
		}
	}
	l := &load{address: base.Addr().String()}
	old := serve()
	for range 4 {
		l.wg.Add(3)
		go l.run(unary, false)
		go l.run(unary, true)
		go l.run(stream, false)
	}
	var leaving sync.WaitGroup
	for range leaves {
		next := serve()
		want := l.asked.Load() + 100
		leaving.Go(old)
		for l.asked.Load() < want {
			<-time.After(time.Millisecond) // paced by work done
		}
		old = next
	}
	l.stop.Store(true)
	l.wg.Wait()
	leaving.Wait()
	old()
	t.Logf("%d calls and streams, %d drains, %d lost", l.asked.Load(), leaves+1, len(l.lost))
	if len(l.lost) > 0 {
		t.Errorf("lost %d of %d, first: %s", len(l.lost), l.asked.Load(), l.lost[0])
	}
	if l.asked.Load() != served.Load() {
		t.Errorf("asked %d times, served %d times", l.asked.Load(), served.Load())
	}
}
