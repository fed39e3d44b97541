package drill

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// maxBody bounds the body of an answer, in bytes: it is kept whole until it is verified.
const maxBody = 4 << 20

// malformedError is an answer that is not HTTP/1.1 as the contract has it.
type malformedError string

func (e malformedError) Error() string { return "malformed answer: " + string(e) }

// response is an answer as it was read.
type response struct {
	status             int
	generation, number string
	body               []byte
	keep               bool // the connection may carry another request
	untilEOF           bool // the body had no length and ended with the connection

	accept     string // Sec-WebSocket-Accept
	proxyField string // the field that sets proxy, or empty
	proxy      string

	length  int64 // -1: none given
	chunked bool
	closes  bool // Connection: close
}

// readResponse reads one final answer; the body is appended to scratch. An error is what the connection said (io.EOF and
// so on) or an malformedError; status is 0 as long as no status line was read.
func (k *client) readResponse(scratch []byte) (response, error) {
	for {
		a, err := k.readHead()
		a.body = scratch
		if err != nil {
			return a, err
		}
		if a.status >= 200 {
			return k.readBody(a)
		}
		// 1xx answers come before the real one (RFC 9110, 15.2).
	}
}

// readHead reads up to and including the empty line.
func (k *client) readHead() (response, error) {
	a := response{length: -1, proxyField: k.proxyField}
	var end int
	for {
		end = bytes.Index(k.buf[k.r:k.w], []byte("\r\n\r\n"))
		if end >= 0 {
			break
		}
		if err := k.fill(); err != nil {
			return a, err
		}
	}
	head := k.buf[k.r : k.r+end]
	k.r += end + 4
	line, fields, _ := bytes.Cut(head, []byte("\r\n"))
	version, rest, _ := bytes.Cut(line, []byte(" "))
	code, _, _ := bytes.Cut(rest, []byte(" "))
	status, err := strconv.Atoi(string(code))
	if err != nil || len(code) != 3 || status < 100 || !bytes.HasPrefix(version, []byte("HTTP/1.")) {
		return a, malformedError(fmt.Sprintf("status line %.60q", line))
	}
	a.status = status
	a.keep = string(version) == "HTTP/1.1"
	for len(fields) > 0 {
		line, fields, _ = bytes.Cut(fields, []byte("\r\n"))
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			return a, malformedError(fmt.Sprintf("header field %.60q", line))
		}
		if err := a.field(name, bytes.TrimSpace(value)); err != nil {
			return a, err
		}
	}
	a.keep = a.keep && !a.closes
	return a, nil
}

// field takes notice of one header field.
func (a *response) field(name, value []byte) error {
	is := func(want string) bool { return len(name) == len(want) && bytes.EqualFold(name, []byte(want)) }
	switch {
	case is("Content-Length"):
		n, err := strconv.ParseUint(string(value), 10, 31)
		if err != nil {
			return malformedError(fmt.Sprintf("Content-Length %.60q", value))
		}
		a.length = int64(n)
	case is("Transfer-Encoding"):
		if !bytes.EqualFold(value, []byte("chunked")) {
			return malformedError(fmt.Sprintf("Transfer-Encoding %.60q", value))
		}
		a.chunked = true
	case is("Connection"):
		// A list, which may come in several fields; close counts wherever it stands (RFC 9112, 9.3 and 9.6).
		for option := range bytes.SplitSeq(value, []byte(",")) {
			option = bytes.TrimSpace(option)
			a.closes = a.closes || bytes.EqualFold(option, []byte("close"))
			a.keep = a.keep || bytes.EqualFold(option, []byte("keep-alive"))
		}
	case is("X-Generation"):
		a.generation = string(value)
	case is("X-Request-Number"):
		a.number = string(value)
	case is("Sec-WebSocket-Accept"):
		a.accept = string(value)
	case a.proxyField != "" && is(a.proxyField):
		a.proxy = string(value)
	}
	return nil
}

func (k *client) readBody(a response) (response, error) {
	var err error
	switch {
	case a.status == 204 || a.status == 304:
	case a.chunked:
		a.body, err = k.readChunks(a.body)
	case a.length >= 0:
		a.body, err = k.take(a.body, int(a.length))
	default:
		a.keep, a.untilEOF = false, true
		for err == nil {
			if k.r == k.w {
				err = k.fill()
			}
			if err == nil {
				a.body, err = k.take(a.body, k.w-k.r)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	return a, err
}

// take appends exactly n bytes to body.
func (k *client) take(body []byte, n int) ([]byte, error) {
	if len(body)+n > maxBody {
		return body, malformedError("body longer than " + strconv.Itoa(maxBody) + " bytes")
	}
	for n > 0 {
		if k.r == k.w {
			if err := k.fill(); err != nil {
				return body, err
			}
		}
		m := min(n, k.w-k.r)
		body = append(body, k.buf[k.r:k.r+m]...)
		k.r += m
		n -= m
	}
	return body, nil
}

// readChunks reads a chunked body with its trailer.
func (k *client) readChunks(body []byte) ([]byte, error) {
	for {
		line, err := k.line()
		if err != nil {
			return body, err
		}
		size, _, _ := bytes.Cut(line, []byte(";"))
		n, err := strconv.ParseUint(string(bytes.TrimSpace(size)), 16, 31)
		if err != nil {
			return body, malformedError(fmt.Sprintf("chunk size %.40q", line))
		}
		if n == 0 {
			break
		}
		if body, err = k.take(body, int(n)); err != nil {
			return body, err
		}
		if line, err = k.line(); err != nil {
			return body, err
		}
		if len(line) != 0 {
			return body, malformedError("chunk longer than its size")
		}
	}
	for {
		line, err := k.line()
		if err != nil || len(line) == 0 {
			return body, err
		}
	}
}

// line reads one line, without its end. It is valid until the next read.
func (k *client) line() ([]byte, error) {
	for {
		if i := bytes.Index(k.buf[k.r:k.w], []byte("\r\n")); i >= 0 {
			line := k.buf[k.r : k.r+i]
			k.r += i + 2
			return line, nil
		}
		if err := k.fill(); err != nil {
			return nil, err
		}
	}
}
