package drill

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
)

// Plain is what is asked of a server that does not speak the contract, and what can be proved of its answers: the status,
// that the body is as long as was announced (Content-Length, or chunks up to the last), and what the fields below say. A body
// without a length ends with the connection, so that a cut cannot be told from its end.
type Plain struct {
	Path     string // and query, from the slash; empty: "/"
	Status   []int  // expected ones; 2 stands for 200 to 299, and so on. Empty: 2 and 3
	Body     string // text that each answer contains; empty: any
	SameBody bool   // each answer's body has the SHA-256 of the first good one's
}

// accepts says whether the status is an expected one.
func (p *Plain) accepts(status int) bool {
	if len(p.Status) == 0 {
		return status/100 == 2 || status/100 == 3
	}
	return slices.Contains(p.Status, status) || slices.Contains(p.Status, status/100)
}

// appendRequest is Query.AppendRequest for a server without the contract: its bodies are numbered as well, for whoever looks.
func (p *Plain) appendRequest(dst, body []byte, l *Load, number uint64) (request, sent []byte) {
	method, path, host := "GET ", p.Path, l.Host
	if l.Mode == ModePost {
		method = "POST "
	}
	setDefault(&path, "/")
	setDefault(&host, "drill")
	dst = append(append(append(dst, method...), path...), " HTTP/1.1\r\nHost: "...)
	dst = append(append(dst, host...), "\r\nUser-Agent: handoverd-drill\r\nAccept: */*\r\n"...)
	if l.Mode == ModeFresh {
		dst = append(dst, "Connection: close\r\n"...)
	}
	if l.Mode != ModePost {
		return append(dst, "\r\n"...), body
	}
	body = AppendDatagram(body[:0], number, l.Payload)
	dst = append(dst, "Content-Type: text/plain\r\nContent-Length: "...)
	dst = strconv.AppendInt(dst, int64(len(body)), 10)
	return append(append(dst, "\r\n\r\n"...), body...), body
}

// verifyPlain checks an answer that came wholly. The generation is that of X-Generation, where a server sends it.
func (r *Run) verifyPlain(a *response) (generation int, f *failure) {
	p := r.load.Plain
	if !p.accepts(a.status) {
		return 0, &failure{kind: KindBadStatus, err: fmt.Errorf("status %d", a.status)}
	}
	if p.Body != "" && !bytes.Contains(a.body, []byte(p.Body)) {
		return 0, &failure{kind: KindWrongBody, err: fmt.Errorf("body of %d bytes does not contain %q", len(a.body), p.Body)}
	}
	if p.SameBody {
		sum := sha256.Sum256(a.body)
		if !r.firstBody.CompareAndSwap(nil, &sum) && *r.firstBody.Load() != sum {
			return 0, &failure{kind: KindWrongBody, err: fmt.Errorf("body of %d bytes is not the first answer's", len(a.body))}
		}
	}
	if n, err := strconv.Atoi(a.generation); err == nil && n > 0 {
		generation = n
	}
	return generation, nil
}

// plainDatagram finds the number in an answer that need not keep the contract: an echo does.
func plainDatagram(p []byte) (number uint64, generation int, err error) {
	if number, generation, err = VerifyDatagram(p); err == nil {
		return number, generation, nil
	}
	_, rest, found := bytes.Cut(p, []byte("n="))
	end := bytes.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	number, err = strconv.ParseUint(string(rest[:end]), 10, 64)
	if !found || err != nil {
		return 0, 0, errors.New("answer has no number n=")
	}
	return number, 0, nil
}
