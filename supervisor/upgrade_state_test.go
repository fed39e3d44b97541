package supervisor

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// TestWhoWinsOverUpgrade is the column USR2 and the row of the pre-flight in the table of the design.
func TestWhoWinsOverUpgrade(t *testing.T) {
	w1, w2 := g("web", 1), g("web", 2)
	narrow := func(s *Spec) { s.Config.Retire.MaxDraining = 1 }
	upgrade := evUpgrade{Request: 1}
	rehearsed, whole := evRehearsed{ID: 1, To: "2"}, evRestored{Whole: true}
	checked := func(t *testing.T) *script { return serving(t, web()).send(upgrade, rehearsed).any() }
	for name, story := range map[string]func(*testing.T){
		"serving": func(t *testing.T) {
			serving(t, web()).send(upgrade).want("upgrade 1", "rehearse 1").send(rehearsed).want().send(whole).want("upgraded 1").after(time.Hour).want()
		},
		"back-off": func(t *testing.T) {
			s := serving(t, web()).end(w1, crash).send(evSpawnFailed{w2, "no"}).any()
			at := s.s.Services["web"].Restart.At
			s.send(upgrade, rehearsed, whole).want("upgrade 1", "rehearse 1", "upgraded 1")
			if got := s.s.Services["web"].Restart.At; got != at {
				t.Errorf("the restart is due at %v, want %v", got, at)
			}
			s.after(110 * time.Millisecond).want("spawn web3")
		},
		"starting": func(t *testing.T) {
			serving(t, web()).reload().prepared(web()).any().send(upgrade).want("upgrade 0 busy")
		},
		"starting after a crash": func(t *testing.T) {
			serving(t, web()).end(w1, crash).any().send(upgrade).want("upgrade 0 busy")
		},
		"baking": func(t *testing.T) {
			serving(t, web()).reload().prepared(web(bakes(time.Minute))).up(w2).any().send(upgrade).want("upgrade 0 busy")
		},
		"waiting for max_draining": func(t *testing.T) { // the wait goes on, and what waits is started by the next image
			s := serving(t, web(narrow)).reload().prepared(web(narrow)).up(w2).after(10 * time.Second)
			s.reload().prepared(web(narrow)).any().send(upgrade, rehearsed).want("upgrade 1", "rehearse 1")
			s.end(w1, 0).want("kill web1 15", "reap web1").send(whole).want("upgraded 1", "spawn web3")
		},
		"stopping": func(t *testing.T) {
			serving(t, web()).send(evStop{}).any().send(upgrade).want("upgrade 0 stopping")
		},
		"pre-flight/reload": func(t *testing.T) { // remembered, whether the upgrade is refused or not
			s := serving(t, web()).send(upgrade).any().reload().want("job 2").reload().want("job 2")
			s.send(evRehearsed{ID: 1, Fault: "no"}).want("upgraded 1 no", "prepare 2")
			s = serving(t, web()).send(upgrade).any().reload().want("job 2").send(rehearsed, whole).want("upgraded 1", "prepare 2")
			s.prepared(web()).want("spawn web2")
		},
		"pre-flight/reload that must not wait": func(t *testing.T) {
			serving(t, web()).send(upgrade, evReload{Request: 5, NoQueue: true}).want("upgrade 1", "rehearse 1", "refuse busy")
		},
		"pre-flight/dies": func(t *testing.T) { // what is started by then has to have come somewhere
			s := serving(t, web()).send(upgrade).any().send(evExited{w1, crash}).want("kill web1 15", "spawn web2")
			s.send(rehearsed).want().after(10*time.Second).want("kill web1 9", "upgraded 1 busy: web generation 2 is starting")
		},
		"executing/dies": func(t *testing.T) { // the next image starts it
			s := checked(t).send(evExited{w1, crash}).want("kill web1 15")
			s.send(whole).want("upgraded 1", "kill web1 15", "spawn web2")
		},
		"executing/dies, and it takes too long": func(t *testing.T) {
			s := checked(t).send(evExited{w1, crash}).want("kill web1 15")
			s.after(time.Second).want("upgraded 1 busy: web is to be restarted", "spawn web2")
		},
		"executing/dies, and it fails": func(t *testing.T) {
			s := checked(t).send(evExited{w1, crash}).any()
			s.send(evUpgradeFailed{1, "execve"}).want("upgraded 1 execve", "spawn web2")
		},
		"pre-flight/TERM": func(t *testing.T) {
			s := serving(t, web()).send(upgrade).any().send(evStop{}).want("upgraded 1 stopping", "drain web1")
			s.send(rehearsed).want()
		},
		"pre-flight/USR2": func(t *testing.T) {
			serving(t, web()).send(upgrade).any().send(evUpgrade{Request: 2}).want("upgrade 0 busy")
		},
		"it is refused": func(t *testing.T) {
			s := serving(t, web()).send(upgrade).any().send(evRehearsed{ID: 1, Fault: "it panics"}).want("upgraded 1 it panics")
			s.send(rehearsed, whole).want().send(upgrade).want("upgrade 2", "rehearse 2")
		},
		"nobody answers": func(t *testing.T) {
			serving(t, web()).send(upgrade).any().after(time.Minute).want("upgraded 1 the pre-flight has not ended in time")
		},
		"it does not come to rest": func(t *testing.T) {
			checked(t).after(10 * time.Second).want("upgraded 1 busy: what is under way has not ended within 10s")
		},
		"it comes back": func(t *testing.T) {
			checked(t).send(evRestored{Whole: true, Fault: "it panics"}).want("upgraded 1 it panics").wantPhase(w1, PhaseServing)
		},
		"handoverd is killed meanwhile": func(t *testing.T) {
			serving(t, web()).send(upgrade).any().send(evRestored{}).want("upgraded 1 handoverd was killed meanwhile", "accept web1", "ack web1")
		},
	} {
		t.Run(name, story)
	}
}

