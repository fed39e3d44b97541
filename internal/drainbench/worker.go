package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/handoverd/handover/drain"
)

const (
	// jobTakes is how long a job takes, half of it before its effect.
	jobTakes = 40 * time.Millisecond
	// hands is how many jobs a worker has in hand at a time.
	hands = 4
)

// newWorkers does the jobs of the queue at path. As a program would that leaves by http.Server.Shutdown it lets nobody know
// of the jobs, unless the Workers are part of a sequence.
func newWorkers(path string) *drain.Workers {
	q := queueClient{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
		MaxIdleConnsPerHost: hands,
	}}}
	return &drain.Workers{Claim: q.claim, Count: hands, Idle: 10 * time.Millisecond}
}

// queueClient asks a queue.
type queueClient struct{ http *http.Client }

// claim takes a job, if there is one.
func (q queueClient) claim(ctx context.Context) (*drain.Work, error) {
	text, err := q.post(ctx, "/claim")
	if err != nil || text == "" {
		return nil, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	return &drain.Work{Name: "job " + text, Run: func(ctx context.Context) error { return q.do(ctx, n) }}, nil
}

// do does one job.
func (q queueClient) do(ctx context.Context, n int) error {
	for _, step := range []string{"/effect", "/done"} {
		if !sleepUntil(ctx.Done(), jobTakes/2) {
			return context.Cause(ctx)
		}
		if _, err := q.post(ctx, fmt.Sprintf("%s?n=%d", step, n)); err != nil {
			return err
		}
	}
	return nil
}

func (q queueClient) post(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://queue"+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := q.http.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, strings.TrimSpace(string(body)))
	}
	return string(body), err
}
