package supervisor

// upgrade is what happens about an upgrade of handoverd itself: somebody asks for one, the pre-flight answers, and the
// loop, once at rest, is executed anew or comes back. Nothing that is on its way is lost.
func (w *world) upgrade(s *State) event {
	up := s.Self
	switch {
	case up == nil:
		w.upgrades++
		return evUpgrade{Request: w.upgrades, Within: pick(w, 0, PreflightLimit)}
	case !up.Checked:
		return evRehearsed{ID: up.ID - w.rnd.IntN(2)*w.rnd.IntN(2), To: "next", Fault: pick(w, "", "", "it panics")}
	case w.chance(20) || s.unsettled() != "":
		return evUpgradeFailed{ID: up.ID, Fault: "execve: no such file"}
	}
	e := evRestored{Whole: true, Fault: pick(w, "", "", "it panics")}
	for _, name := range s.Order {
		for _, g := range s.Services[name].Generations {
			if p := w.programs[at{name, g.N}]; p != nil && p.spec.shares() { // it is looked at anew
				w.send(evSight{at: p.at, Polls: !p.blind, Blind: p.blind})
			}
		}
	}
	return e
}

// checkUpgrade: each request is answered at once and each upgrade ends once. Nothing of a reload begins beside one, and
// nothing at all is started once it may be executed.
func (w *walk) checkUpgrade(prev *State, e event, next *State, acts []action) {
	asked, isRequest := e.(evUpgrade)
	for _, a := range acts {
		switch a := a.(type) {
		case acUpgradeAnswer:
			if !isRequest || a.Request != asked.Request || (a.ID == 0) == (a.Refused == RefusedNot) {
				w.fail("answer %+v to %#v", a, e)
			}
			isRequest = false
		case acRehearse:
			if next.Self == nil || next.Self.ID != a.ID || prev.Self != nil || prev.Stop != nil {
				w.fail("pre-flight %d beside %+v", a.ID, prev.Self)
			}
		case acUpgradeDone:
			w.ledger.upgraded[a.ID]++
			if prev.Self == nil || prev.Self.ID != a.ID || next.Self != nil || a.Fault == "" && !prev.Self.Checked {
				w.fail("%+v of %+v", a, prev.Self)
			}
			if a.Fault == "" {
				w.seen["upgraded"] = true
			} else {
				w.seen["not upgraded"] = true
			}
		case acPrepare:
			if next.Self != nil {
				w.fail("job %d is prepared during an upgrade of handoverd", a.Job)
			}
		case acSpawn:
			if next.Self != nil && next.Self.Checked {
				w.fail("%v is started though handoverd is about to be executed anew", a.at)
			}
		}
	}
	if isRequest {
		w.fail("upgrade %d was not answered at once", asked.Request)
	}
	if next.Self != nil && next.Stop != nil {
		w.fail("an upgrade of handoverd in a stop")
	}
}

// checkUpgraded: every upgrade has ended, and once.
func (w *walk) checkUpgraded() {
	if w.state.Self != nil {
		w.fail("the upgrade of handoverd never ends: %+v", w.state.Self)
	}
	for id := 1; id <= w.state.LastUpgrade; id++ {
		if w.ledger.upgraded[id] != 1 {
			w.fail("upgrade %d of handoverd ended %d times", id, w.ledger.upgraded[id])
		}
	}
}
