package main

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// echo is the service, written by hand so that the example needs no generator: a
// call that returns what it was given, and a stream that sends it part by part.
var echo = grpc.ServiceDesc{
	ServiceName: "handover.Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Say", Handler: func(
		_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor,
	) (any, error) {
		return say(ctx, decode, intercept)
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Spell", Handler: spell, ServerStreams: true}},
}

func say(ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
	in := new(wrapperspb.StringValue)
	if err := decode(in); err != nil {
		return nil, err
	}
	if intercept == nil {
		return in, nil
	}
	return intercept(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/handover.Echo/Say"},
		func(context.Context, any) (any, error) { return in, nil })
}

// spell sends each byte, with a pause between.
func spell(_ any, stream grpc.ServerStream) error {
	in := new(wrapperspb.StringValue)
	if err := stream.RecvMsg(in); err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range len(in.Value) {
		if err := stream.SendMsg(wrapperspb.String(in.Value[i : i+1])); err != nil {
			return err
		}
		<-tick.C
	}
	return nil
}
