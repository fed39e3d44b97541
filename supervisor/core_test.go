package supervisor

import (
	"time"

	"golang.org/x/sys/unix"
)

const sigUSR1 = int(unix.SIGUSR1)

// testSpec is a spec with the defaults of the design and one socket.
func testSpec(name string, change ...func(*Spec)) *Spec {
	s := &Spec{
		Config: ServiceConfig{
			Name: name,
			Ready: ReadyConfig{
				When: "auto", InitGrace: 30 * time.Second, Settle: 100 * time.Millisecond, AliveFor: time.Second,
			},
			Retire: RetireConfig{
				ParentShutdown: 15 * time.Minute, KillGrace: 5 * time.Second, AnswerTimeout: time.Second, MaxDraining: 3, OnMaxDraining: "wait",
				ReleaseTimeout: 5 * time.Second, OnNoRelease: "report",
			},
			Stop:    StopConfig{Deadline: 25 * time.Second},
			Restart: RestartConfig{BackoffMin: 100 * time.Millisecond, BackoffMax: 30 * time.Second},
		},
		Drain: sigTerm,
		Keys:  []SocketKey{{Name: "http", Key: "tcp:80"}},
	}
	for _, f := range change {
		f(s)
	}
	return s
}

func emptyState() State {
	return State{Version: StateVersion, BootID: "boot", Services: map[string]*Service{}}
}
