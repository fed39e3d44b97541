// Command streamclient holds WebSockets open while a command replaces their
// server, again and again. Each that ends is opened anew at once. It reports how
// they ended and when the clients came back, as only they can know.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"os/exec"
	"time"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "address of the server")
	clients := flag.Int("clients", 1000, "WebSockets to hold")
	rounds := flag.Int("rounds", 3, "how often the server is replaced")
	command := flag.String("exec", "", "shell command that replaces it, and returns when the old one has gone")
	window := flag.Duration("window", 10*time.Second, "the clients over this time are the mean rate")
	bucket := flag.Duration("bucket", 100*time.Millisecond, "reconnects are counted by this time")
	settle := flag.Duration("settle", 30*time.Second, "the longest to wait after that until all clients have come back")
	flag.Parse()

	b := newBook(*clients)
	for range *clients {
		// Not waited for: a client ends with the program.
		go hold(*addr, b)
	}
	if !b.all(0, *settle) {
		log.Fatalf("not all of %d clients are connected after %v", *clients, *settle)
	}
	reports := []report{}
	for range *rounds {
		begin := time.Now()
		b.take()
		cmd := exec.Command("sh", "-c", *command)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			log.Fatalf("%s: %v", *command, err)
		}
		took := time.Since(begin)
		if !b.all(*clients, *settle) {
			log.Fatalf("not all of %d clients have lost a WebSocket and got another %v after the replacement", *clients, *settle)
		}
		reports = append(reports, b.take().report(*clients, begin, took, *window, *bucket))
	}
	if err := json.NewEncoder(os.Stdout).Encode(reports); err != nil {
		log.Fatal(err)
	}
}
