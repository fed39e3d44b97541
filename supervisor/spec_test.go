package supervisor

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A restart gets byte for byte what the generation before it got.
func TestSpecEnvironmentSurvivesJSON(t *testing.T) {
	want := Spec{Env: environ{"A=plain", "B=\xff\xfe no UTF-8", "C=", "D={\"base64\": \"x\"}", "E=ünïcode\n"}}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Spec
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Env, got.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	for _, bad := range []string{`{"env": [1]}`, `{"env": [{"base64": "%"}]}`, `{"env": "A=1"}`} {
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s: decoded, want an error", bad)
		}
	}
}
