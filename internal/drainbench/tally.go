package main

// tally is what the clients of one cell count.
type tally struct {
	Total int            `json:"total"`           // requests, streams that the server ended, or jobs
	Lost  int            `json:"lost"`            // of them
	Kinds map[string]int `json:"kinds,omitempty"` // Lost by kind
	Notes map[string]int `json:"notes,omitempty"` // what is no loss

	// Samples are errors that have no kind of their own, the first few.
	Samples []string `json:"samples,omitempty"`
}

func newTally() tally { return tally{Kinds: map[string]int{}, Notes: map[string]int{}} }

// lose counts one loss.
func (t *tally) lose(kind string) { t.loseN(kind, 1) }

func (t *tally) loseN(kind string, n int) {
	if n > 0 {
		t.Lost += n
		t.Kinds[kind] += n
	}
}

// sample keeps an error.
func (t *tally) sample(err error) {
	if len(t.Samples) < 3 {
		t.Samples = append(t.Samples, err.Error())
	}
}

// note counts what is no loss.
func (t *tally) note(what string, n int) {
	if n > 0 {
		t.Notes[what] += n
	}
}

// A client sends one kind of load until it is told to finish.
type client interface {
	// count is how many requests, streams or jobs there have been.
	count() int

	// finish begins nothing more, waits for what is under way, and counts.
	finish() tally
}
