package drill

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"
)

// Resource is one of the pages that a server under load has. Package site describes them and serves them; this file is
// the client's side of the same contract, written apart from it so that each tests the other.
type Resource string

// The resources.
const (
	Fast   Resource = "fast"   // GET, answered at once
	Slow   Resource = "slow"   // GET, answered after a time
	Stream Resource = "stream" // GET, answered in chunks over a time
	Upload Resource = "upload" // POST, whose body is verified and echoed
)

// Query is one request of the contract.
type Query struct {
	Resource Resource
	Number   uint64
	Wait     time.Duration // of Slow and Stream, in whole milliseconds
	Payload  int           // bytes of filling in an Upload
	Close    bool          // ask with Connection: close
	Host     string        // of the header; empty: "drill"
}

// Answer is what came back, apart from how it came.
type Answer struct {
	Status     int
	Generation string // header X-Generation
	Number     string // header X-Request-Number
	Body       []byte
}

// sumLen is the length of the last field of every body, " crc32=XXXXXXXX\n".
const sumLen = len(" crc32=") + 8 + 1

// AppendDatagram appends the datagram with this number, which is also an upload's body when payload is more than 0.
// dst must be empty: the checksum is of everything before it.
func AppendDatagram(dst []byte, number uint64, payload int) []byte {
	dst = append(dst, "n="...)
	dst = strconv.AppendUint(dst, number, 10)
	if payload > 0 {
		dst = append(dst, ' ')
		for i := range payload {
			dst = append(dst, 'a'+byte((uint64(i)+number)%26))
		}
	}
	return appendSum(dst, crc32.ChecksumIEEE(dst))
}

func appendSum(dst []byte, sum uint32) []byte {
	return fmt.Appendf(dst, " crc32=%08x\n", sum)
}

