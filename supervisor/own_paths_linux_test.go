package supervisor

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/handoverd/handover/fdpass"
)

// ownOf is a generation with a socket of its own, bound as its start binds it.
func ownOf(t *testing.T, dir string, n int) (*Generation, *fdpass.Socket) {
	t.Helper()
	spec := &Spec{
		Keys:   []SocketKey{{Name: "own", Key: "web.own", Own: true}},
		Config: ServiceConfig{Name: "web", Sockets: []SocketConfig{{Name: "own", Addr: fdpass.Addr{Kind: fdpass.Unix, Path: dir + "/own." + generationVar}}}},
	}
	own, err := bindOwn(spec, n)
	if err != nil {
		t.Fatal(err)
	}
	return &Generation{N: n, Spec: spec}, own[spec.Keys[0].at(n)]
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// The paths of generations that are gone, or that nothing goes on with, are removed when nobody holds their sockets any more:
// at once, or, where a shim still does, when that has ended. What is in the table, what is held, and what is no socket stay.
func TestOwnPathsAreRemoved(t *testing.T) {
	dir := t.TempDir()
	l := &loop{log: slog.New(slog.DiscardHandler), sockets: &socketTable{open: map[string]*fdpass.Socket{}}, calls: make(chan func())}
	var all []*Generation
	var sockets []*fdpass.Socket
	for n := 1; n <= 4; n++ {
		g, s := ownOf(t, dir, n)
		all, sockets = append(all, g), append(sockets, s)
	}
	closed := func(s *fdpass.Socket) {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	closed(sockets[0])
	l.sockets.open[all[2].Spec.Keys[0].at(3)] = sockets[2]
	foreign := filepath.Join(dir, "own.5")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	five := &Generation{N: 5, Spec: all[0].Spec}
	state := func(g ...*Generation) *State {
		return &State{Order: []string{"web"}, Services: map[string]*Service{"web": {Name: "web", Generations: g}}}
	}
	l.removeOwnPaths(state(append(slices.Clone(all), five)...), state(all[3]))
	want := []string{".own.2.handoverd", ".own.3.handoverd", ".own.4.handoverd", "own.2", "own.3", "own.4", "own.5"}
	if got := namesIn(t, dir); !slices.Equal(got, want) {
		t.Fatalf("left: %q, want %q", got, want)
	}
	closed(sockets[1]) // as the end of a shim does
	for slices.Contains(namesIn(t, dir), "own.2") {
		select {
		case again := <-l.calls:
			again()
		case <-time.After(10 * time.Second):
			t.Fatal("it is not looked at again")
		}
	}

	// A start with nothing to go on with: what the state says was held, and what its generations had.
	closed(sockets[2])
	closed(sockets[3])
	clear(l.sockets.open)
	saved := &savedState{State: *state(all[3]), Held: held{Sockets: map[string]heldSocket{all[2].Spec.Keys[0].at(3): {Addr: sockets[2].Addr()}}}}
	l.removeHeldPaths(saved, true)
	if got := namesIn(t, dir); !slices.Equal(got, []string{"own.5"}) {
		t.Errorf("left at a fresh start: %q", got)
	}
}

// What the keeper was given, and the state not written with any more, is the generation's that the state has.
func TestOwnSocketIsTakenFromTheKeeper(t *testing.T) {
	dir := t.TempDir()
	g, s := ownOf(t, dir, 7)
	defer func() { _ = s.Close() }()
	key := g.Spec.Keys[0].at(7)
	saved := &savedState{State: State{Services: map[string]*Service{"web": {Generations: []*Generation{g}}}}}
	saved.addOwn(map[string]int{keptSocket + key: s.FD(), keptSocket + "web.own#8": s.FD()})
	h, ok := saved.Held.Sockets[key]
	if !ok || len(saved.Held.Sockets) != 1 || h.Addr.Path != dir+"/own.7" || h.Inode != s.Inode() {
		t.Errorf("held: %+v", saved.Held.Sockets)
	}
}
