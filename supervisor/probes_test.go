package supervisor

import (
	"fmt"
	"testing"
	"time"
)

// TestProbers: a lame duck has been seen when every prober was told so often; who asks once is none.
func TestProbers(t *testing.T) {
	duck := lameID{"web", 5}
	begin := time.Unix(1e9, 0)
	const lame = true
	type ask struct {
		who   string
		after time.Duration
		lame  bool
	}
	for name, c := range map[string]struct {
		asks []ask
		want bool // the last one makes it enough
	}{
		"one prober":          {[]ask{{"a", 0, lame}, {"a", 1, lame}, {"a", 2, lame}}, true},
		"not often enough":    {[]ask{{"a", 0, lame}, {"a", 1, lame}}, false},
		"good answers":        {[]ask{{"a", 0, false}, {"a", 1, false}, {"a", 2, lame}}, false},
		"another is behind":   {[]ask{{"b", 0, false}, {"b", 1, false}, {"a", 2, lame}, {"a", 3, lame}, {"a", 4, lame}}, false},
		"both":                {[]ask{{"b", 0, lame}, {"a", 0, lame}, {"b", 1, lame}, {"a", 1, lame}, {"b", 2, lame}, {"a", 2, lame}}, true},
		"a person asked once": {[]ask{{"me", 0, false}, {"a", 2, lame}, {"a", 3, lame}, {"a", 4, lame}}, true},
		"a prober that is gone": {[]ask{
			{"b", 0, false}, {"b", 1, false}, {"a", 2 * time.Minute, lame}, {"a", 2 * time.Minute, lame}, {"a", 2 * time.Minute, lame},
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var p probers
			got := false
			for _, a := range c.asks {
				ducks := map[lameID]int{}
				if a.lame {
					ducks[duck] = 3
				}
				got = len(p.saw(a.who, begin.Add(a.after), ducks)) == 1
			}
			if got != c.want {
				t.Errorf("enough: %v", got)
			}
		})
	}
	t.Run("bounded", func(t *testing.T) {
		var p probers
		for i := range 10 * proberMax {
			p.saw(fmt.Sprint(i), begin, map[lameID]int{duck: 1})
		}
		if len(p.known) > proberMax {
			t.Errorf("%d are remembered", len(p.known))
		}
	})
}
