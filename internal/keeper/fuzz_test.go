package keeper

import (
	"encoding/json"
	"testing"
)

// FuzzDecode: whatever a packet holds, it is refused or has what its verb needs: a name for each descriptor.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"v":1,"verb":"hello"}`, `{"v":1,"verb":"hello","pid":7}`, `{"v":1,"verb":"keep","names":["socket/tcp 127.0.0.1:80"]}`,
		`{"v":2,"verb":"drop","names":["a","b"],"more":{}}`, `{"v":1,"verb":"take"}`, `{"v":1,"verb":"kept","last":true}`,
		`{"v":1,"verb":"error","error":"no room"}`, `{"v":1,"verb":"keep","names":[""]}`, `null`, `[]`, `{"v":-1}`, ``,
	} {
		f.Add([]byte(s), 1)
	}
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		m, err := decode(b, n)
		if err != nil {
			return
		}
		switch m.Verb {
		case verbKeep, verbKept:
			if len(m.Names) != n {
				t.Fatalf("%d names for %d descriptors", len(m.Names), n)
			}
		case verbHello:
			if n > 1 {
				t.Fatalf("hello with %d descriptors", n)
			}
		default:
			if n != 0 {
				t.Fatalf("%s with %d descriptors", m.Verb, n)
			}
		}
		for names := m.Names; len(names) > 0; {
			k := batch(names, maxFiles)
			if k < 1 || k > len(names) || k > maxFiles {
				t.Fatalf("a batch of %d of %d names", k, len(names))
			}
			text, err := json.Marshal(message{V: 1, Verb: m.Verb, Names: names[:k], Last: true})
			if err != nil || len(text) > MaxPacket {
				t.Fatalf("a packet of %d bytes, %v", len(text), err)
			}
			names = names[k:]
		}
	})
}
