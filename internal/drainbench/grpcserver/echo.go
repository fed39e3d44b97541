package main

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/handoverd/handover/drain"
)

// The times of drainbench's own server.
const (
	unaryTakes   = 10 * time.Millisecond
	messageEvery = 200 * time.Millisecond
)

// echo is the service: a call that returns what it was given, and one whose messages never end.
type echo struct {
	streams *drain.Streams // nil: nobody tells a stream to leave
}

func (e *echo) service() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "bench.Echo",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Unary", Handler: unary}},
		Streams:     []grpc.StreamDesc{{StreamName: "Stream", Handler: e.stream, ServerStreams: true}},
	}
}

// unary is a grpc.MethodHandler, which wants the context in second place.
var unary = func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	var message []byte
	if err := decode(&message); err != nil {
		return nil, err
	}
	pause(ctx, unaryTakes)
	return &message, ctx.Err()
}

func (e *echo) stream(_ any, s grpc.ServerStream) error {
	var begin []byte
	if err := s.RecvMsg(&begin); err != nil {
		return err
	}
	left := make(chan struct{})
	if e.streams != nil {
		done, err := e.streams.Add("bench.Echo/Stream", func(drain.Reason) { close(left) }, nil)
		if err != nil {
			return status.Error(codes.Unavailable, err.Error())
		}
		defer done()
	}
	tick := time.NewTicker(messageEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		message := fmt.Appendf(nil, "message %d", n)
		if err := s.SendMsg(&message); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.Context().Done():
			return s.Context().Err()
		case <-left:
			return status.Error(codes.Unavailable, "another one serves you")
		}
	}
}

// raw passes messages as they are.
type raw struct{}

func (raw) Name() string { return "raw" }

func (raw) Marshal(v any) ([]byte, error) {
	message, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("message is a %T", v)
	}
	return *message, nil
}

func (raw) Unmarshal(data []byte, v any) error {
	message, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("message is a %T", v)
	}
	*message = append([]byte(nil), data...)
	return nil
}
