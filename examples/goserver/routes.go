package main

import (
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// chunkEvery is the time between two chunks of a stream.
const chunkEvery = 50 * time.Millisecond

// routes is the site. Every answer names the generation that gave it and the
// number n of the request, in headers and body, and ends with a checksum of the
// body before it. So a client can prove that nothing is missing or foreign.
func routes(generation int) http.Handler {
	s := pages{generation}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /fast", s.numbered(s.fast))
	mux.HandleFunc("GET /slow", s.numbered(s.slow))
	mux.HandleFunc("GET /stream", s.numbered(s.stream))
	mux.HandleFunc("POST /upload", s.numbered(s.upload))
	return mux
}

type pages struct{ generation int }

// numbered answers with the request's number in a header, or with 400.
func (s pages) numbered(next func(http.ResponseWriter, *http.Request, string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		n := r.FormValue("n")
		if r.Method == http.MethodPost {
			n = r.URL.Query().Get("n") // the body is not a form
		}
		w.Header().Set("X-Generation", strconv.Itoa(s.generation))
		w.Header().Set("X-Request-Number", n)
		if _, err := strconv.ParseUint(n, 10, 64); err != nil {
			http.Error(w, "n: want a decimal number", http.StatusBadRequest)
			return
		}
		next(w, r, n)
	}
}

func (s pages) fast(w http.ResponseWriter, _ *http.Request, n string) {
	finish(w, fmt.Sprintf("generation=%d n=%s", s.generation, n), 0)
}

// slow answers after ms milliseconds.
func (s pages) slow(w http.ResponseWriter, r *http.Request, n string) {
	if d, ok := wait(w, r); ok && pause(r, d) {
		s.fast(w, r, n)
	}
}

// stream answers in chunks spread over ms milliseconds.
func (s pages) stream(w http.ResponseWriter, r *http.Request, n string) {
	d, ok := wait(w, r)
	if !ok {
		return
	}
	start, chunks, sum := time.Now(), max(1, int(d/chunkEvery)), uint32(0)
	for i := range chunks {
		line := fmt.Sprintf("generation=%d n=%s chunk=%d %s\n", s.generation, n, i, strings.Repeat("x", 256))
		sum = crc32.Update(sum, crc32.IEEETable, []byte(line))
		if _, err := io.WriteString(w, line); err != nil {
			return // the client has gone
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		due := start.Add(d * time.Duration(i+1) / time.Duration(chunks))
		if !pause(r, time.Until(due)) {
			return
		}
	}
	finish(w, fmt.Sprintf("generation=%d n=%s chunks=%d", s.generation, n, chunks), sum)
}

// upload answers with the length and the checksum of the body. The body must
// carry the request's number and end with its own checksum.
func (s pages) upload(w http.ResponseWriter, r *http.Request, n string) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		http.Error(w, "body: "+err.Error(), http.StatusBadRequest)
		return
	}
	text, field, found := strings.Cut(string(body), " crc32=")
	number, _, _ := strings.Cut(text, " ")
	sum := fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text)))
	if !found || field != sum+"\n" || number != "n="+n {
		http.Error(w, "body: number or checksum does not fit", http.StatusBadRequest)
		return
	}
	finish(w, fmt.Sprintf("generation=%d n=%s bytes=%d upload=%s", s.generation, n, len(body), sum), 0)
}

// finish ends a body with line and the checksum of everything, sum being that
// of what went before.
func finish(w io.Writer, line string, sum uint32) {
	sum = crc32.Update(sum, crc32.IEEETable, []byte(line))
	// When this fails the client has gone, and knows.
	_, _ = fmt.Fprintf(w, "%s crc32=%08x\n", line, sum)
}

// wait reads ms, or answers with 400.
func wait(w http.ResponseWriter, r *http.Request) (time.Duration, bool) {
	ms, err := strconv.ParseUint(r.URL.Query().Get("ms"), 10, 32)
	d := time.Duration(ms) * time.Millisecond
	if err != nil || d > 10*time.Minute {
		http.Error(w, "ms: want milliseconds, at most 600000", http.StatusBadRequest)
		return 0, false
	}
	return d, true
}

// pause waits for d and tells whether the client is still there.
func pause(r *http.Request, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}
