package main

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/handoverd/handover/drain"
)

// TestDrain asks with grpc-go's own client what drainbench asks with the wire format: a call is answered, and a stream that
// is told to leave ends with a status and with all its messages.
func TestDrain(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &echo{streams: &drain.Streams{}}
	server := grpc.NewServer(grpc.ForceServerCodec(raw{}))
	server.RegisterService(e.service(), nil)
	stopper := drain.Graceful(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(stopper.Listener(ln)) }()

	client, err := grpc.NewClient(ln.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	sent, got := []byte("hello"), []byte(nil)
	if err := client.Invoke(ctx, "/bench.Echo/Unary", &sent, &got); err != nil || string(got) != "hello" {
		t.Fatalf("unary: %q, %v", got, err)
	}
	stream, err := client.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/bench.Echo/Stream")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&sent); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for n := 0; ; n++ {
		if err := stream.RecvMsg(&got); err != nil {
			if status.Code(err) != codes.Unavailable || n == 0 {
				t.Errorf("the stream ended after %d messages with %v, want code Unavailable", n, err)
			}
			break
		}
		if want := fmt.Sprintf("message %d", n); string(got) != want {
			t.Errorf("got %q, want %q", got, want)
		}
		if n == 0 {
			go func() { _ = e.streams.Shutdown(ctx) }()
		}
	}
	if err := drain.All(ctx, stopper, e.streams); err != nil {
		t.Errorf("drain: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}
