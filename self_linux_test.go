package handover

import (
	"context"
	"errors"
	"testing"

	"github.com/cloudflare/tableflip"
)

// A hang-up that comes as soon as the last generation has ended is not lost: tableflip may not have heard of the end yet.
func TestUpgradeIsAskedForUntilHeard(t *testing.T) {
	broken := errors.New("child 1 exited")
	for _, tt := range []struct {
		name    string
		answers []error
		want    error
	}{
		{"at once", []error{nil}, nil},
		{"unheard", []error{errors.New(tableflipHasParent), errors.New(tableflipNotReady), errors.New(tableflipHasParent), nil}, nil},
		{"a reason of its own", []error{errors.New(tableflipHasParent), broken, nil}, broken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := 0
			got := untilHeard(t.Context(), func() error { n++; return tt.answers[n-1] })
			if !errors.Is(got, tt.want) {
				t.Errorf("%v after %d requests, want %v", got, n, tt.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := untilHeard(ctx, func() error { cancel(); return errors.New(tableflipHasParent) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v after the end of its context, want %v", err, context.Canceled)
	}
}

// The texts by which these answers are known are those of the tableflip that is linked in.
func TestTableflipTexts(t *testing.T) {
	upgrader, err := tableflip.New(tableflip.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer upgrader.Stop()
	if err := upgrader.Upgrade(); err == nil || err.Error() != tableflipNotReady {
		t.Errorf("before it is ready tableflip says %v, want %q", err, tableflipNotReady)
	}
}
