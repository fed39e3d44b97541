package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBesideOutputIsBounded: a hook that writes without end takes neither the room of the runtime directory nor the memory
// of handoverd; the end of what it has written is kept.
func TestBesideOutputIsBounded(t *testing.T) {
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	fd, done, err := rawAppend(out.Name(), -1, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	write := func(text []byte) {
		if _, err := unix.Write(fd, text); err != nil {
			t.Fatal(err)
		}
	}
	o := besideOutput{f: out}
	write([]byte("short\n"))
	if o.trim(); string(o.tail()) != "short\n" {
		t.Errorf("%q", o.tail())
	}
	piece := bytes.Repeat([]byte("0123456789abcde\n"), 16<<10)
	for range 64 {
		write(piece)
		o.trim()
	}
	write([]byte("why\n"))
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	if room := st.Blocks * 512; room > 2*punchStep+2*besideKept {
		t.Errorf("%d bytes written take %d", st.Size, room)
	}
	text := o.tail()
	if len(text) != besideKept || lastLines(text, 2) != fmt.Sprintf("\n  %s\n  why", "0123456789abcde") || bytes.IndexByte(text, 0) >= 0 {
		t.Errorf("%d bytes are kept, which end in %q", len(text), lastLines(text, 2))
	}
}
