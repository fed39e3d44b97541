package supervisor

import (
	"errors"
	"net/http"
)

// serveLameDuck begins lame ducks, or calls them off, and answers when that is done.
func (s *Supervisor) serveLameDuck(w http.ResponseWriter, r *http.Request) {
	off, err := boolParam(r, "off")
	if err != nil {
		writeError(w, http.StatusBadRequest, "bad request", err)
		return
	}
	report, err := s.LameDuck(r.Context(), LameDuckRequest{Services: r.URL.Query()["service"], Off: off})
	switch {
	case errors.Is(err, ErrUnknownService):
		writeError(w, http.StatusNotFound, "no such service", err)
	case errors.Is(err, ErrStopping), errors.Is(err, ErrClosed):
		writeError(w, http.StatusConflict, "stopping", err)
	case err != nil:
		writeError(w, http.StatusInternalServerError, "internal", err)
	default:
		writeJSON(w, http.StatusOK, report)
	}
}
