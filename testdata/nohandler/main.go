// Command nohandler is a server as many are: it takes its socket as descriptor 3, answers, and has never heard of a
// signal. SIGTERM ends it at once, with whatever it has in hand.
package main

import (
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

// work is what an answer takes: long enough that some are always in hand.
const work = 10 * time.Millisecond

func main() {
	ln, err := net.FileListener(os.NewFile(3, "http"))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(ln, http.HandlerFunc(answer)))
}

func answer(w http.ResponseWriter, r *http.Request) {
	select {
	case <-time.After(work):
		_, _ = io.WriteString(w, "answered\n")
	case <-r.Context().Done():
	}
}
