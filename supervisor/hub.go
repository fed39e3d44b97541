package supervisor

import (
	"slices"
	"sync"
	"time"
)

// pastEvents is how many events are kept for a follower that comes back.
const pastEvents = 256

// hub hands events to all followers. One that does not read loses events, and
// is told how many; it never holds up the loop.
type hub struct {
	mu        sync.Mutex
	followers map[chan Event]*int
	closed    bool
	past      []Event // the newest, oldest first
	last      int     // number of the newest
}

// follow returns a channel of events from now on and a function that ends it.
func (h *hub) follow() (<-chan Event, func()) { return h.after(0) }

// after is follow for a follower who has seen all up to a number, 0 if none: the
// events after it come first, as far as they are kept.
func (h *hub) after(seq int) (<-chan Event, func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	missed := h.missed(seq)
	c := make(chan Event, 256+len(missed))
	for _, e := range missed {
		c <- e
	}
	if h.closed {
		close(c)
		return c, func() {}
	}
	if h.followers == nil {
		h.followers = map[chan Event]*int{}
	}
	h.followers[c] = new(int)
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, ok := h.followers[c]; ok {
			delete(h.followers, c)
			close(c)
		}
	}
}

// missed are the events after a number. The caller holds mu.
func (h *hub) missed(seq int) []Event {
	if seq <= 0 || seq >= h.last {
		return nil
	}
	first := h.last - len(h.past) + 1
	missed := h.past[max(0, seq+1-first):]
	if lost := first - seq - 1; lost > 0 {
		missed = append([]Event{{Time: time.Now(), Kind: "lost", Lost: lost}}, missed...)
	}
	return missed
}

func (h *hub) send(e Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	e.Time = time.Now()
	h.last++
	e.Seq = h.last
	h.past = append(h.past[max(0, len(h.past)+1-pastEvents):], e)
	for c, lost := range h.followers {
		if *lost > 0 {
			select {
			case c <- Event{Time: e.Time, Kind: "lost", Lost: *lost}:
				*lost = 0
			default:
			}
		}
		select {
		case c <- e:
		default:
			*lost++
		}
	}
}

// kept is what a next image goes on from.
func (h *hub) kept() (past []Event, last int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.past), h.last
}

// goOn goes on from what an image before has kept.
func (h *hub) goOn(past []Event, last int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if last >= len(past) {
		h.past, h.last = past, last
	}
}

func (h *hub) size() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.followers)
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for c := range h.followers {
		delete(h.followers, c)
		close(c)
	}
}
