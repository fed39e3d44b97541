package proc

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseStat(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		comm := rapid.StringOfN(rapid.RuneFrom([]rune("ab() \n0)S")), 0, 15, 15).Draw(t, "comm")
		start := rapid.Uint64().Draw(t, "start")
		line := fmt.Sprintf("42 (%s) S 7 8 9 0 -1 2097216 1 0 0 0 30 20 0 0 20 0 3 0 %d 123 55 18446744073709551615 1\n", comm, start)
		got, err := parseStat([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		want := stat{pid: 42, ppid: 7, pgid: 8, session: 9, state: 'S', threads: 3, kernel: true, ticks: 50, start: start, rss: 55}
		if got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
		if got.cpu() != 500*time.Millisecond {
			t.Fatalf("cpu time %v", got.cpu())
		}
	})
	for _, bad := range []string{"", "1", "1 (x", "1 )x(", "1 (x) S 1", "x (y) S 1 2 3"} {
		if s, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}

func TestParseEpoll(t *testing.T) {
	const info = "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1057\n" +
		"tfd:        5 events:       19 data:                5  pos:0 ino:61af sdev:7\n" +
		"tfd:       12 events: 80000000 data: ffffffffffffffff  pos:0 ino:e sdev:100002\n" +
		"tfd: x events: 1\ntfd:        7 events:        1 data:                0\n"
	want := []epollEntry{
		{fd: 5, events: 0x19, inode: 0x61af, device: 7},
		{fd: 12, events: 0x80000000, inode: 14, device: 0x100002},
		{fd: 7, events: 1},
	}
	if diff := cmp.Diff(want, parseEpoll([]byte(info)), cmp.AllowUnexported(epollEntry{})); diff != "" {
		t.Error(diff)
	}
}

func TestParseSyscall(t *testing.T) {
	for line, want := range map[string]syscallLine{
		"running\n":          {running: true},
		"-1 0x7ffd 0x7f12\n": {},
		"7 0x7f76 0x2 0x3e9 0x0 0x0 0xffffffffffffffff 0x7ffc 0x7f60\n": {
			blocked: true, number: 7, args: [6]uint64{0x7f76, 2, 0x3e9, 0, 0, math.MaxUint64},
		},
	} {
		got, ok := parseSyscall([]byte(line))
		if !ok || got != want {
			t.Errorf("%q: %+v, %v", line, got, ok)
		}
	}
	for _, bad := range []string{"", "x", "7 0x1", "7 0x1 0x2 0x3 0x4 0x5 zz 0x7 0x8"} {
		if got, ok := parseSyscall([]byte(bad)); ok {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func TestSocketInode(t *testing.T) {
	if inode, ok := SocketInode([]byte("socket:[12345]")); !ok || inode != 12345 {
		t.Error(inode, ok)
	}
	for _, bad := range []string{"", "socket:[]", "socket:[12", "pipe:[12]", "/socket:[1]", "socket:[-1]"} {
		if inode, ok := SocketInode([]byte(bad)); ok {
			t.Errorf("%q: %d", bad, inode)
		}
	}
}

func TestHasVariable(t *testing.T) {
	environ := []byte("A=1\x00HANDOVER_TOKEN=abc\x00B=HANDOVER_TOKEN=x\x00")
	for entry, want := range map[string]bool{
		"HANDOVER_TOKEN=abc": true, "HANDOVER_TOKEN=ab": false, "HANDOVER_TOKEN=x": false, "HANDOVER_TOKEN=abcd": false,
	} {
		if got := hasVariable(environ, []byte(entry)); got != want {
			t.Errorf("%s: %v", entry, got)
		}
	}
}

func TestMerge(t *testing.T) {
	s := Sight{Polled: map[uint64]int{1: 1}, Blind: []int{10, 11}}
	s.Merge(Sight{Polled: map[uint64]int{1: 1, 2: 1}, Held: map[uint64]bool{1: true}, Blind: []int{11}}, []int{10, 11})
	want := Sight{
		Polled: map[uint64]int{1: 2, 2: 1}, Accepting: map[uint64]int{},
		Held: map[uint64]bool{1: true}, Stale: map[uint64]bool{}, Blind: []int{11},
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a b) c) S 7 8 9 0 -1 4194560 1 0 0 0 30 20 0 0 20 0 3 0 77 123 55 1 1\n"))
	f.Add([]byte("1 () Z 0 0 0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseStat(b); err != nil && s != (stat{}) {
			t.Errorf("an error and %+v", s)
		}
	})
}

func FuzzParseFdinfo(f *testing.F) {
	f.Add([]byte("pos:\t0\ntfd:        5 events:       19 data:                5  pos:0 ino:61af sdev:7\n"))
	f.Add([]byte("tfd:5 :: ino: tfd:\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = parseEpoll(b)
	})
}

func FuzzParseSyscall(f *testing.F) {
	f.Add([]byte("7 0x7f76 0x2 0x3e9 0x0 0x0 0x0 0x7ffc 0x7f60\n"))
	f.Add([]byte("running"))
	f.Add([]byte("-1 0x0 0x0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, ok := parseSyscall(b); s.blocked && (s.running || !ok) {
			t.Errorf("%+v, %v", s, ok)
		}
	})
}
