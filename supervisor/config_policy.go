package supervisor

import (
	"encoding/json"
	"time"

	"github.com/handoverd/handover/drain"
)

// aliveFor is how long `alive` waits, and `auto` where it can see nothing.
const aliveFor = time.Second

// defaultKillGrace is kill_grace where nothing says it.
const defaultKillGrace = 5 * time.Second

func retire(t *table) RetireConfig {
	r := RetireConfig{
		Signal:         t.str("signal", "auto"),
		ParentShutdown: t.duration("parent_shutdown", 15*time.Minute, time.Millisecond),
		KillGrace:      t.duration("kill_grace", defaultKillGrace, time.Millisecond),
		AnswerTimeout:  t.duration("answer_timeout", drain.AnswerTimeout, 0),
		MaxDraining:    t.integer("max_draining", 3, 1, 1000),
		OnMaxDraining:  t.oneOf("on_max_draining", "wait", []string{"wait", "refuse", "kill-oldest"}, nil),
		ReleaseTimeout: t.duration("release_timeout", 5*time.Second, time.Millisecond),
		OnNoRelease:    t.oneOf("on_no_release", "report", []string{"report", "terminate"}, nil),
	}
	r.Drain = hook(t.sub("drain"), "POST")
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

// UnmarshalJSON also reads what was written when AnswerTimeout was no key: none is
// its default, and not 0.
func (r *RetireConfig) UnmarshalJSON(b []byte) error {
	type plain RetireConfig
	p := plain{AnswerTimeout: drain.AnswerTimeout}
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	*r = RetireConfig(p)
	return nil
}

func restart(t *table) RestartConfig {
	r := RestartConfig{
		BackoffMin:  t.duration("backoff_min", 100*time.Millisecond, time.Millisecond),
		BackoffMax:  t.duration("backoff_max", 30*time.Second, time.Millisecond),
		OnCrashLoop: t.oneOf("on_crash_loop", onLoopHold, []string{onLoopHold, onLoopClose, onLoopExit}, nil),

		CrashLoopAfter: t.integer("crash_loop_after", loopDeaths, 1, 1000),
		KeepExecutable: t.oneOf("keep_executable", keepAuto, []string{keepAuto, keepNone}, nil),
	}
	if r.BackoffMin > r.BackoffMax {
		t.fail(setKey(t, "backoff_min", "backoff_max"), "backoff_min (%s) is longer than backoff_max (%s)",
			r.BackoffMin, r.BackoffMax)
	}
	t.finish()
	return r
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
