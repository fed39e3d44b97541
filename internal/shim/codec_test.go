package shim

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func genSpec(t *rapid.T) *Spec {
	// Any byte, not only UTF-8.
	text := rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 20), func(b []byte) string { return string(b) })
	texts := rapid.SliceOfN(text, 1, 5)
	id := rapid.Ptr(rapid.Uint32(), true)
	number := rapid.Ptr(rapid.IntRange(-1000, 1000), true)
	s := &Spec{
		Path: text.Draw(t, "path"), Argv: texts.Draw(t, "argv"), Env: texts.Draw(t, "env"), Dir: text.Draw(t, "dir"),
		UID: id.Draw(t, "uid"), GID: id.Draw(t, "gid"), Umask: id.Draw(t, "umask"),
		Groups:    rapid.SliceOfN(rapid.Uint32(), 1, 4).Draw(t, "groups"),
		SetGroups: rapid.Bool().Draw(t, "setgroups"), NoNewPrivs: rapid.Bool().Draw(t, "nnp"),
		Nice: number.Draw(t, "nice"), OOMScoreAdj: number.Draw(t, "oom"),
		AmbientCaps: rapid.SliceOfN(rapid.Uintptr(), 1, 4).Draw(t, "caps"),
		Targets:     rapid.SliceOfN(rapid.Int(), 1, 9).Draw(t, "targets"),
		ExecTarget:  rapid.Int().Draw(t, "exec"),
		ListenPID:   rapid.Bool().Draw(t, "listenpid"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "rlimits") {
		s.Rlimits = append(s.Rlimits, Rlimit{rapid.Int().Draw(t, "r"), rapid.Uint64().Draw(t, "s"), rapid.Uint64().Draw(t, "h")})
	}
	return s
}

func TestASpecArrivesAsItWasSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSpec(t)
		b := encodeSpec(s)
		got, ok := decodeSpec(b)
		if !ok {
			t.Fatal("not decoded")
		}
		if d := cmp.Diff(s, got); d != "" {
			t.Fatal(d)
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if _, ok := decodeSpec(b[:cut]); ok {
			t.Fatalf("a spec cut at %d of %d is accepted", cut, len(b))
		}
	})
}

func FuzzDecodeSpec(f *testing.F) {
	f.Add(encodeSpec(&Spec{Path: "/bin/true", Argv: []string{"true"}, Targets: []int{3, 4}, Nice: new(int)}))
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, ok := decodeSpec(b)
		if !ok {
			return
		}
		again, ok := decodeSpec(encodeSpec(s))
		if d := cmp.Diff(s, again); !ok || d != "" {
			t.Error(ok, d)
		}
	})
}

func FuzzDecodeReport(f *testing.F) {
	f.Add(encodeReport(&ExecError{Step: "execve", Path: "/x", Errno: 2}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := decodeReport(b); ok {
			_ = e.Error()
		}
	})
}
