// Command server is the example site as a server without handoverd, for the ways of restarting that handoverd is compared
// with: it binds for itself, with SO_REUSEPORT where -reuseport is given, or takes the socket of Server::Starter; and on SIGTERM
// it leaves as -leave says: "drain", by package drain, or "shutdown", by http.Server.Shutdown.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/drain"
	"github.com/handoverd/handover/internal/site"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address to bind")
	reusePort := flag.Bool("reuseport", false, "bind with SO_REUSEPORT")
	leave := flag.String("leave", "drain", "drain or shutdown")
	flag.Parse()
	number, starterPort := environment()
	generation, err := strconv.Atoi(number)
	check(err)
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	ln, err := listen(*addr, starterPort, *reusePort)
	check(err)
	inner := &http.Server{Handler: site.Handler(generation)}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if *leave == "shutdown" {
		go serve(inner.Serve, ln) // Shutdown below waits for it
		<-terms
		check(inner.Shutdown(ctx))
		return
	}
	server := drain.HTTP(inner)
	go serve(server.Serve, ln) // the drain below waits for it
	<-terms
	check(drain.All(ctx, server))
}

// listen binds, or takes the first socket of Server::Starter.
func listen(addr, starterPort string, reusePort bool) (net.Listener, error) {
	if first, _, _ := strings.Cut(starterPort, ";"); first != "" {
		_, number, _ := strings.Cut(first, "=")
		fd, err := strconv.Atoi(number)
		if err != nil {
			return nil, err
		}
		f := os.NewFile(uintptr(fd), first)
		defer func() { _ = f.Close() }()
		return net.FileListener(f)
	}
	config := net.ListenConfig{}
	if reusePort {
		config.Control = setReusePort
	}
	return config.Listen(context.Background(), "tcp4", addr)
}

func setReusePort(_, _ string, c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	}); cerr != nil {
		return cerr
	}
	return os.NewSyscallError("setsockopt SO_REUSEPORT", err)
}

func serve(serve func(net.Listener) error, ln net.Listener) {
	if err := serve(ln); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
