package sdnotify

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Message // without Assignments
		err  error
	}{
		{"READY=1", Message{Ready: true}, nil},
		{"READY=1\n", Message{Ready: true}, nil},
		{"READY=1\x00", Message{Ready: true}, nil},
		{"READY=1\nSTATUS=serving = fine\nMAINPID=4711", Message{Ready: true, Status: "serving = fine", MainPID: 4711}, nil},
		{"RELOADING=1\nMONOTONIC_USEC=12", Message{Reloading: true}, nil},
		{"STOPPING=1", Message{Stopping: true}, nil},
		{"EXTEND_TIMEOUT_USEC=30000000", Message{ExtendUsec: 30000000}, nil},
		{"BARRIER=1", Message{Barrier: true}, nil},
		{"BARRIER=1\nREADY=1", Message{Ready: true}, nil},
		{"READY=0", Message{Invalid: []string{"READY"}}, nil},
		{"READY=1\nMAINPID=me", Message{Ready: true, Invalid: []string{"MAINPID"}}, nil},
		{"MAINPID=-5", Message{Invalid: []string{"MAINPID"}}, nil},
		{"MAINPID=99999999999", Message{Invalid: []string{"MAINPID"}}, nil},
		{"EXTEND_TIMEOUT_USEC=-1", Message{Invalid: []string{"EXTEND_TIMEOUT_USEC"}}, nil},
		{"STATUS=\xff", Message{Invalid: []string{"STATUS"}}, nil},
		{"MAINPID=5\nMAINPID=6", Message{MainPID: 5}, nil},
		{"READY\n=1\n\nX_OTHER=2", Message{}, nil},
		{"ready=1", Message{}, nil},
		{"", Message{}, ErrEmpty},
		{"\x00", Message{}, ErrEmpty},
		{"READY=1\x00STATUS=", Message{}, ErrNUL},
		{strings.Repeat("x", MaxDatagram+1), Message{}, ErrTruncated},
	} {
		got, err := Parse([]byte(c.in))
		if !errors.Is(err, c.err) {
			t.Errorf("%.60q: %v, want %v", c.in, err, c.err)
		}
		got.Assignments = nil
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%.60q: -want +got:\n%s", c.in, d)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"READY=1\nSTATUS=x", "MAINPID=12", "EXTEND_TIMEOUT_USEC=1", "BARRIER=1", "=\n=", "STATUS=\xff\x00",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		if m.MainPID < 0 || m.MainPID == 1 {
			t.Errorf("MainPID %d", m.MainPID)
		}
		if strings.ContainsAny(m.Status, "\n\x00") {
			t.Errorf("status %q is not one line", m.Status)
		}
		if m.Barrier && (m.Ready || m.Stopping || m.Reloading) {
			t.Error("barrier beside something else")
		}
		for k, v := range m.Assignments {
			if k == "" || strings.ContainsAny(k, "=\n") || strings.Contains(v, "\n") {
				t.Errorf("assignment %q=%q", k, v)
			}
		}
	})
}
