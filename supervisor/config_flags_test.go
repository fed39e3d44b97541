package supervisor

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFromFlags(t *testing.T) {
	c, err := fromFlags([]string{"http=:8080", "a=127.0.0.1:0"}, FlagOptions{
		Name: "api", Ready: "notify", InitGrace: 3 * time.Second, ParentShutdown: 4 * time.Second,
		Signal: "USR1", RuntimeDir: "/tmp/x",
	}, []string{"./server", "-v"}, testHost())
	if err != nil {
		t.Fatal(err)
	}
	want := defaults("api", "./server", "-v")
	want.Ready.When, want.Ready.InitGrace = "notify", 3*time.Second
	want.Retire.Signal, want.Retire.ParentShutdown, want.Retire.KillGrace = "SIGUSR1", 4*time.Second, 2*time.Second
	got := *c.Services[0]
	sockets := got.Sockets
	got.Sockets = nil
	if d := cmp.Diff(want, &got, diffConfig); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if len(sockets) != 2 || sockets[0].Name != "http" || sockets[1].Name != "a" || sockets[0].Addr.Port != 8080 {
		t.Errorf("sockets %+v", sockets)
	}
	if c.RuntimeDir != "/tmp/x" || len(c.Digest) != 12 || c.File != "" {
		t.Errorf("%+v", c)
	}
	other, err := fromFlags([]string{"http=:8081"}, FlagOptions{Name: "api"}, []string{"./server", "-v"}, testHost())
	if err != nil || other.Digest == c.Digest {
		t.Errorf("the digest does not tell flags apart: %v, %v", other, err)
	}
}

func TestFromFlagsErrors(t *testing.T) {
	for _, tt := range []struct {
		name    string
		listen  []string
		options FlagOptions
		command []string
		want    string
	}{
		{"no command", nil, FlagOptions{}, nil, "-- COMMAND: names no program"},
		{"no name", []string{":80"}, FlagOptions{}, []string{"x"}, "-l :80: is not NAME=ADDRESS, like http=:8080"},
		{"twice", []string{"a=:80", "a=:81"}, FlagOptions{}, []string{"x"}, `-l a=:81: the name "a" is used twice`},
		{
			"bad name",
			[]string{"A=:80"},
			FlagOptions{},
			[]string{"x"},
			`-l A=:80: "A" is not a name: a lower-case letter, then lower-case letters, digits, _ and -`,
		},
		{
			"options", nil,
			FlagOptions{Ready: "nativ", Signal: "KILL", InitGrace: -1, ParentShutdown: -time.Second},
			[]string{"x"},
			"--ready: \"nativ\" is none of \"auto\", \"native\", \"notify\", \"newline\", \"accepting\", \"http\", \"tcp\", \"exec\", \"alive\"; did you mean \"native\"?\n" +
				"--init-grace: -1ns is negative\n--parent-shutdown: -1s is negative\n" +
				"--signal: SIGKILL cannot be caught, so no program drains on it",
		},
		{
			"service name", nil,
			FlagOptions{Name: "My"},
			[]string{"x"},
			`--name: "My" is not a name: a lower-case letter, then lower-case letters, digits, _ and -`,
		},
		{
			"conflict",
			[]string{"a=:80", "b=0.0.0.0:80"},
			FlagOptions{},
			[]string{"x"},
			"-l b=0.0.0.0:80: tcp://0.0.0.0:80 cannot be bound beside tcp://[::]:80 of web.a",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := fromFlags(tt.listen, tt.options, tt.command, testHost())
			if err == nil {
				t.Fatalf("accepted: %+v", c)
			}
			if d := cmp.Diff(tt.want, err.Error()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
