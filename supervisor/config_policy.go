package supervisor

import "time"

// aliveFor is how long `alive` waits, and `auto` where it can see nothing.
const aliveFor = time.Second

// defaultKillGrace is kill_grace where nothing says it.
const defaultKillGrace = 5 * time.Second

func retire(t *table) RetireConfig {
	r := RetireConfig{
		Signal:         t.str("signal", "auto"),
		ParentShutdown: t.duration("parent_shutdown", 15*time.Minute, time.Millisecond),
		KillGrace:      t.duration("kill_grace", defaultKillGrace, time.Millisecond),
		MaxDraining:    t.integer("max_draining", 3, 1, 1000),
		OnMaxDraining:  t.oneOf("on_max_draining", "wait", []string{"wait", "refuse", "kill-oldest"}, nil),
		ReleaseTimeout: t.duration("release_timeout", 5*time.Second, time.Millisecond),
		OnNoRelease:    t.oneOf("on_no_release", "report", []string{"report", "terminate"}, nil),
	}
	t.notYet("drain")
	if r.Signal != "auto" {
		name, err := signalName(r.Signal)
		if err != nil {
			t.fail("signal", "%w", err)
		}
		r.Signal = name
	}
	if r.KillGrace >= r.ParentShutdown {
		t.fail(setKey(t, "kill_grace", "parent_shutdown"),
			"kill_grace (%s) must be shorter than parent_shutdown (%s), which contains it", r.KillGrace, r.ParentShutdown)
	}
	t.finish()
	return r
}

func stop(t *table) StopConfig {
	s := StopConfig{
		Hold:     t.str("hold", "0s"),
		Deadline: t.duration("deadline", 25*time.Second, time.Millisecond),
	}
	if d, err := time.ParseDuration(s.Hold); err != nil || d != 0 {
		t.notYet("hold")
	}
	s.Hold = "0s"
	t.notYet("announce")
	duck := t.sub("lame_duck")
	s.LameDuck = LameDuckConfig{
		Until: duck.oneOf("until", "timer", []string{"timer"}, []string{"probes", "exec", "http"}),
		For:   duck.duration("for", 0, 0),
		Max:   duck.duration("max", 10*time.Second, 0),
	}
	duck.notYet("probes", "exec", "http")
	if s.LameDuck.For > s.LameDuck.Max {
		duck.fail(setKey(duck, "for", "max"), "for (%s) is longer than max (%s)", s.LameDuck.For, s.LameDuck.Max)
	}
	duck.finish()
	t.finish()
	return s
}

func restart(t *table) RestartConfig {
	r := RestartConfig{
		BackoffMin:  t.duration("backoff_min", 100*time.Millisecond, time.Millisecond),
		BackoffMax:  t.duration("backoff_max", 30*time.Second, time.Millisecond),
		OnCrashLoop: t.oneOf("on_crash_loop", "hold", []string{"hold"}, []string{"close", "exit"}),
	}
	if r.BackoffMin > r.BackoffMax {
		t.fail(setKey(t, "backoff_min", "backoff_max"), "backoff_min (%s) is longer than backoff_max (%s)",
			r.BackoffMin, r.BackoffMax)
	}
	t.finish()
	return r
}

// budget refuses a stop in which nothing is left for the drain: the
// deadline contains the lame duck, which may run to its max, and the grace
// before SIGKILL.
func budget(stop, retire *table, s *ServiceConfig) {
	duck, grace, deadline := s.Stop.LameDuck.Max, s.Retire.KillGrace, s.Stop.Deadline
	if duck+grace < deadline {
		return
	}
	t, key := stop, "deadline"
	lame, _ := stop.m["lame_duck"].(map[string]any)
	switch _, maxSet := lame["max"]; {
	case stop.has("deadline"):
	case maxSet:
		key = "lame_duck"
	case retire.has("kill_grace"):
		t, key = retire, "kill_grace"
	}
	t.fail(key, "lame_duck.max (%s) + kill_grace (%s) leave nothing of the stop's deadline (%s) for the drain",
		duck, grace, deadline)
}

// setKey is the first of keys that the file sets: an error about several
// belongs to the line that somebody wrote.
func setKey(t *table, keys ...string) string {
	for _, k := range keys {
		if t.has(k) {
			return k
		}
	}
	return keys[0]
}
