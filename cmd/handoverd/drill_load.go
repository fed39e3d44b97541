package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

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
	base := drill.Load{
		Network: "unix", Address: t.socket, Host: t.hostHeader, TLS: t.tls, Remote: true,
		Rate: o.rate / float64(len(t.modes)), Clients: o.clients, Timeout: o.timeout, Duration: maxDrill + time.Hour,
		Requests: math.MaxInt, // the time is the bound: a load that ended before would leave the later reloads without one
	}
	if t.socket == "" {
		base.Network = "tcp"
		if base.Address, err = resolve(ctx, t.host, t.port); err != nil {
			return nil, false, err
		}
	}
	if contract, err = o.keepsContract(ctx, t, base); err != nil {
		return nil, false, err
	}
	for _, m := range t.modes {
		l := base
		l.Mode = m
		if !contract || m == drill.ModeWebSocket && !t.contractPath() {
			l.Plain = &drill.Plain{Path: t.path, Status: t.status, Body: o.expectBody, SameBody: o.sameBody}
		}
		if m == drill.ModeUDP {
			l.Network = "udp"
		}
		if o.clients == 0 {
			l.Clients = defaultClients(m, l.Rate)
		}
		loads = append(loads, l)
	}
	return loads, contract, nil
}

// keptConnections is the default number of connections that carry request after request: few enough that each is used
// often, as a proxy's pool is. A connection that idles for seconds keeps the drain of its generation waiting as long.
const keptConnections = 64

// h2Clients is the default number of streams at a time over HTTP/2, on a sixteenth of so many connections.
const h2Clients = 256

// defaultClients is the number of clients of a mode without --clients; 0 leaves it to package drill.
func defaultClients(m drill.Mode, rate float64) int {
	switch m {
	case drill.ModeStream:
		// A stream occupies its client for up to two seconds.
		return min(max(512, int(2.5*rate)), 20_000)
	case drill.ModeKeepAlive, drill.ModePost, drill.ModeWebSocket:
		return keptConnections
	case drill.ModeH2C, drill.ModeH2:
		return h2Clients
	}
	return 0
}

// probeTimeout bounds the one request before the drill.
const probeTimeout = 10 * time.Second

// contractPath says whether the URL leaves the page to the contract.
func (t *drillTarget) contractPath() bool { return t.path == "" || t.path == "/" || t.path == "/fast" }

// keepsContract also finds out that nobody is there, before half a minute of refused connections does.
func (o *drillFlags) keepsContract(ctx context.Context, t *drillTarget, l drill.Load) (bool, error) {
	if o.contract != "auto" {
		return o.contract == "on", nil
	}
	if t.scheme.name == "udp" {
		return false, nil
	}
	expects := o.expectStatus != "" || o.expectBody != "" || o.sameBody
	if mode, ask := t.probeMode(); ask && !expects && t.contractPath() {
		l.Mode, l.Timeout, l.Rate, l.Clients = mode, probeTimeout, 0, 0
		ok, err := drill.Probe(l)
		if err != nil {
			return false, fmt.Errorf("%s: %w", o.url, err)
		}
		return ok, nil
	}
	d := net.Dialer{Timeout: probeTimeout}
	c, err := d.DialContext(ctx, l.Network, l.Address)
	if err != nil {
		return false, fmt.Errorf("%s: %w", o.url, err)
	}
	_ = c.Close() // nothing was sent
	return false, nil
}

// probeMode is how the contract is asked about: over HTTP/2 where no other mode is wanted, since the server may speak nothing
// else; not at all where nothing is to be asked by HTTP.
func (t *drillTarget) probeMode() (mode drill.Mode, ask bool) {
	for _, m := range t.modes {
		switch m {
		case drill.ModeTCP, drill.ModeUDP:
		case drill.ModeH2C, drill.ModeH2:
			mode, ask = m, true
		default:
			return drill.ModeFresh, t.scheme.http()
		}
	}
	return mode, ask
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
