//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/drill"
)

// fakeTrigger does in the test's process what a reload would do elsewhere.
type fakeTrigger struct {
	kinds []string // of the first ones; then reload
	fired int
	do    func(ctx context.Context) error
}

func (t *fakeTrigger) name() string { return "the test's" }

func (t *fakeTrigger) kind() string {
	if t.fired < len(t.kinds) {
		return t.kinds[t.fired]
	}
	return triggerReload
}

func (t *fakeTrigger) fire(ctx context.Context) (firing, error) {
	t.fired++
	if err := t.do(ctx); err != nil {
		return firing{}, err
	}
	return firing{generation: 1 + t.fired, done: time.Now(), adopted: t.kinds != nil}, nil
}

// brokenServer answers each connection's first request with what answer writes, and closes it.
type brokenServer struct {
	t      *testing.T
	addr   string
	answer func(w io.Writer)

	mu       sync.Mutex
	listener net.Listener
	wg       sync.WaitGroup
}

func startBroken(t *testing.T, answer func(w io.Writer)) *brokenServer {
	t.Helper()
	s := &brokenServer{t: t, addr: "127.0.0.1:0", answer: answer}
	s.open()
	s.addr = s.listener.Addr().String()
	t.Cleanup(func() { s.close(); s.wg.Wait() })
	return s
}

func (s *brokenServer) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := net.Listen("tcp4", s.addr)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.listener = l
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.wg.Go(func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					s.answer(c)
				}
			})
		}
	})
}

func (s *brokenServer) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.listener.Close()
}

const goodAnswer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\npage\n"

// drillAgainst drills a server for a time and returns the report and the runs' own.
func drillAgainst(t *testing.T, addr string, o *drillFlags, trigger drillTrigger) (*drillReport, []drill.Report) {
	t.Helper()
	o.url, o.contract, o.instances = "http://"+addr+"/page", "off", 1
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	target, err := o.target()
	if err != nil {
		t.Fatal(err)
	}
	loads, contract, err := o.loads(t.Context(), target)
	if err != nil {
		t.Fatal(err)
	}
	none := func() (<-chan os.Signal, func()) { return nil, func() {} }
	d := &drillRun{flags: o, env: &env{stderr: io.Discard, signals: none}, trigger: trigger}
	if err := d.run(t.Context(), loads); err != nil {
		t.Fatal(err)
	}
	return d.report(contract), d.reports
}

// TestDrillBroken: what a server does wrong is reported with the number that the server knows.
func TestDrillBroken(t *testing.T) {
	var answers, bad atomic.Int64
	var away atomic.Bool
	tests := []struct {
		name   string
		kind   drill.Kind
		answer func(w io.Writer)
		fire   func(ctx context.Context) error
		inside bool // all of it in windows
	}{
		{"one in 1,000 truncated", drill.KindTruncated, func(w io.Writer) {
			text := goodAnswer
			if answers.Add(1)%1000 == 0 {
				bad.Add(1)
				text = text[:len(text)-2]
			}
			_, _ = io.WriteString(w, text)
		}, func(context.Context) error { return nil }, false},
		{"503 for 20 ms", drill.KindBadStatus, func(w io.Writer) {
			if away.Load() {
				bad.Add(1)
				_, _ = io.WriteString(w, "HTTP/1.1 503 X\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
				return
			}
			_, _ = io.WriteString(w, goodAnswer)
		}, func(ctx context.Context) error {
			away.Store(true)
			defer away.Store(false)
			return drill.Pause(ctx, 20*time.Millisecond)
		}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			answers.Store(0)
			bad.Store(0)
			s := startBroken(t, tt.answer)
			o := &drillFlags{rate: 1500, duration: 1500 * time.Millisecond, every: 300 * time.Millisecond, modes: []string{"fresh"}}
			r, _ := drillAgainst(t, s.addr, o, &fakeTrigger{do: tt.fire})
			want := map[drill.Kind]int{tt.kind: int(bad.Load())}
			m := &r.Modes[0]
			if d := cmp.Diff(want, m.Failures); d != "" || bad.Load() == 0 || r.Failed != int(bad.Load()) {
				t.Errorf("failures (-want +got):\n%s", d)
			}
			if tt.inside && (m.InsideFailed != r.Failed || r.Lost.InReloads != r.Failed) {
				t.Errorf("%d of %d in windows, %d in reloads", m.InsideFailed, r.Failed, r.Lost.InReloads)
			}
			if r.Passed || r.Reloads == 0 || len(m.Faults) != 0 || m.Sent != m.OK+m.Failed {
				t.Errorf("%+v", r)
			}
		})
	}
}

