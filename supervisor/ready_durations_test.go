package supervisor

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// durationKeys are the keys below v, a struct, that hold a duration, by the names of
// the fields on the way.
func durationKeys(v reflect.Type, prefix string) []string {
	var keys []string
	for f := range v.Fields() {
		t := f.Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		switch {
		case t == reflect.TypeFor[time.Duration]():
			keys = append(keys, prefix+f.Name)
		case t.Kind() == reflect.Struct:
			keys = append(keys, durationKeys(t, prefix+f.Name+".")...)
		}
	}
	return keys
}

// TestReadyDurations: each duration of [service.NAME.ready] is obeyed to the
// nanosecond, for two values each, in time that does not pass. A key that no case
// names fails the test.
func TestReadyDurations(t *testing.T) {
	w2 := g("web", 2)
	// beside has generation 2 of this spec spawned beside one that serves.
	beside := func(t *testing.T, change ...func(*Spec)) *script {
		return serving(t, web()).reload().prepared(web(change...)).send(evSpawned{at: w2, PID: 7}).any()
	}
	// reaches checks that the generation is in the phase from after d on, and not before.
	reaches := func(s *script, d time.Duration, p Phase) {
		s.t.Helper()
		if s.after(d - 1); s.phase(w2) == p {
			s.t.Errorf("%s before %v", p, d)
		}
		s.after(1).wantPhase(w2, p)
	}
	cases := map[string]func(*testing.T, time.Duration){
		"InitGrace": func(t *testing.T, d time.Duration) {
			reaches(beside(t, func(s *Spec) { s.Config.Ready.InitGrace = d }), d, PhaseKilling)
		},
		"Settle": func(t *testing.T, d time.Duration) {
			s := beside(t, func(s *Spec) { s.Config.Ready.Settle = d })
			reaches(s.send(evReady{w2, "notify"}, evSight{at: w2, Polls: true}), d, PhaseServing)
		},
		"Bake": func(t *testing.T, d time.Duration) {
			s := beside(t, bakes(d), func(s *Spec) { s.Config.Ready.Settle = 0 })
			s.send(evReady{w2, "notify"}, evSight{at: w2, Polls: true}).wantPhase(w2, PhaseBaking)
			reaches(s, d, PhaseServing)
		},
		"AliveFor": func(t *testing.T, d time.Duration) {
			s := beside(t, readyWhen("alive"), func(s *Spec) { s.Config.Ready.AliveFor, s.Config.Ready.Settle = d, 0 })
			reaches(s.send(evSight{at: w2, Polls: true}), d, PhaseServing)
		},
	}
	for name, of := range map[string]func(*ReadyConfig) **ProbeConfig{
		"Probe": func(c *ReadyConfig) **ProbeConfig { return &c.Probe },
		"Gate":  func(c *ReadyConfig) **ProbeConfig { return &c.Gate },
	} {
		ask := func(t *testing.T, cfg ProbeConfig, wait func(context.Context) error, least time.Duration) {
			var c ReadyConfig
			*of(&c) = &cfg
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				var at []time.Duration
				ctx, cancel := context.WithCancel(t.Context())
				p := &prober{cfg: *of(&c), tell: func(verdict) {}, ask: func(ctx context.Context) error {
					if at = append(at, time.Since(begin)); len(at) == 3 {
						cancel()
					}
					return wait(ctx)
				}}
				p.run(ctx)
				if len(at) != 3 || at[1]-at[0] != least || at[2]-at[1] != least {
					t.Errorf("asked at %v, want each %v", at, least)
				}
			})
		}
		cases[name+".Interval"] = func(t *testing.T, d time.Duration) {
			ask(t, ProbeConfig{Interval: d, Timeout: time.Hour, Successes: 1, Failures: 1}, func(context.Context) error { return nil }, d)
		}
		cases[name+".Timeout"] = func(t *testing.T, d time.Duration) {
			ask(t, ProbeConfig{Interval: time.Second, Timeout: d, Successes: 1, Failures: 1}, func(ctx context.Context) error {
				<-ctx.Done()
				return errors.New("no answer")
			}, time.Second+d)
		}
	}
	for _, key := range durationKeys(reflect.TypeFor[ReadyConfig](), "") {
		obeyed := cases[key]
		if obeyed == nil {
			t.Errorf("no case names ready.%s", strings.ToLower(key))
			continue
		}
		delete(cases, key)
		for _, d := range []time.Duration{1500 * time.Millisecond, 7 * time.Second} {
			t.Run(key+"/"+d.String(), func(t *testing.T) { obeyed(t, d) })
		}
	}
	for key := range cases {
		t.Errorf("a case is about %s, which is no key", key)
	}
}