// AppendRequest appends the request's bytes. body is scratch space for an upload's body (it may be nil); it is returned
// for the next call, and holds the body that Verify compares with.
func (q Query) AppendRequest(dst, body []byte) (request, sent []byte) {
	method := "GET "
	if q.Resource == Upload {
		method = "POST "
	}
	dst = q.appendTarget(append(dst, method...))
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	if q.Host == "" {
		dst = append(dst, "drill"...)
	}
	dst = append(dst, q.Host...)
	dst = append(dst, "\r\n"...)
	if q.Close {
		dst = append(dst, "Connection: close\r\n"...)
	}
	if q.Resource != Upload {
		return append(dst, "\r\n"...), body
	}
	body = AppendDatagram(body[:0], q.Number, q.Payload)
	dst = append(dst, "Content-Type: text/plain\r\nContent-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	dst = append(dst, "\r\n\r\n"...)
	return append(dst, body...), body
}

// appendTarget appends the path and query of the request.
func (q Query) appendTarget(dst []byte) []byte {
	dst = append(append(dst, '/'), q.Resource...)
	dst = append(dst, "?n="...)
	dst = strconv.AppendUint(dst, q.Number, 10)
	if q.Resource == Slow || q.Resource == Stream {
		dst = append(dst, "&ms="...)
		dst = strconv.AppendInt(dst, q.Wait.Milliseconds(), 10)
	}
	return dst
}

// errStatus is wrapped by what Verify says of an answer whose status is not 200.
var errStatus = errors.New("status is not 200")

// Verify checks an answer to q and returns the generation that gave it. sent is the body that AppendRequest returned; it
// matters for an Upload only.
func (q Query) Verify(a Answer, sent []byte) (generation int, err error) {
	if a.Status != 200 {
		return 0, fmt.Errorf("status %d: %w", a.Status, errStatus)
	}
	rest, generation, err := verifyBody(a.Body, q.Number)
	if err != nil {
		return 0, err
	}
	if a.Number != strconv.FormatUint(q.Number, 10) {
		return 0, fmt.Errorf("header X-Request-Number is %q, sent %d", a.Number, q.Number)
	}
	if a.Generation != strconv.Itoa(generation) {
		return 0, fmt.Errorf("header X-Generation is %q, the body says %d", a.Generation, generation)
	}
	switch q.Resource {
	case Stream:
		return generation, verifyChunks(a.Body, rest)
	case Upload:
		want := fmt.Sprintf(" bytes=%d upload=%s", len(sent), sent[len(sent)-9:len(sent)-1])
		if string(rest) != want {
			return 0, fmt.Errorf("upload echoed as %q, want %q", rest, want)
		}
	default:
		if len(rest) != 0 {
			return 0, fmt.Errorf("body has %q after its number", rest)
		}
	}
	return generation, nil
}

// VerifyDatagram checks the answer to a datagram and returns its number and the generation that gave it.
func VerifyDatagram(p []byte) (number uint64, generation int, err error) {
	front, err := cutSum(p)
	if err != nil {
		return 0, 0, err
	}
	rest, generation, number, err := cutHead(front)
	if err == nil && len(rest) != 0 {
		err = fmt.Errorf("datagram has %q after its number", rest)
	}
	return number, generation, err
}

// verifyBody checks the checksum and the first line's generation and number; rest is what follows them.
func verifyBody(body []byte, number uint64) (rest []byte, generation int, err error) {
	front, err := cutSum(body)
	if err != nil {
		return nil, 0, err
	}
	rest, generation, got, err := cutHead(front)
	if err != nil {
		return nil, 0, err
	}
	if got != number {
		return nil, 0, fmt.Errorf("body answers request %d, sent %d", got, number)
	}
	return rest, generation, nil
}

// cutSum verifies the checksum field at the end and returns what is before it.
func cutSum(body []byte) ([]byte, error) {
	if len(body) < sumLen {
		return nil, fmt.Errorf("body of %d bytes has no checksum", len(body))
	}
	front := body[:len(body)-sumLen]
	var buf [sumLen]byte
	want := appendSum(buf[:0], crc32.ChecksumIEEE(front))
	if got := body[len(front):]; !bytes.Equal(got, want) {
		return nil, fmt.Errorf("body of %d bytes ends in %q, want %q", len(body), got, want)
	}
	return front, nil
}

// cutHead reads "generation=G n=N" and returns what follows.
func cutHead(p []byte) (rest []byte, generation int, number uint64, err error) {
	p, ok := bytes.CutPrefix(p, []byte("generation="))
	g, p, found := bytes.Cut(p, []byte(" n="))
	if !ok || !found {
		return nil, 0, 0, fmt.Errorf("body does not begin with its generation and number: %.40q", p)
	}
	generation, err = strconv.Atoi(string(g))
	if err != nil {
		return nil, 0, 0, fmt.Errorf("generation: %w", err)
	}
	end := bytes.IndexFunc(p, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(p)
	}
	number, err = strconv.ParseUint(string(p[:end]), 10, 64)
	if err != nil {
		return nil, 0, 0, fmt.Errorf("number: %w", err)
	}
	return p[end:], generation, number, nil
}

// verifyChunks checks that a stream's lines are numbered without a gap, all with the same generation and number, and that
// the last line counts them. rest is the body after the first line's number, without the checksum.
func verifyChunks(body, rest []byte) error {
	head := body[:bytes.Index(body, rest)]
	chunks := 0
	for {
		field := fmt.Appendf(nil, " chunk=%d ", chunks)
		if !bytes.HasPrefix(rest, field) {
			break
		}
		_, next, ok := bytes.Cut(rest, []byte("\n"))
		if !ok || !bytes.HasPrefix(next, head) {
			return fmt.Errorf("chunk %d is not followed by a line of the same generation and number", chunks)
		}
		rest = next[len(head):]
		chunks++
	}
	if want := fmt.Sprintf(" chunks=%d", chunks); string(rest) != want || chunks == 0 {
		return fmt.Errorf("stream ends in %.60q after %d chunks, want %q", rest, chunks, want)
	}
	return nil
}