// element is a node of a page.
type element struct {
	name, class, text string
	attrs             map[string]string
}

// elements parses a page strictly; the text of an element is what is directly in it.
func elements(t *testing.T, page string) []*element {
	t.Helper()
	var all, open []*element
	d := xml.NewDecoder(strings.NewReader(page))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("the page does not parse: %v", err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			e := &element{name: token.Name.Local, attrs: map[string]string{}}
			for _, a := range token.Attr {
				e.attrs[a.Name.Local] = a.Value
			}
			e.class = e.attrs["class"]
			all, open = append(all, e), append(open, e)
		case xml.EndElement:
			open = open[:len(open)-1]
		case xml.CharData:
			if len(open) > 0 {
				open[len(open)-1].text += string(token)
			}
		}
	}
}

// count is how many elements have the name and a class that begins with these words.
func count(all []*element, name, class string) int {
	n := 0
	for _, e := range all {
		if e.name == name && strings.HasPrefix(e.class+" ", class+" ") {
			n++
		}
	}
	return n
}

// TestDrillPage: the page of a run has a mark for each trigger, a red point for each failure, and units on its axes.
func TestDrillPage(t *testing.T) {
	var n atomic.Int64
	s := startBroken(t, func(w io.Writer) {
		if n.Add(1)%40 == 0 {
			return
		}
		_, _ = io.WriteString(w, strings.Replace(goodAnswer, "\r\n", fmt.Sprintf("\r\nX-Generation: %d\r\n", 1+n.Load()/300), 1))
	})
	o := &drillFlags{rate: 600, duration: 2200 * time.Millisecond, every: 400 * time.Millisecond, modes: []string{"fresh", "tcp"}}
	fired := 0
	trigger := &fakeTrigger{kinds: []string{triggerReload, triggerKill, triggerKillSupervisor}, do: func(context.Context) error {
		if fired++; fired == 4 {
			return errors.New("it failed & was <shown>")
		}
		return nil
	}}
	r, reports := drillAgainst(t, s.addr, o, trigger)
	file := filepath.Join(t.TempDir(), "page.html")
	if err := writeDrillPage(file, r, reports); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := elements(t, string(text))
	charts, failures, spans := count(all, "svg", "chart"), count(all, "circle", "failure"), count(all, "rect", "generation")
	if charts != 2 || r.Reloads != 2 || r.Kills != 1 || r.SupervisorKills != 1 || r.Adopted != 1 || r.FailedTriggers != 1 {
		t.Errorf("%d charts, %d reloads, %d kills, %d of handoverd, %d failed", charts, r.Reloads, r.Kills, r.SupervisorKills, r.FailedTriggers)
	}
	if got := count(all, "g", "mark reload"); got != charts*(r.Reloads+1) {
		t.Errorf("%d marks of reloads, want %d", got, charts*(r.Reloads+1))
	}
	if got := count(all, "g", "mark reload failed"); got != charts {
		t.Errorf("%d marks of failed reloads, want %d", got, charts)
	}
	if got := count(all, "g", "mark kill"); got != charts*r.Kills {
		t.Errorf("%d marks of kills, want %d", got, charts*r.Kills)
	}
	if got := count(all, "g", "mark kill-supervisor"); got != charts*r.SupervisorKills {
		t.Errorf("%d marks of kills of handoverd, want %d", got, charts*r.SupervisorKills)
	}
	if failures != r.Failed || failures == 0 {
		t.Errorf("%d red points, %d failures", failures, r.Failed)
	}
	if want := len(reports[0].Spans) + 4; len(reports[0].Spans) < 2 || spans != want {
		t.Errorf("%d bands of generations, want %d", spans, want)
	}
	checkAxes(t, all, charts)
}

func checkAxes(t *testing.T, all []*element, charts int) {
	t.Helper()
	for class, unit := range map[string]string{"axis-label x": "(s)", "axis-label y": "(ms"} {
		if got := count(all, "text", class); got != charts {
			t.Errorf("%d labels %s, want %d", got, class, charts)
		}
		for _, e := range all {
			if e.class == class && !strings.Contains(e.text, unit) {
				t.Errorf("label %q has no unit %s", e.text, unit)
			}
		}
	}
	ticks := 0
	for _, e := range all {
		if strings.HasPrefix(e.class, "tick") {
			ticks++
			if !strings.HasSuffix(e.text, " s") && !strings.HasSuffix(e.text, " ms") {
				t.Errorf("tick %q has no unit", e.text)
			}
		}
		if e.attrs["src"] != "" || e.attrs["href"] != "" || e.name == "script" || e.name == "link" {
			t.Errorf("the page needs something beside it: %+v", e)
		}
	}
	if ticks < 4*charts {
		t.Errorf("%d ticks", ticks)
	}
}

