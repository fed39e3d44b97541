package site

import (
	"hash/crc32"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	// maxUpload bounds the body that /upload reads, in bytes.
	maxUpload = 1 << 20
	// maxWait bounds the ms of /slow and /stream.
	maxWait = 10 * time.Minute
	// chunkEvery is the time between two chunks of a stream: often enough that a cut shows wherever it falls.
	chunkEvery = 50 * time.Millisecond
	// chunkFill is the number of filling bytes in each chunk.
	chunkFill = 256
)

// Handler answers as the given generation. It keeps no state, starts nothing, and is safe for concurrent use. What it does
// with a connection (keep-alive, Connection: close) is left to the server around it.
func Handler(generation int) http.Handler {
	s := &pages{generation: generation, header: strconv.Itoa(generation)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /fast", s.fast)
	mux.HandleFunc("GET /slow", s.slow)
	mux.HandleFunc("GET /stream", s.stream)
	mux.HandleFunc("POST /upload", s.upload)
	return mux
}

// pages is the site of one generation.
type pages struct {
	generation int
	header     string
}

// number reads n, sets the two headers of every answer, and answers 400 itself when there is no number.
func (s *pages) number(w http.ResponseWriter, r *http.Request) (uint64, bool) {
	text := r.URL.Query().Get("n")
	w.Header().Set("X-Generation", s.header)
	w.Header().Set("X-Request-Number", text)
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		http.Error(w, "n: want a decimal number", http.StatusBadRequest)
		return 0, false
	}
	return n, true
}

// wait reads ms, and answers 400 itself when it is no sensible time.
func (s *pages) wait(w http.ResponseWriter, r *http.Request) (time.Duration, bool) {
	ms, err := strconv.ParseUint(r.URL.Query().Get("ms"), 10, 32)
	d := time.Duration(ms) * time.Millisecond
	if err != nil || d > maxWait {
		http.Error(w, "ms: want milliseconds, at most "+strconv.Itoa(int(maxWait/time.Millisecond)), http.StatusBadRequest)
		return 0, false
	}
	return d, true
}

// answer writes a body whole, with its length, so that a cut is never taken for an end.
func answer(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	// The client has gone when this fails; it counts that itself.
	_, _ = w.Write(body)
}

func (s *pages) fast(w http.ResponseWriter, r *http.Request) {
	if n, ok := s.number(w, r); ok {
		answer(w, appendAnswer(make([]byte, 0, 96), s.generation, n))
	}
}

func (s *pages) slow(w http.ResponseWriter, r *http.Request) {
	n, ok := s.number(w, r)
	if !ok {
		return
	}
	d, ok := s.wait(w, r)
	if !ok {
		return
	}
	if pause(r, time.Now().Add(d)) {
		answer(w, appendAnswer(make([]byte, 0, 96), s.generation, n))
	}
}

// pause waits until t and reports whether the client is still there.
func pause(r *http.Request, t time.Time) bool {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

func (s *pages) stream(w http.ResponseWriter, r *http.Request) {
	n, ok := s.number(w, r)
	if !ok {
		return
	}
	d, ok := s.wait(w, r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	var (
		out    = http.NewResponseController(w)
		start  = time.Now()
		chunks = max(1, int(d/chunkEvery))
		sum    uint32
		line   []byte
	)
	for i := range chunks {
		line = appendHead(line[:0], s.generation, n)
		line = append(line, " chunk="...)
		line = strconv.AppendInt(line, int64(i), 10)
		line = append(line, ' ')
		for range chunkFill {
			line = append(line, 'x')
		}
		line = append(line, '\n')
		sum = crc32.Update(sum, crc32.IEEETable, line)
		if _, err := w.Write(line); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
		// Due times are counted from the start, so that the whole takes d however late single wake-ups are.
		if !pause(r, start.Add(d*time.Duration(i+1)/time.Duration(chunks))) {
			return
		}
	}
	line = appendHead(line[:0], s.generation, n)
	line = append(line, " chunks="...)
	line = strconv.AppendInt(line, int64(chunks), 10)
	sum = crc32.Update(sum, crc32.IEEETable, line)
	_, _ = w.Write(appendSum(line, sum))
}

func (s *pages) upload(w http.ResponseWriter, r *http.Request) {
	n, ok := s.number(w, r)
	if !ok {
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxUpload))
	if err != nil {
		http.Error(w, "body: "+err.Error(), http.StatusBadRequest)
		return
	}
	number, sum, ok := parseSent(body)
	if !ok || number != n {
		http.Error(w, "body: number or checksum does not fit", http.StatusBadRequest)
		return
	}
	out := appendHead(make([]byte, 0, 128), s.generation, n)
	out = append(out, " bytes="...)
	out = strconv.AppendInt(out, int64(len(body)), 10)
	out = append(out, " upload="...)
	out = appendHex8(out, sum)
	answer(w, appendSum(out, crc32.ChecksumIEEE(out)))
}
