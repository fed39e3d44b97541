package supervisor

import (
	"net/http"
	"runtime"
	"runtime/debug"
)

// RuntimeFigures is what POST /v1/gc answers: what handoverd's own process uses
// once the garbage is gone. They are for measuring, and no part of the status.
type RuntimeFigures struct {
	Goroutines int    `json:"goroutines"` // with the one that answers
	HeapBytes  uint64 `json:"heap_bytes"` // that are in use
}

// serveGC collects the garbage and gives the free memory back to the system, so
// that what is resident afterwards is what is in use. It is served on the control
// socket alone, since it costs time.
func (s *Supervisor) serveGC(w http.ResponseWriter, _ *http.Request) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	writeJSON(w, http.StatusOK, RuntimeFigures{Goroutines: runtime.NumGoroutine(), HeapBytes: m.HeapInuse})
}
