package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// eventClient holds event streams open. One that the server ends is lost unless its last words were "retry:" and an event,
// and the answer was whole.
func eventClient(addr string) visit {
	http := freshClient()
	return func(ctx context.Context, quit <-chan struct{}, _ int) (loss, bool) {
		ctx, release := untilQuit(ctx, quit)
		defer release()
		resp, err := get(ctx, http, "http://"+addr+"/events")
		if err != nil {
			return lossOf(err, false), ctx.Err() == nil
		}
		defer resp.Body.Close()
		var tail []byte
		piece := make([]byte, 4<<10)
		for {
			n, err := resp.Body.Read(piece)
			tail = append(tail, piece[:n]...)
			tail = tail[max(0, len(tail)-len(lastEvent)):]
			switch {
			case err == nil:
				continue
			case ctx.Err() != nil:
				return none, false
			case !errors.Is(err, io.EOF):
				return lossOf(err, true), true
			case string(tail) != lastEvent:
				return loss{kind: "no retry"}, true
			}
			return none, true
		}
	}
}

// untilQuit ends with ctx or when quit is closed.
func untilQuit(ctx context.Context, quit <-chan struct{}) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	// Not waited for: release ends it.
	go cancelOn(ctx, quit, cancel)
	return ctx, cancel
}

func cancelOn(ctx context.Context, quit <-chan struct{}, cancel func()) {
	select {
	case <-quit:
		cancel()
	case <-ctx.Done():
	}
}

// get is a GET whose answer must be 200.
func get(ctx context.Context, c *http.Client, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		_ = resp.Body.Close()
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return resp, err
}

// uploadClient sends bodies of which a piece comes every tenth of takes, and checks the answer.
func uploadClient(addr string, takes time.Duration) visit {
	http := freshClient()
	return func(ctx context.Context, _ <-chan struct{}, n int) (loss, bool) {
		ctx, cancel := context.WithTimeout(ctx, takes+10*time.Second)
		defer cancel()
		q := drill.Query{Resource: drill.Upload, Number: uint64(n), Payload: uploadSize}
		body := drill.AppendDatagram(nil, q.Number, q.Payload)
		answer, err := upload(ctx, http, fmt.Sprintf("http://%s/upload?n=%d", addr, n), body, takes)
		if err != nil {
			return lossOf(err, answer.Status != 0), ctx.Err() == nil || ctx.Err() == context.DeadlineExceeded
		}
		if _, err := q.Verify(answer, body); err != nil {
			return loss{kind: string(drill.KindWrongBody)}, true
		}
		return none, true
	}
}

// uploadSize is the filling of a body, in bytes.
const uploadSize = 20_000

func upload(ctx context.Context, c *http.Client, url string, body []byte, takes time.Duration) (a drill.Answer, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, &slowReader{ctx: ctx, rest: body, piece: len(body)/10 + 1, pause: takes / 10})
	if err != nil {
		return a, err
	}
	req.ContentLength = int64(len(body))
	resp, err := c.Do(req)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	a.Status, a.Generation, a.Number = resp.StatusCode, resp.Header.Get("X-Generation"), resp.Header.Get("X-Request-Number")
	a.Body, err = io.ReadAll(resp.Body)
	return a, err
}

// slowReader gives a piece after each pause.
type slowReader struct {
	ctx   context.Context
	rest  []byte
	piece int
	pause time.Duration
}

func (s *slowReader) Read(p []byte) (int, error) {
	if len(s.rest) == 0 {
		return 0, io.EOF
	}
	timer := time.NewTimer(s.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
		return 0, context.Cause(s.ctx)
	}
	n := copy(p, s.rest[:min(s.piece, len(s.rest))])
	s.rest = s.rest[n:]
	return n, nil
}

// overHTTP2 is a client whose connections are each shared by several calls. What the server refused before it processed it
// is sent again by net/http on another connection, as every client of gRPC does; nothing else is.
func overHTTP2() *http.Client {
	t := &http.Transport{DisableCompression: true, Protocols: new(http.Protocols)}
	t.Protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: t}
}

// call is a call of gRPC; the caller closes the body.
func call(ctx context.Context, c *http.Client, url string, message []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(appendMessage(nil, message)))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", grpcType)
	req.Header.Set("Te", "trailers")
	resp, err := c.Do(req)
	if err == nil && (resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), grpcType)) {
		_ = resp.Body.Close()
		err = fmt.Errorf("status %d", resp.StatusCode)
	}
	return resp, err
}

// unaryClient makes calls, one after the other with a pause.
func unaryClient(addr string, clients []*http.Client, pause time.Duration) visit {
	return func(ctx context.Context, quit <-chan struct{}, n int) (loss, bool) {
		if !sleepUntil(quit, pause) {
			return none, false
		}
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		message := fmt.Appendf(nil, "call %d", n)
		resp, err := call(ctx, clients[n%len(clients)], "http://"+addr+grpcUnary, message)
		if err != nil {
			return lossOf(err, false), true
		}
		defer resp.Body.Close()
		got, err := readMessage(resp.Body)
		if err == nil {
			_, err = readMessage(resp.Body)
		}
		switch {
		case !errors.Is(err, io.EOF):
			return lossOf(err, true), true
		case !bytes.Equal(got, message) || resp.Trailer.Get("Grpc-Status") != grpcOK:
			return loss{kind: "no answer and status"}, true
		}
		return none, true
	}
}

// sleepUntil reports false when quit is closed.
func sleepUntil(quit <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-quit:
		return false
	}
}

// streamClient holds streams of messages open. One that the server ends is lost unless it ends with a status, and all
// messages before it have come.
func streamClient(addr string, clients []*http.Client) visit {
	return func(ctx context.Context, quit <-chan struct{}, n int) (loss, bool) {
		ctx, release := untilQuit(ctx, quit)
		defer release()
		resp, err := call(ctx, clients[n%len(clients)], "http://"+addr+grpcStream, []byte("begin"))
		if err != nil {
			return lossOf(err, false), ctx.Err() == nil
		}
		defer resp.Body.Close()
		for i := 0; ; i++ {
			got, err := readMessage(resp.Body)
			switch {
			case err == nil && string(got) == fmt.Sprintf("message %d", i):
				continue
			case ctx.Err() != nil:
				return none, false
			case err == nil:
				return loss{kind: string(drill.KindWrongBody)}, true
			case !errors.Is(err, io.EOF):
				return lossOf(err, true), true
			case resp.Trailer.Get("Grpc-Status") == "":
				return loss{kind: "no status"}, true
			}
			return none, true
		}
	}
}
