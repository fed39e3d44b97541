package drain_test

import (
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/handoverd/handover/drain"
)

func TestReloadLadder(t *testing.T) {
	kill := func(at time.Duration) drain.Step {
		return drain.Step{After: at, Action: drain.Kill, Signal: syscall.SIGKILL}
	}
	sig := func(at time.Duration, s syscall.Signal) drain.Step {
		return drain.Step{After: at, Action: drain.Signal, Signal: s}
	}
	answerable := func(s drain.Step) drain.Step { s.UnlessAnswered = true; return s }
	message := drain.Step{Action: drain.Message}
	const m, s = time.Minute, time.Second
	tests := []struct {
		name string
		got  drain.Ladder
		want drain.Ladder
	}{
		{
			"SIGTERM drains: not sent twice", drain.Reload(syscall.SIGTERM, 15*m, 5*s),
			drain.Ladder{sig(0, syscall.SIGTERM), kill(15 * m)},
		},
		{
			"another signal drains", drain.Reload(syscall.SIGUSR1, 15*m, 5*s),
			drain.Ladder{sig(0, syscall.SIGUSR1), sig(15*m-5*s, syscall.SIGTERM), kill(15 * m)},
		},
		{
			"native", drain.Reload(syscall.SIGTERM, 15*m, 5*s).Native(5*s, s),
			drain.Ladder{message, answerable(sig(s, syscall.SIGTERM)), sig(15*m-5*s, syscall.SIGTERM), kill(15 * m)},
		},
		{
			"native with another signal", drain.Reload(syscall.SIGUSR1, 15*m, 5*s).Native(5*s, 3*s),
			drain.Ladder{message, answerable(sig(3*s, syscall.SIGUSR1)), sig(15*m-5*s, syscall.SIGTERM), kill(15 * m)},
		},
		{
			"native in less than the answer timeout", drain.Stop(s/2, 0, syscall.SIGTERM).Native(0, s),
			drain.Ladder{message, answerable(sig(s/2, syscall.SIGTERM)), sig(s/2, syscall.SIGTERM), kill(s / 2)},
		},
		{
			"native, and no answer is waited for", drain.Reload(syscall.SIGUSR1, 15*m, 5*s).Native(5*s, 0),
			drain.Ladder{message, sig(15*m-5*s, syscall.SIGTERM), kill(15 * m)},
		},
		{
			"the same where SIGTERM drains", drain.Reload(syscall.SIGTERM, 15*m, 5*s).Native(5*s, -s),
			drain.Ladder{message, sig(15*m-5*s, syscall.SIGTERM), kill(15 * m)},
		},
		{"native, SIGKILL drains", drain.Reload(syscall.SIGKILL, m, s).Native(s, 0), drain.Ladder{message, kill(0)}},
		{
			"stop with less left than the grace", drain.Stop(2*s, 5*s, syscall.SIGQUIT),
			drain.Ladder{sig(0, syscall.SIGQUIT), sig(0, syscall.SIGTERM), kill(2 * s)},
		},
		{
			"stop with nothing left", drain.Stop(-s, 5*s, syscall.SIGTERM),
			drain.Ladder{sig(0, syscall.SIGTERM), kill(0)},
		},
		{"SIGKILL drains", drain.Reload(syscall.SIGKILL, m, s), drain.Ladder{kill(0)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, tt.got); diff != "" {
				t.Errorf("ladder (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever the times: ordered, the kill last and at the limit, and walking it at
// any moments takes each step once.
func TestLadderAlwaysEndsInKill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sig := rapid.SampledFrom([]syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP}).Draw(t, "signal")
		limit := time.Duration(rapid.Int64Range(-1e9, 1e12).Draw(t, "limit"))
		grace := time.Duration(rapid.Int64Range(-1e9, 1e12).Draw(t, "grace"))
		answered := rapid.Bool().Draw(t, "answered")
		l := drain.Reload(sig, limit, grace)
		if rapid.Bool().Draw(t, "native") {
			l = l.Native(grace, time.Duration(rapid.Int64Range(-1e9, 1e11).Draw(t, "answer")))
		}
		if last := l[len(l)-1]; last.Action != drain.Kill || last.After != max(limit, 0) || l.Deadline() != last.After {
			t.Fatalf("last step %+v, deadline %v, limit %v", last, l.Deadline(), limit)
		}
		for i := range l {
			if l[i].After < 0 || i > 0 && l[i].After < l[i-1].After {
				t.Fatalf("not in order: %+v", l)
			}
		}
		data, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		var back drain.Ladder
		if err := json.Unmarshal(data, &back); err != nil || !cmp.Equal(l, back) {
			t.Fatalf("JSON and back: %v, %+v", err, back)
		}
		var walked drain.Ladder
		for taken := 0; ; {
			at, ok := l.Next(taken)
			if !ok {
				break
			}
			at += time.Duration(rapid.Int64Range(0, 1e11).Draw(t, "late"))
			due, now := l.Due(at, taken, answered)
			if now <= taken {
				t.Fatalf("nothing due at %v after %d", at, taken)
			}
			walked, taken = append(walked, due...), now
		}
		var want drain.Ladder
		for _, s := range l {
			if !answered || !s.UnlessAnswered {
				want = append(want, s)
			}
		}
		if diff := cmp.Diff(want, walked); diff != "" {
			t.Fatalf("walked (-want +got):\n%s", diff)
		}
	})
}
