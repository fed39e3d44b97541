package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestProber: when it asks, how long it waits for an answer, and what it tells.
func TestProber(t *testing.T) {
	for name, c := range map[string]struct {
		cfg     ProbeConfig
		answers []string // one each time, the last one for ever; "": good, "hang": none
		takes   time.Duration
		want    []string
	}{
		"at once": {
			ProbeConfig{Interval: time.Second, Timeout: time.Second, Successes: 1, Failures: 3},
			[]string{""},
			0,
			[]string{"0s good"},
		},
		"three successes": {
			ProbeConfig{Interval: time.Second, Timeout: time.Second, Successes: 3, Failures: 3},
			[]string{"", "", "no", "", "", ""},
			0,
			[]string{"2s no", "5s good"},
		},
		"three failures": {
			ProbeConfig{Interval: 2 * time.Second, Timeout: time.Second, Successes: 1, Failures: 3},
			[]string{"", "no", "no", "", "no", "no", "no"},
			0,
			[]string{"0s good", "2s no", "6s good", "8s no", "12s bad no"},
		},
		"another failure is news": {
			ProbeConfig{Interval: time.Second, Timeout: time.Second, Successes: 1, Failures: 2},
			[]string{"a", "a", "a", "b", ""},
			0,
			[]string{"0s a", "1s bad a", "3s bad b", "4s good"},
		},
		"the interval begins at the answer": {
			ProbeConfig{Interval: time.Second, Timeout: time.Minute, Successes: 3, Failures: 3},
			[]string{""},
			10 * time.Second,
			[]string{"32s good"},
		},
		"the timeout": {
			ProbeConfig{Interval: time.Second, Timeout: 5 * time.Second, Successes: 1, Failures: 2},
			[]string{"hang"},
			0,
			[]string{"5s context deadline exceeded", "11s bad context deadline exceeded"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin, n := time.Now(), 0
				var got []string
				ctx, cancel := context.WithCancel(t.Context())
				p := &prober{cfg: &c.cfg, tell: func(v verdict) {
					text := fmt.Sprint(time.Since(begin))
					switch {
					case v.bad:
						text += " bad " + v.text
					case v.text != "":
						text += " " + v.text
					default:
						text += " good"
					}
					got = append(got, text)
				}}
				p.ask = func(ctx context.Context) error {
					time.Sleep(c.takes)
					answer := c.answers[min(n, len(c.answers)-1)]
					n++
					switch answer {
					case "":
						return nil
					case "hang":
						<-ctx.Done()
						return ctx.Err()
					}
					return errors.New(answer)
				}
				done := make(chan struct{})
				go func() { p.run(ctx); close(done) }()
				time.Sleep(time.Minute)
				cancel()
				<-done
				if !slices.Equal(got, c.want) {
					t.Errorf("told %q, want %q", got, c.want)
				}
			})
		})
	}
}
