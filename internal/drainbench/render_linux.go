package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const head = `# What is lost when a program leaves

<!-- Written by "make drain-table" (internal/drainbench); the figures are in drain.json. Do not edit. -->

Two tables: a program that is *replaced* while another generation has its socket already, and one that is *stopped* behind a
balancer that learns of it late. %s, %d cores, Linux %s, %s, HAProxy %s, nginx %s; measured %s, %.0f minutes. ` + "`make drain-table`" + ` does it again.

`

const replaced = `## Replaced, with the socket kept

A Go server is replaced by its like again and again, under load. The socket stays open in a holder that does nothing else, and
each new generation accepts before the old one is told to leave; what differs is how that one leaves:

- **exit at once**: it kills itself, as the default action of SIGTERM would.
- **%[1]s**: called when it is told, and the program ends when that returns.
- **%[2]s**: it serves on for a second without accepting.
- **%[3]s**: ` + "`drain.Sequence`" + `, with the server, the streams and the workers added to it.

A cell is *lost / all*. Lost is: a request without a whole, verified answer; a stream that the server ended without a goodbye of
its protocol (WebSocket: close 1012; event stream: ` + "`retry:`" + ` and a last event; gRPC: a status); a job that was not
done, or done more than once. Clients repeat nothing, with the one exception that HTTP/2 makes: a request that the server says it
has not processed (REFUSED_STREAM, or above the last stream of GOAWAY) is sent again, once, and is no loss; how many these were is
below. Of streams those are counted that the server ended, so a cell in which all are lost says that nobody was told.

`

const replacedNotes = `The clients of gRPC have its wire format written by hand on net/http's HTTP/2, and ask two servers: one made in the same way, and
grpc-go's (internal/drainbench/grpcserver, a module of its own), where ` + "`GracefulStop`" + ` stands for ` + "`Shutdown`" + ` and ` + "`drain.Graceful`" + ` for the last column.
A stream under ` + "`Shutdown`" + ` gets a GOAWAY at the begin, and nothing at the end: its messages stop with the connection, when the
deadline of %[1]v is over. The event stream ends in the same way. WebSockets are forgotten by ` + "`Shutdown`" + `: they
end with the process. Of a worker it knows nothing at all.

A 0 is no proof: after n stops it says, with 95 %% confidence, less than 3/n losses a stop.

### The same in detail

`

// render is the page.
func (r *results) render() string {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, head, m.CPU, m.Cores, m.Kernel, m.Go, m.HAProxy, m.Nginx, r.Date, r.Minutes)
	if len(r.Cells) > 0 {
		fmt.Fprintf(&b, replaced, wayShutdown.title(), wayListener.title(), wayDrain.title())
		r.renderCells(&b)
	}
	if len(r.Lines) > 0 {
		r.renderBehind(&b)
	}
	return b.String()
}

// renderCells is the first table, with the clients downwards: there are more of them than a page is wide.
func (r *results) renderCells(b *strings.Builder) {
	b.WriteString("| client | counted |")
	for _, w := range ways {
		b.WriteString(" " + w.title() + " |")
	}
	b.WriteString("\n|---|---|" + strings.Repeat("--:|", len(ways)) + "\n")
	limit := time.Duration(0)
	for _, c := range r.Columns {
		cells := r.cellsOf(c)
		if len(cells) == 0 {
			continue
		}
		if c.Name == "grpc-stream" {
			limit = c.Limit
		}
		fmt.Fprintf(b, "| %s | %s |", c.Title, c.Unit)
		for _, one := range cells {
			fmt.Fprintf(b, " %s |", lostOf(one.tally))
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	fmt.Fprintf(b, replacedNotes, limit)
	b.WriteString("| client | way | stops | lost, by kind | else | how generations ended |\n|---|---|--:|---|---|---|\n")
	for _, c := range r.Columns {
		for _, one := range r.cellsOf(c) {
			fmt.Fprintf(b, "| %s | %s | %d | %s | %s | %s |\n",
				c.Title, one.Way.title(), one.Stops, counts(one.Kinds), counts(one.Notes), counts(one.Exits))
		}
	}
	b.WriteString("\nThe loads:\n\n")
	for _, c := range r.Columns {
		if len(r.cellsOf(c)) > 0 {
			fmt.Fprintf(b, "- %s: %s; a stop every %v, deadline %v.\n", c.Title, c.Load, c.Every.Round(10*time.Millisecond), c.Limit)
		}
	}
	b.WriteString("\n")
}

// cellsOf are the cells of a column, in the order of the ways.
func (r *results) cellsOf(c column) []cell {
	var found []cell
	for _, one := range r.Cells {
		if one.Column == c.Name {
			found = append(found, one)
		}
	}
	return found
}

// lostOf is "**0** / 10,000".
func lostOf(t tally) string {
	lost := thousands(t.Lost)
	if t.Lost == 0 {
		lost = "**0**"
	}
	return lost + " / " + thousands(t.Total)
}

func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// counts is "12 eof, 3 reset".
func counts(m map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %s", thousands(m[name]), name))
	}
	return strings.Join(parts, ", ")
}
