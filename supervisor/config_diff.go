package supervisor

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/handoverd/handover/fdpass"
)

// ConfigDiff is what a reload changes in the sockets and in what cannot be
// changed. Keys are as in SocketDiff.Key; a socket that several services
// name is in it once.
type ConfigDiff struct {
	// Added are bound before anything is spawned; Removed leave the hand-out
	// at once and are closed at the commit; Kept are neither.
	Added, Removed, Kept []SocketDiff
	// Refused is nil, or joins a *ConfigError for each change that refuses
	// the whole reload.
	Refused error
}

// SocketDiff is one socket of either configuration.
type SocketDiff struct {
	// Key is equal for identical binds.
	Key string
	// Service and Socket are the first that names it: of the new
	// configuration, or of the old one when it is removed.
	Service string
	Socket  SocketConfig
	// Apply says that backlog, mode, owner or group of a kept socket differ
	// and are to be set, to Socket.Options, at the commit.
	Apply bool
}

// optionText is the effective value of an option by its key.
func optionText(o fdpass.Options, option string) string {
	const byDefault = "the default"
	switch option {
	case "backlog":
		return strconv.Itoa(cmp.Or(o.Backlog, fdpass.DefaultBacklog))
	case "mode":
		if o.Mode == nil {
			return fmt.Sprintf("%04o", fdpass.DefaultMode)
		}
		return fmt.Sprintf("%04o", *o.Mode)
	case "owner":
		return cmp.Or(o.Owner, byDefault)
	case "group":
		return cmp.Or(o.Group, byDefault)
	case "reuse_port":
		return strconv.FormatBool(o.ReusePort)
	case "nonblocking":
		return strconv.FormatBool(o.Nonblocking == nil || *o.Nonblocking)
	case "v6only":
		if o.V6Only != nil {
			return strconv.FormatBool(*o.V6Only)
		}
	}
	return byDefault
}

// Diff compares two configurations for a reload. It does not look at
// anything but them; neither is changed.
func Diff(old, next *Config) ConfigDiff {
	var d ConfigDiff
	var refused []*ConfigError
	refuse := func(line int, key, format string, args ...any) {
		refused = append(refused, &ConfigError{File: next.File, Line: line, Key: key, Err: fmt.Errorf(format, args...)})
	}
	for _, k := range []struct{ key, before, now string }{
		{"runtime_dir", old.RuntimeDir, next.RuntimeDir},
		{"admin", old.Admin, next.Admin},
		{"health", old.Health, next.Health},
		{"broker", old.Broker, next.Broker},
	} {
		if k.before != k.now {
			refuse(0, k.key, "cannot change at a reload (%q to %q): stop handoverd and start it again", k.before, k.now)
		}
	}
	before, after := socketsByKey(old), socketsByKey(next)
	for _, s := range after.list {
		was, kept := before.byKey[s.Key]
		if !kept {
			d.Added = append(d.Added, s)
			continue
		}
		inPlace, replaced := was.Socket.Options.Diff(s.Socket.Options)
		s.Apply = len(inPlace) > 0
		for _, option := range replaced {
			refuse(s.Socket.Line, "service."+s.Service+".socket."+s.Socket.Name,
				"%s from %s to %s needs a new socket: remove it in one reload, add it in the next",
				option, optionText(was.Socket.Options, option), optionText(s.Socket.Options, option))
		}
		d.Kept = append(d.Kept, s)
	}
	for _, s := range before.list {
		if _, kept := after.byKey[s.Key]; !kept {
			d.Removed = append(d.Removed, s)
		}
	}
	d.Refused = joinConfigErrors(refused)
	return d
}

type socketIndex struct {
	list  []SocketDiff
	byKey map[string]SocketDiff
}

func socketsByKey(c *Config) socketIndex {
	x := socketIndex{byKey: map[string]SocketDiff{}}
	for _, service := range c.Services {
		for _, s := range service.Sockets {
			if s.PerGeneration { // bound anew anyway
				continue
			}
			key := socketKey(service.Name, s)
			if _, ok := x.byKey[key]; ok {
				continue
			}
			e := SocketDiff{Key: key, Service: service.Name, Socket: s}
			x.byKey[key] = e
			x.list = append(x.list, e)
		}
	}
	return x
}
