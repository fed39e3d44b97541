package main

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/handoverd/handover/internal/drill"
	"github.com/handoverd/handover/internal/site"
)

// The load generator verifies goserver and the tests' child alike, so both must
// give the same answers, byte for byte.
func TestSameAnswersAsTheTestSite(t *testing.T) {
	sent := string(drill.AppendDatagram(nil, 7, 100))
	tests := []struct{ method, target, body string }{
		{"GET", "/fast?n=7", ""},
		{"GET", "/fast", ""},
		{"GET", "/fast?n=-1", ""},
		{"GET", "/slow?n=7&ms=1", ""},
		{"GET", "/slow?n=7&ms=1000000", ""},
		{"GET", "/slow?n=7", ""},
		{"GET", "/stream?n=7&ms=0", ""},
		{"GET", "/stream?n=7&ms=101", ""},
		{"POST", "/upload?n=7", sent},
		{"POST", "/upload?n=7", string(drill.AppendDatagram(nil, 7, 0))},
		{"POST", "/upload?n=8", sent},
		{"POST", "/upload?n=7", strings.Replace(sent, "abc", "abd", 1)},
		{"POST", "/upload?n=7", ""},
		{"POST", "/upload?n=7", strings.Repeat("x", 2<<20)},
		{"GET", "/none", ""},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.target, func(t *testing.T) {
			got, want := httptest.NewRecorder(), httptest.NewRecorder()
			routes(3).ServeHTTP(got, httptest.NewRequest(tt.method, tt.target, strings.NewReader(tt.body)))
			site.Handler(3).ServeHTTP(want, httptest.NewRequest(tt.method, tt.target, strings.NewReader(tt.body)))
			if got.Code != want.Code {
				t.Errorf("status %d, want %d", got.Code, want.Code)
			}
			if diff := cmp.Diff(want.Body.String(), got.Body.String()); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			for _, h := range []string{"X-Generation", "X-Request-Number"} {
				if got.Header().Get(h) != want.Header().Get(h) {
					t.Errorf("%s = %q, want %q", h, got.Header().Get(h), want.Header().Get(h))
				}
			}
		})
	}
}
