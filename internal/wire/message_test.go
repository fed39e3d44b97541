package wire

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// golden is what each file of testdata/v1 means, and is written as.
var golden = map[string]Message{
	"hello":     {V: 1, Verb: Hello, PID: 4711, Generation: 7},
	"sockets":   {V: 1, Verb: Sockets, Names: []string{"http", "stats"}},
	"bind":      {V: 1, Verb: Bind, Names: []string{"extra"}, Address: "tcp://127.0.0.1:8081"},
	"ready":     {V: 1, Verb: Ready, Names: []string{"http"}},
	"draining":  {V: 1, Verb: Draining},
	"status":    {V: 1, Verb: Status, Text: "warming the cache"},
	"extend":    {V: 1, Verb: Extend, ExtendNS: 5e9},
	"bye":       {V: 1, Verb: Bye},
	"bound":     {V: 1, Verb: Bound, Names: []string{"extra"}},
	"accept":    {V: 1, Verb: Accept},
	"ack":       {V: 1, Verb: Ack, Generation: 7, Service: "web"},
	"lame_duck": {V: 1, Verb: LameDuck},
	"drain":     {V: 1, Verb: Drain, Reason: "reload", DeadlineNS: 123456789012345},
	"error":     {V: 1, Verb: Error, Reply: Bind, Error: "permission denied"},
}

func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/v1/*.json")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(golden) || len(files) != len(verbs) {
		t.Errorf("%d files, %d meanings, %d verbs: want one of each", len(files), len(golden), len(verbs))
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want, ok := golden[strings.TrimSuffix(filepath.Base(file), ".json")]
		if !ok {
			t.Errorf("%s: no meaning", file)
		}
		got, err := Decode(raw)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: -want +got:\n%s", file, d)
		}
		again, err := Encode(want)
		if err != nil || string(again) != string(raw) {
			t.Errorf("%s: encoded as %s, %v; want %s", file, again, err, raw)
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	for _, c := range []struct {
		name, in string
		is       error
		verb     Verb
	}{
		{"nothing", ``, nil, ""},
		{"NUL", "\x00", nil, ""},
		{"not an object", `[1]`, nil, ""},
		{"two objects", `{"v":1,"verb":"bye"}{}`, nil, ""},
		{"no version", `{"verb":"bye"}`, ErrVersion, Bye},
		{"later version", `{"v":2,"verb":"bye"}`, ErrVersion, Bye},
		{"no verb", `{"v":1}`, ErrUnknownVerb, ""},
		{"unknown verb", `{"v":1,"verb":"dance"}`, ErrUnknownVerb, "dance"},
		{"negative", `{"v":1,"verb":"extend","extend_ns":-1}`, nil, Extend},
		{"overflow", `{"v":1,"verb":"drain","deadline_ns":9223372036854775808}`, nil, Drain},
		{"too large", `{"v":1,"verb":"status","text":"` + strings.Repeat("x", MaxPacket) + `"}`, nil, ""},
	} {
		_, err := Decode([]byte(c.in))
		var de *DecodeError
		if !errors.As(err, &de) {
			t.Errorf("%s: %v, want a *DecodeError", c.name, err)
			continue
		}
		if c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %v, want %v", c.name, err, c.is)
		}
		if de.Verb != c.verb {
			t.Errorf("%s: verb %q, want %q", c.name, de.Verb, c.verb)
		}
	}
}

func TestUnknownFieldIgnored(t *testing.T) {
	m, err := Decode([]byte(`{"v":1,"verb":"ack","colour":"red","generation":3}`))
	if err != nil || m.Generation != 3 {
		t.Errorf("got %+v, %v", m, err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, m := range map[string]Message{
		"no verb":   {},
		"too large": {Verb: Status, Text: strings.Repeat("x", MaxPacket)},
		"version":   {V: 2, Verb: Bye},
		"negative":  {Verb: Extend, ExtendNS: -1},
	} {
		if b, err := Encode(m); err == nil {
			t.Errorf("%s: encoded as %.60s", name, b)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range golden {
		b, err := Encode(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"v":1,"verb":"dance"}`))
	f.Add([]byte(`{"v":1,"verb":"hello","pid":1e9}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			if _, ok := errors.AsType[*DecodeError](err); !ok {
				t.Fatalf("%T is not a *DecodeError", err)
			}
			return
		}
		// Escaping may make a message longer than the packet it came in.
		again, err := Encode(m)
		if err != nil {
			if strings.Contains(err.Error(), "bytes, more than") {
				return
			}
			t.Fatalf("%+v was decoded but cannot be encoded: %v", m, err)
		}
		m2, err := Decode(again)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Names) == 0 {
			m.Names = nil // an empty list is not sent
		}
		if d := cmp.Diff(m, m2); d != "" {
			t.Fatalf("changed on the way:\n%s", d)
		}
	})
}
