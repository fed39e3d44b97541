package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/handoverd/handover/internal/drill"
)

// drillTarget is what --url says.
type drillTarget struct {
	scheme     *drillScheme
	socket     string // path of a UNIX socket, or @name of an abstract one; empty: host and port
	host, port string
	hostHeader string
	path       string // and query, of HTTP, from the slash
	tls        *tls.Config
	modes      []drill.Mode
	status     []int
}

// drillScheme is a scheme of --url. The first modes are the default.
type drillScheme struct {
	name     string
	port     string // the default; empty: it must be given
	tls      bool
	defaults int // how many of the modes are used without --mode
	modes    []drill.Mode
}

var drillSchemes = []*drillScheme{
	{"http", "80", false, 2, []drill.Mode{
		drill.ModeFresh, drill.ModeKeepAlive, drill.ModePost, drill.ModeStream, drill.ModeWebSocket, drill.ModeH2C, drill.ModeTCP,
	}},
	{"https", "443", true, 2, []drill.Mode{
		drill.ModeFresh, drill.ModeKeepAlive, drill.ModePost, drill.ModeStream, drill.ModeWebSocket, drill.ModeH2, drill.ModeTCP,
	}},
	{"ws", "80", false, 1, []drill.Mode{drill.ModeWebSocket, drill.ModeTCP}},
	{"wss", "443", true, 1, []drill.Mode{drill.ModeWebSocket, drill.ModeTCP}},
	{"tcp", "", false, 1, []drill.Mode{drill.ModeTCP}},
	{"udp", "", false, 1, []drill.Mode{drill.ModeUDP}},
	{"unix", "", false, 2, []drill.Mode{
		drill.ModeFresh, drill.ModeKeepAlive, drill.ModePost, drill.ModeStream, drill.ModeWebSocket, drill.ModeH2C, drill.ModeTCP,
	}},
}

// http says whether requests of HTTP can be sent there.
func (s *drillScheme) http() bool { return slices.Contains(s.modes, drill.ModeFresh) }

// httpUnix is the scheme of HTTP over a UNIX socket, as requests-unixsocket, docker-py and others write it: the socket's
// path is the host, with %2F for each slash.
const httpUnix = "http+unix"

// target reads the URL, the modes and the statuses; what it returns as an error is a mistake in the arguments.
func (o *drillFlags) target() (*drillTarget, error) {
	t, err := parseDrillURL(o.url)
	if err != nil {
		return nil, err
	}
	if t.modes, err = t.scheme.choose(o.modes); err != nil {
		return nil, err
	}
	if t.status, err = statuses(o.expectStatus); err != nil {
		return nil, err
	}
	if t.tls, err = o.tlsConfig(t); err != nil {
		return nil, err
	}
	return t, nil
}

func parseDrillURL(text string) (*drillTarget, error) {
	if rest, ok := strings.CutPrefix(text, httpUnix+"://"); ok {
		return parseHTTPUnix(text, rest)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("--url: %w", err)
	}
	i := slices.IndexFunc(drillSchemes, func(s *drillScheme) bool { return s.name == u.Scheme })
	if i < 0 {
		return nil, fmt.Errorf("--url %s: want http://, https://, ws://, wss://, tcp://, udp://, unix:// or http+unix://", text)
	}
	t := &drillTarget{scheme: drillSchemes[i], host: u.Hostname(), port: u.Port(), hostHeader: u.Host, path: u.RequestURI()}
	switch {
	case u.User != nil:
		return nil, errors.New("--url: a user is not supported")
	case u.Scheme == "unix":
		return t.unix(text, u)
	case t.host == "":
		return nil, fmt.Errorf("--url %s: no host", text)
	case t.port == "" && t.scheme.port == "":
		return nil, fmt.Errorf("--url %s: no port", text)
	case t.port == "":
		t.port = t.scheme.port
	}
	return t, nil
}

// unix is unix:///PATH: the whole path is the socket's, as Docker and gRPC write it, and HTTP asks for "/".
func (t *drillTarget) unix(text string, u *url.URL) (*drillTarget, error) {
	if u.Host != "" || len(u.Path) < 2 || u.RawQuery != "" {
		return nil, fmt.Errorf("--url %s: want unix:///PATH with the socket's absolute path; with a path of HTTP it is http+unix://%%2FSOCKET/PATH", text)
	}
	t.socket, t.hostHeader, t.path = u.Path, "localhost", "/"
	return t, nil
}

// parseHTTPUnix is not left to package url, which refuses %2F in a host.
func parseHTTPUnix(text, rest string) (*drillTarget, error) {
	host, _, _ := strings.Cut(rest, "/")
	socket, err := url.PathUnescape(host)
	if err == nil && (len(socket) < 2 || socket[0] != '/' && socket[0] != '@') {
		err = errors.New("want the socket's absolute path before the first slash, with %2F for each of its own, or %40NAME of an abstract socket")
	}
	if err != nil {
		return nil, fmt.Errorf("--url %s: %w", text, err)
	}
	u, err := url.Parse("http://localhost" + rest[len(host):])
	if err != nil {
		return nil, fmt.Errorf("--url %s: %w", text, err)
	}
	i := slices.IndexFunc(drillSchemes, func(s *drillScheme) bool { return s.name == "unix" })
	return &drillTarget{scheme: drillSchemes[i], socket: socket, hostHeader: "localhost", path: u.RequestURI()}, nil
}

// choose reads --mode; the default is the scheme's.
func (s *drillScheme) choose(words []string) ([]drill.Mode, error) {
	if len(words) == 0 {
		return s.modes[:s.defaults], nil
	}
	var modes []drill.Mode
	for _, w := range words {
		m := drill.Mode(strings.TrimSpace(w))
		known := slices.ContainsFunc(drillSchemes, func(s *drillScheme) bool { return slices.Contains(s.modes, m) })
		switch {
		case !known:
			return nil, fmt.Errorf("--mode %s: want fresh, keepalive, post, stream, websocket, h2c, h2, tcp or udp", m)
		case m == drill.ModeH2C && s.tls:
			return nil, fmt.Errorf("--mode h2c is HTTP/2 without TLS: with a %s:// URL it is --mode h2", s.name)
		case m == drill.ModeH2 && s.http() && !s.tls:
			return nil, fmt.Errorf("--mode h2 is HTTP/2 over TLS: with a %s:// URL it is --mode h2c", s.name)
		case !slices.Contains(s.modes, m):
			return nil, fmt.Errorf("--mode %s does not go with a %s:// URL", m, s.name)
		case slices.Contains(modes, m):
			return nil, fmt.Errorf("--mode %s is given twice", m)
		}
		modes = append(modes, m)
	}
	return modes, nil
}

// tlsConfig is nil without TLS.
func (o *drillFlags) tlsConfig(t *drillTarget) (*tls.Config, error) {
	switch {
	case !t.scheme.tls && (o.ca != "" || o.insecure):
		return nil, fmt.Errorf("--ca and --insecure go with https:// and wss://, not with %s://", t.scheme.name)
	case !t.scheme.tls:
		return nil, nil
	case o.ca != "" && o.insecure:
		return nil, errors.New("--ca and --insecure: want at most one")
	}
	c := &tls.Config{ServerName: t.host, InsecureSkipVerify: o.insecure}
	if o.ca == "" {
		return c, nil
	}
	text, err := os.ReadFile(o.ca)
	if err != nil {
		return nil, fmt.Errorf("--ca: %w", err)
	}
	c.RootCAs = x509.NewCertPool()
	if !c.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--ca %s: no certificate in PEM", o.ca)
	}
	return c, nil
}