// TestDrainOverUpgrade: who was told to drain is not told again, unlike after a kill: nothing that was said is lost.
func TestDrainOverUpgrade(t *testing.T) {
	s := serving(t, web()).reload().prepared(web()).up(g("web", 2)).send(evAnswered{g("web", 1)}).any()
	s.send(evUpgrade{Request: 1}).want("upgrade 0 busy") // the reload waits to see it let go
	s.send(evSight{at: g("web", 1)}).want("done 2: web2 serving released")
	s.send(evUpgrade{Request: 2}, evRehearsed{ID: 1}, evRestored{Whole: true}).want("upgrade 1", "rehearse 1", "upgraded 1")
	kill := s.s.Services["web"].gen(1).KillAt
	s.after(kill.Sub(s.now)).want("signal web1 15", "kill web1 9")
}

// TestStateVersions: version n reads n-1, of which a file is kept, and no other. A newer one is said to be newer.
func TestStateVersions(t *testing.T) {
	old, err := os.ReadFile("testdata/state/version-1.json")
	if err != nil {
		t.Fatal(err)
	}
	s, err := decodeState(old)
	if err != nil {
		t.Fatal(err)
	}
	if s.Version != StateVersion || s.Self != nil || s.Upgraded != nil || s.LastUpgrade != 0 {
		t.Errorf("version %d, upgrade %+v, %+v, %d", s.Version, s.Self, s.Upgraded, s.LastUpgrade)
	}
	web := s.Services["web"]
	if len(web.Generations) != 2 || web.Serving().N != 2 || web.Generations[0].Phase != PhaseEnding || web.Reloads != 1 {
		t.Errorf("web: %+v", web)
	}
	if len(s.Held.Sockets) != 1 || s.Held.Keeper.PID == 0 || s.Services["job"].Serving() == nil {
		t.Errorf("held %+v, job %+v", s.Held, s.Services["job"])
	}
	next, acts := transition(s.State, evRestored{Whole: true}, s.Saved)
	if len(acts) != 1 || tell(acts[0]) != "kill web1 15" || next.validate() != nil {
		t.Errorf("it goes on with %v", acts)
	}
	for version, want := range map[string]string{`"version":0,`: "version 0", `"version":3,`: "newer handoverd"} {
		_, err := decodeState(bytes.Replace(old, []byte(`"version":1,`), []byte(version), 1))
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, errNewer) != strings.Contains(want, "newer") {
			t.Errorf("%s: %v, want %q", version, err, want)
		}
	}
}