// TestDrillPageSaysWhatIsLeftOut: more failures than are kept are told in words.
func TestDrillPageSaysWhatIsLeftOut(t *testing.T) {
	rep := drill.Report{Failures: map[drill.Kind]int{drill.KindRefused: 5000}, Sending: time.Second}
	for i := range 2000 {
		rep.FailurePoints = append(rep.FailurePoints, drill.FailurePoint{At: time.Duration(i) * 500 * time.Microsecond, Kind: drill.KindRefused})
	}
	file := filepath.Join(t.TempDir(), "page.html")
	if err := writeDrillPage(file, &drillReport{}, []drill.Report{rep}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := count(elements(t, string(text)), "circle", "failure"); n != 2000 || !strings.Contains(string(text), "The first 2000 of 5000 lost") {
		t.Errorf("%d red points, or no word of the others", n)
	}
}

// TestDrillKillShare: the share and the seed decide which triggers kill, the same at each run.
func TestDrillKillShare(t *testing.T) {
	sequence := func(seed uint64) (kinds string, n map[string]int) {
		tr := newReloadTrigger(nil, &drillFlags{kill: 0.2, killSupervisor: 0.1, seed: seed})
		n = map[string]int{}
		for range 1000 {
			kinds += tr.kind() + " "
			n[tr.kind()]++
			tr.next()
		}
		return kinds, n
	}
	first, n := sequence(1)
	again, _ := sequence(1)
	other, _ := sequence(2)
	if first != again || first == other {
		t.Errorf("same again: %v, other seed differs: %v", first == again, first != other)
	}
	for kind, want := range map[string]float64{triggerKill: 200, triggerKillSupervisor: 100, triggerReload: 700} {
		if math.Abs(float64(n[kind])-want) > 45 {
			t.Errorf("%d of 1,000 are %s, want about %v", n[kind], kind, want)
		}
	}
}

// TestDrillJudged: gates, bounds and the sizing.
func TestDrillJudged(t *testing.T) {
	ms := time.Millisecond
	o := &drillFlags{maxFailures: 2, maxP99Ratio: 2, checkInterval: 2 * time.Second, checkFailures: 3}
	r := drillReport{Failed: 2, Modes: []drillMode{{Mode: "fresh", OK: 1, P99Ratio: 2}}}
	if r.judge(o); !r.Passed {
		t.Errorf("within the gates: %v", r.Reasons)
	}
	r = drillReport{Failed: 3, FailedTriggers: 1, Interrupted: true, Modes: []drillMode{{Mode: "fresh", P99Ratio: 2.1}}}
	if r.judge(o); r.Passed || len(r.Reasons) != 5 {
		t.Errorf("want five reasons: %v", r.Reasons)
	}
	for d, want := range map[time.Duration]time.Duration{0: time.Second, 900 * ms: time.Second, 1001 * ms: 2 * time.Second, 2 * time.Second: 2 * time.Second} {
		if got := wholeSeconds(d); got != want {
			t.Errorf("wholeSeconds(%v) = %v, want %v", d, got, want)
		}
	}
	var s drillSizing
	s.fill(o, nil, nil)
	if want := (drillSizing{CheckInterval: 2, LameDuck: 8, Drain: 1, Grace: 1, Deadline: 10}); s != want {
		t.Errorf("sizing %+v, want %+v", s, want)
	}
	for last, want := range map[float64]float64{0: 8, 5.3: 8, 5.4: 9, 0.01: 8, 20: 30} {
		if s.fill(o, nil, &drillArrival{Reloads: 1, Max: last}); s.LameDuck != want || s.Deadline != want+2 {
			t.Errorf("last arrival after %v s: %+v, want a lame duck of %v s", last, s, want)
		}
	}
	if s.fill(&drillFlags{}, nil, &drillArrival{Reloads: 1, Max: 0.2}); s.LameDuck != 1 {
		t.Errorf("no balancer: %+v", s)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}

func TestStatuses(t *testing.T) {
	for text, want := range map[string][]int{"": nil, "200,204": {200, 204}, "2xx, 503": {2, 503}, "4XX": {4}, "7xx": nil, "100": nil, "ok": nil, "2": nil} {
		got, err := statuses(text)
		if d := cmp.Diff(want, got); d != "" || (err != nil) != (want == nil && text != "") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
