package supervisor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestStreamReload: whoever waits for a reload is told everything that happened before its outcome, and that last.
func TestStreamReload(t *testing.T) {
	var h hub
	for range 50 { // select chooses at random
		events, end := h.follow()
		var want []string
		for i := range 5 {
			text := fmt.Sprint("event ", i)
			h.send(Event{Kind: "note", Text: text})
			want = append(want, text)
		}
		done := make(chan reloadOutcome, 1)
		done <- reloadOutcome{report: &ReloadReport{}}
		w := httptest.NewRecorder()
		streamReload(newLines(w), events, nil, done, nil)
		end()
		var got []string
		for lines := bufio.NewScanner(w.Body); lines.Scan(); {
			var e Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatal(err)
			}
			got = append(got, e.Text)
			if e.Kind == "reload" {
				got[len(got)-1] = "outcome"
			}
		}
		if diff := cmp.Diff(append(want, "outcome"), got); diff != "" {
			t.Fatalf("lines (-want +got):\n%s", diff)
		}
	}
}
