package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// drillTarget is what --url says.
type drillTarget struct {
	url        *url.URL
	host, port string
	modes      []drill.Mode
	status     []int
}

var (
	httpModes  = []drill.Mode{drill.ModeFresh, drill.ModeKeepAlive, drill.ModePost, drill.ModeStream}
	laterModes = []string{"websocket", "h2c"}
)

// target reads the URL, the modes and the statuses; what it returns as an error is a mistake in the arguments.
func (o *drillFlags) target() (*drillTarget, error) {
	u, err := url.Parse(o.url)
	if err != nil {
		return nil, fmt.Errorf("--url: %w", err)
	}
	t := &drillTarget{url: u, host: u.Hostname(), port: u.Port()}
	switch {
	case u.Scheme == "https":
		return nil, fmt.Errorf("--url %s: https is not supported yet", o.url)
	case u.Scheme != "http" && u.Scheme != "tcp" && u.Scheme != "udp":
		return nil, fmt.Errorf("--url %s: want http://, tcp:// or udp://", o.url)
	case u.User != nil:
		return nil, errors.New("--url: a user is not supported")
	case t.host == "":
		return nil, fmt.Errorf("--url %s: no host", o.url)
	case t.port == "" && u.Scheme != "http":
		return nil, fmt.Errorf("--url %s: no port", o.url)
	case t.port == "":
		t.port = "80"
	}
	if t.modes, err = drillModes(o.modes, u.Scheme); err != nil {
		return nil, err
	}
	t.status, err = statuses(o.expectStatus)
	return t, err
}

// drillModes reads --mode; the default is the scheme's.
func drillModes(words []string, scheme string) ([]drill.Mode, error) {
	if len(words) == 0 {
		if scheme == "http" {
			return []drill.Mode{drill.ModeFresh, drill.ModeKeepAlive}, nil
		}
		return []drill.Mode{drill.Mode(scheme)}, nil
	}
	var modes []drill.Mode
	for _, w := range words {
		m := drill.Mode(strings.TrimSpace(w))
		http := slices.Contains(httpModes, m)
		switch {
		case slices.Contains(laterModes, string(m)):
			return nil, fmt.Errorf("--mode %s: not supported yet", m)
		case !http && m != drill.ModeTCP && m != drill.ModeUDP:
			return nil, fmt.Errorf("--mode %s: want fresh, keepalive, post, stream, tcp or udp", m)
		case http && scheme != "http", scheme != "http" && string(m) != scheme:
			return nil, fmt.Errorf("--mode %s does not go with a %s:// URL", m, scheme)
		case slices.Contains(modes, m):
			return nil, fmt.Errorf("--mode %s is given twice", m)
		}
		modes = append(modes, m)
	}
	return modes, nil
}

// statuses reads --expect-status, "200,204" or "2xx", as drill.Plain has it.
func statuses(text string) ([]int, error) {
	if text == "" {
		return nil, nil
	}
	var out []int
	for w := range strings.SplitSeq(text, ",") {
		w = strings.TrimSpace(w)
		class, isClass := strings.CutSuffix(strings.ToLower(w), "xx")
		n, err := strconv.Atoi(class)
		if err != nil || isClass && (n < 2 || n > 5) || !isClass && (n < 200 || n > 599) {
			return nil, fmt.Errorf("--expect-status %s: want a status as 204, or a class as 2xx", w)
		}
		out = append(out, n)
	}
	return out, nil
}

// loads makes one load of each mode, and asks the server first whether it keeps the contract.
func (o *drillFlags) loads(ctx context.Context, t *drillTarget) (loads []drill.Load, contract bool, err error) {
	address, err := resolve(ctx, t.host, t.port)
	if err != nil {
		return nil, false, err
	}
	if contract, err = o.keepsContract(ctx, t, address); err != nil {
		return nil, false, err
	}
	for _, m := range t.modes {
		l := drill.Load{
			Network: "tcp", Address: address, Mode: m, Rate: o.rate / float64(len(t.modes)), Clients: o.clients,
			Timeout: o.timeout, Duration: maxDrill + time.Hour, Host: t.url.Host, Remote: true,
		}
		if !contract {
			l.Plain = &drill.Plain{Path: t.url.RequestURI(), Status: t.status, Body: o.expectBody, SameBody: o.sameBody}
		}
		switch {
		case m == drill.ModeUDP:
			l.Network = "udp"
		case m == drill.ModeStream && o.clients == 0:
			// A stream occupies its client for up to two seconds.
			l.Clients = min(max(512, int(2.5*l.Rate)), 20_000)
		case (m == drill.ModeKeepAlive || m == drill.ModePost) && o.clients == 0:
			l.Clients = keptConnections
		}
		loads = append(loads, l)
	}
	return loads, contract, nil
}

// keptConnections is the default number of connections that carry request after request: few enough that each is used
// often, as a proxy's pool is. A connection that idles for seconds keeps the drain of its generation waiting as long.
const keptConnections = 64

// probeTimeout bounds the one request before the drill.
const probeTimeout = 10 * time.Second

// keepsContract also finds out that nobody is there, before half a minute of refused connections does.
func (o *drillFlags) keepsContract(ctx context.Context, t *drillTarget, address string) (bool, error) {
	if o.contract != "auto" {
		return o.contract == "on", nil
	}
	if t.url.Scheme == "udp" {
		return false, nil
	}
	expects := o.expectStatus != "" || o.expectBody != "" || o.sameBody
	path := t.url.Path
	if t.url.Scheme == "http" && !expects && (path == "" || path == "/" || path == "/fast") {
		ok, err := drill.Probe(drill.Load{
			Network: "tcp", Address: address, Host: t.url.Host, Timeout: probeTimeout, Remote: true,
		})
		if err != nil {
			return false, fmt.Errorf("%s: %w", o.url, err)
		}
		return ok, nil
	}
	d := net.Dialer{Timeout: probeTimeout}
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return false, fmt.Errorf("%s: %w", o.url, err)
	}
	_ = c.Close() // nothing was sent
	return false, nil
}

// resolve is the address of a host, an IPv4 one where it has both.
func resolve(ctx context.Context, host, port string) (string, error) {
	n, err := net.LookupPort("tcp", port)
	if err != nil {
		return "", usage(fmt.Errorf("--url: %w", err))
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return "", fmt.Errorf("--url: %w", err)
	}
	ip := ips[0]
	for _, other := range ips {
		if other.Unmap().Is4() {
			ip = other
			break
		}
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(n)).String(), nil
}
