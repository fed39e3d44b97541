package drain_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/handoverd/handover/drain"
)

// A whole server: readiness, a lame duck phase of 5 s, the lossless leave, and a
// pool that is closed at the end. Under handoverd, set Supervisor to the
// *handover.Child.
func ExampleSequence() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}

	mux := http.NewServeMux()
	server := drain.HTTP(&http.Server{Handler: mux})
	seq := &drain.Sequence{
		Deadline: 25 * time.Second,
		LameDuck: drain.Timer(50 * time.Millisecond), // several seconds in earnest
		OnPhase:  func(t drain.Transition) { fmt.Println(t.From, "→", t.To) },
	}
	seq.Add("http", server)
	seq.OnClose("database", func(context.Context) error { fmt.Println("database closed"); return nil })
	mux.Handle("GET /ready", seq.ReadyHandler())
	mux.Handle("GET /healthz", seq.LiveHandler())
	go server.Serve(listener)

	seq.Begin("the example is over") // in earnest the signal does it
	if err := seq.Run(ctx); err != nil {
		fmt.Println(err) // names what was cut; exit with 3
	}
	// Output:
	// serving → lame duck
	// lame duck → draining
	// draining → closing
	// database closed
	// closing → done
}

// Two loops that wait for more than a clock.
func ExampleSequence_lameDuck() {
	// Three failed probes seen by each prober, and 8 s for the balancer to act.
	polling := &drain.Sequence{LameDuck: drain.ProbesSeen{Count: 3, Then: 8 * time.Second, Max: 15 * time.Second}}

	// HAProxy says itself that nothing comes any more.
	drained := func(ctx context.Context) error { return errors.ErrUnsupported } // set server b/s state drain; wait for scur 0
	asking := &drain.Sequence{LameDuck: drain.Acknowledged{By: drained, Max: 15 * time.Second}}

	fmt.Println(polling.Budget().Check(), asking.Budget().Check())
	// Output: <nil> <nil>
}

// An event stream says goodbye with a last event, which tells the client when to
// connect anew.
func ExampleStreams() {
	streams := &drain.Streams{Window: 10 * time.Second, Age: drain.Age{Max: time.Hour, Grace: time.Minute}}
	events := func(w http.ResponseWriter, r *http.Request) {
		leave := make(chan struct{})
		done, err := streams.Add("events "+r.RemoteAddr, func(drain.Reason) { close(leave) }, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer done()
		w.Header().Set("Content-Type", "text/event-stream")
		for {
			select {
			case <-leave:
				io.WriteString(w, "retry: 500\nevent: restart\ndata: \n\n")
				return
			case <-r.Context().Done():
				return
				// case event := <-…
			}
		}
	}
	http.HandleFunc("GET /events", events)
	// seq.Add("events", streams), beside the server: the handler returns, and
	// the connection is the server's again.
}

// Two workers on a queue. A job in hand is finished, or given back when the
// deadline is near.
func ExampleWorkers() {
	var mu sync.Mutex
	jobs := []string{"a", "b"}
	all := make(chan struct{})
	var left sync.WaitGroup
	left.Add(len(jobs))
	go func() { left.Wait(); close(all) }()
	workers := &drain.Workers{
		Count: 2,
		Claim: func(context.Context) (*drain.Work, error) {
			mu.Lock()
			defer mu.Unlock()
			if len(jobs) == 0 {
				return nil, nil // asked again after Idle
			}
			job := jobs[0]
			jobs = jobs[1:]
			return &drain.Work{
				Name:   "job " + job,
				Run:    func(context.Context) error { left.Done(); return nil },
				Return: func(context.Context) error { return nil }, // UPDATE … SET lease = NULL
			}, nil
		},
	}
	go workers.Run()
	<-all
	seq := &drain.Sequence{}
	seq.Add("workers", workers)
	seq.Begin("done")
	fmt.Println(seq.Run(context.Background()), workers.Len())
	// Output: <nil> 0
}

func ExampleBudget() {
	budget := drain.Budget{
		Key: "terminationGracePeriodSeconds", Limit: 30 * time.Second,
		Hook: 5 * time.Second, LameDuck: 10 * time.Second, KillGrace: 5 * time.Second, Margin: 5 * time.Second,
	}
	fmt.Println(budget.Check())
	for _, line := range budget.Lines() {
		fmt.Println(line.From, line.Name)
	}
	budget.LameDuck = 20 * time.Second
	fmt.Println(budget.Check())
	// Output:
	// <nil>
	// 0s pre-stop hook
	// 5s lame duck
	// 15s drain
	// 20s kill grace
	// 25s margin
	// drain: terminationGracePeriodSeconds = 30s: hook = 5s, lame_duck.max = 20s, kill_grace = 5s and margin = 5s leave no time to drain: together they must be shorter
}
