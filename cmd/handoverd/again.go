package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/handoverd/handover/supervisor"
)

// An upgrade of handoverd ends the connections of those who wait for an outcome. They ask
// the image that runs then, which is the same process and knows what they wait for.

// againAfter is the pause before it is asked again. The control socket stays open over an
// upgrade: who connects waits in its queue. At the end of handoverd it is closed soon.
const againAfter = 20 * time.Millisecond

// process is the number of the process that has answered, "" if it does not tell.
func process(res *http.Response) string { return res.Header.Get(supervisor.ProcessHeader) }

// again asks once more for what was asked of that process, until it answers. Where it is no more, or another one is
// there, the answer is nil. The body of the answer is the caller's to close.
func (c *client) again(ctx context.Context, from, path string, query url.Values) (*http.Response, error) {
	for from != "" {
		select {
		case <-time.After(againAfter):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		res, err := c.do(ctx, http.MethodGet, path, query)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil && process(res) == from:
			return res, nil
		case err == nil:
			_ = res.Body.Close()
			return nil, nil
		case gone(err):
			return nil, nil
		case !broken(err):
			return nil, err
		}
	}
	return nil, nil
}

// broken reports whether a connection ended in the middle of an answer, or before it.
func broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// reload asks for a reload, an abort or a rollback, and returns how it ended; nil: handoverd
// has ended before it. each is called with what happens meanwhile.
func (c *client) reload(ctx context.Context, path string, query url.Values, each func(*supervisor.Event)) (*supervisor.ReloadReport, error) {
	res, err := c.do(ctx, http.MethodPost, path, query)
	var report *supervisor.ReloadReport
	var aborted []supervisor.ServiceResult
	job := 0
	for err == nil && res != nil {
		err = c.lines(ctx, res, func(l streamLine) (bool, error) {
			switch {
			case l.Report != nil:
				report = l.Report
			case l.Kind == "taken":
				job, aborted = l.Job, append(aborted, l.Aborted...)
			default:
				each(&l.Event)
			}
			return report == nil, nil
		})
		if err != nil || report != nil || job == 0 {
			break
		}
		res, err = c.again(ctx, process(res), "/v1/reload", url.Values{"job": {strconv.Itoa(job)}})
	}
	if report != nil && len(report.Aborted) == 0 {
		report.Aborted = aborted
	}
	return report, err
}
