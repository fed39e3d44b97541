package supervisor

import (
	"encoding/json"
	"errors"
	"net/http"
)

// serveLameDuck begins lame ducks, or calls them off, and answers when that is done. By
// GET it waits alone: an upgrade has cut the answer to who has asked for it.
//
// That the request was taken is said at once, by the header. Where handoverd ends before
// the wait does, the answer has no end.
func (s *Supervisor) serveLameDuck(w http.ResponseWriter, r *http.Request) {
	off, err := boolParam(r, "off")
	if err != nil {
		writeError(w, http.StatusBadRequest, "bad request", err)
		return
	}
	begun := false
	req := LameDuckRequest{Services: r.URL.Query()["service"], Off: off}
	report, err := s.lameDuck(r.Context(), req, r.Method == http.MethodGet, func() {
		begun = true
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush() // the client may be gone
		lasts(r)
	})
	switch {
	case err != nil && begun:
		panic(http.ErrAbortHandler)
	case errors.Is(err, ErrUnknownService):
		writeError(w, http.StatusNotFound, "no such service", err)
	case errors.Is(err, ErrStopping), errors.Is(err, ErrClosed):
		writeError(w, http.StatusConflict, "stopping", err)
	case err != nil:
		writeError(w, http.StatusInternalServerError, "internal", err)
	default:
		_ = json.NewEncoder(w).Encode(report) // the client is gone: there is nobody to tell
	}
}
