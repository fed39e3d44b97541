package main

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// A column is one kind of client of the first table.
type column struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	Unit  string `json:"unit"` // what is counted

	// Target is how many there are in a cell at the least, and Stops how many generations leave meanwhile, at the least.
	Target int `json:"target"`
	Stops  int `json:"stops"`

	// Every is the time between two stops, Limit what a generation has to leave.
	Every time.Duration `json:"every_ns"`
	Limit time.Duration `json:"limit_ns"`

	Load string `json:"load"` // in words

	// GRPC says that the server is grpc-go's, and not net/http's.
	GRPC bool `json:"grpc_go,omitempty"`

	begin func(b *bench) (client, error)
}

// bench is what a client of one cell sees of it.
type bench struct {
	ctx  context.Context
	addr string // of the server
	dir  string // for the socket of a queue
	size size
}

// size is how much of a table is run.
type size struct {
	requests, streams int           // in a cell, at least
	stops             int           // in a cell, at least
	upload            time.Duration // how long an upload takes
	visitors          int           // streams or uploads at a time
	rate              float64       // requests a second
	grpcGo            bool          // also the columns whose server is grpc-go's
}

// full is what the table is made with, brief what its test runs.
var (
	full  = size{requests: 10_000, streams: 1_000, stops: 20, upload: 5 * time.Second, visitors: 160, rate: 700, grpcGo: true}
	brief = size{requests: 300, streams: 60, stops: 3, upload: 500 * time.Millisecond, visitors: 30, rate: 400}
)

// oneWay is how long a byte is under way where the clients are far.
const oneWay = 5 * time.Millisecond

// An answer takes from fastest to fastest + spread, so that there always are some under way.
const (
	fastest = 5 * time.Millisecond
	spread  = 20 * time.Millisecond
)

// queuePath is where the queue of a cell is.
func queuePath(dir string) string { return dir + "/queue" }

// columns are all of them.
func (s size) columns() []column {
	requests := func(name, title, load string, begin func(*bench) (client, error)) column {
		return column{
			Name: name, Title: title, Unit: "requests", Load: load, Target: s.requests, Stops: s.stops,
			Every: 400 * time.Millisecond, Limit: 10 * time.Second, begin: begin,
		}
	}
	streams := func(name, title, load string, begin func(*bench) (client, error)) column {
		return column{
			Name: name, Title: title, Unit: "streams", Load: load, Target: s.streams, Stops: s.stops,
			Every: 500 * time.Millisecond, Limit: 3 * time.Second, begin: begin,
		}
	}
	upload := streams("upload", "5 s upload", "POST of 20 kB in ten pieces over 5 s, 160 at a time, each on a connection of its own", beginUploads)
	upload.Unit, upload.Every, upload.Limit = "requests", s.upload/3, 4*s.upload
	unary := requests("grpc-unary", "gRPC unary, net/http", "calls of 10 ms, 16 at a time on each of 4 connections", beginUnary)
	stream := streams("grpc-stream", "gRPC stream, net/http", "calls whose messages never end, 160 on 4 connections", beginStreams)
	worker := streams("worker", "worker", "4 jobs of 40 ms in hand; each has one effect, in its middle; a lease of 1 s", beginQueue)
	worker.Unit, worker.Limit = "jobs", 10*time.Second
	all := []column{
		requests("fresh", "new connections", "GET of 5 to 25 ms, a connection each, 700/s", beginFresh),
		requests("keepalive", "keep-alive GET", "GET of 5 to 25 ms on 64 connections, 700/s, round trip 10 ms", beginKeepAlive),
		requests("post", "keep-alive POST", "POST, answered at once, on 64 connections, 700/s, round trip 10 ms", beginPost),
		requests("h2", "HTTP/2", "GET of 5 to 25 ms, 16 streams at a time on each of 4 connections, 700/s, round trip 10 ms", beginH2),
		unary,
		stream,
		grpcGo(unary, "grpc-go-unary", "gRPC unary, grpc-go"),
		grpcGo(stream, "grpc-go-stream", "gRPC stream, grpc-go"),
		streams("websocket", "WebSocket", "160 connections, a message on each every 250 ms", beginWebSocket),
		streams("sse", "event stream", "160 connections, an event on each every 200 ms", beginEvents),
		upload,
		worker,
	}
	return slices.DeleteFunc(all, func(c column) bool { return c.GRPC && !s.grpcGo })
}

// grpcGo is the same column with the other server, whose program has to be built.
func grpcGo(c column, name, title string) column {
	c.Name, c.Title, c.GRPC = name, title, true
	return c
}

func beginFresh(b *bench) (client, error) {
	return startDrill(b, drill.Load{Mode: drill.ModeFresh, Rate: b.size.rate, Delay: fastest, Spread: spread}, false)
}

func beginKeepAlive(b *bench) (client, error) {
	return startDrill(b, drill.Load{Mode: drill.ModeKeepAlive, Rate: b.size.rate, Clients: 64, Delay: fastest, Spread: spread}, true)
}

func beginPost(b *bench) (client, error) {
	return startDrill(b, drill.Load{Mode: drill.ModePost, Rate: b.size.rate, Clients: 64}, true)
}

func beginH2(b *bench) (client, error) {
	return startDrill(b, drill.Load{
		Mode: drill.ModeH2C, Rate: b.size.rate, Clients: 64, Streams: 16, Delay: fastest, Spread: spread,
	}, true)
}

func beginWebSocket(b *bench) (client, error) {
	return startDrill(b, drill.Load{Mode: drill.ModeWebSocket, Clients: b.size.visitors, Pause: 250 * time.Millisecond}, false)
}

// grpcClients are four, of a connection each, and what closes them.
func grpcClients() (clients []*http.Client, closeAll func()) {
	for range 4 {
		clients = append(clients, overHTTP2())
	}
	return clients, func() {
		for _, c := range clients {
			c.CloseIdleConnections()
		}
	}
}

func beginUnary(b *bench) (client, error) {
	clients, closeAll := grpcClients()
	s := startSwarm(b.ctx, 64, 80*time.Millisecond, unaryClient(b.addr, clients, 80*time.Millisecond))
	s.close = closeAll
	return s, nil
}

func beginStreams(b *bench) (client, error) {
	clients, closeAll := grpcClients()
	s := startSwarm(b.ctx, b.size.visitors, 100*time.Millisecond, streamClient(b.addr, clients))
	s.close = closeAll
	return s, nil
}

func beginEvents(b *bench) (client, error) {
	return startSwarm(b.ctx, b.size.visitors, 100*time.Millisecond, eventClient(b.addr)), nil
}

func beginUploads(b *bench) (client, error) {
	return startSwarm(b.ctx, b.size.visitors, b.size.upload, uploadClient(b.addr, b.size.upload)), nil
}

// jobs is the queue as a client: what it gives out is the load.
type jobs struct {
	*queue
	ctx context.Context
}

func (j jobs) finish() tally {
	ctx, cancel := context.WithTimeout(j.ctx, 10*time.Second)
	defer cancel()
	t := j.settle(ctx)
	_ = j.close() // the workers that ask it go on to the end of their generation
	return t
}

func beginQueue(b *bench) (client, error) {
	q, err := newQueue(queuePath(b.dir), time.Second)
	if err != nil {
		return nil, err
	}
	return jobs{q, b.ctx}, nil
}
