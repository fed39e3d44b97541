package supervisor

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Warnings are things that are allowed and that an operator should know
// of, one sentence each, in the order of the services.
func (c *Config) Warnings() []string {
	var list []string
	if c.Admin != "" && !isLoopback(c.Admin) {
		list = append(list, fmt.Sprintf("admin: %s can be reached from other hosts; health serves what balancers need", c.Admin))
	}
	first := map[string]string{}
	for _, s := range c.Services {
		warn := func(key, format string, args ...any) {
			list = append(list, "service."+s.Name+"."+key+": "+fmt.Sprintf(format, args...))
		}
		s.warnPolicy(warn)
		for _, socket := range s.Sockets {
			key, name := socketKey(s.Name, socket), s.Name+"."+socket.Name
			at := "socket." + socket.Name
			if other, shared := first[key]; shared {
				warn(at, "%s is shared with %s: their programs take connections from one queue", socket.Addr, other)
			} else {
				first[key] = name
			}
			if socket.PerGeneration && slices.Contains(s.Dialects, "nginx") {
				warn(at, "per_generation: nginx closes an inherited socket whose address its configuration does not name, and removes its path")
			}
			if socket.Options.ReusePort {
				warn(at, "reuse_port: closing a member loses the connections in its accept queue; one shared socket loses none")
			}
			if nb := socket.Options.Nonblocking; nb != nil && !*nb {
				warn(at, "nonblocking = false: an event loop hangs when another generation takes the connection first")
			}
		}
	}
	return list
}

func (s *ServiceConfig) warnPolicy(warn func(key, format string, args ...any)) {
	if s.Stop.LameDuck.Until == "timer" && s.Stop.LameDuck.For == 0 && slices.ContainsFunc(s.Sockets, reachedByNetwork) {
		warn("stop.lame_duck", "for = 0s: a stop tells no balancer before it drains; its clients are refused until it notices")
	}
	s.warnProbe(warn)
	if s.Handoff == exclusive {
		warn("handoff", "exclusive: at a reload nothing serves from the begin of the old generation's drain until the new one is ready; "+
			"clients wait in the queue, and a new one that fails costs as much again")
	}
	if s.Stop.Quiet > 0 && slices.ContainsFunc(s.Sockets, func(c SocketConfig) bool { return !reachedByNetwork(c) }) {
		warn("stop.hold", "connections of UNIX sockets are not waited for: the kernel does not tell when they were silent")
	}
	if s.Ready.When == "alive" {
		warn("ready.when", "alive is no proof: a program that runs without serving replaces one that serves")
	}
	program := s.baseCommand()
	for _, d := range s.Dialects {
		if slices.Contains(programDialects, d) {
			program = d
		}
	}
	cuts := map[string][]string{
		"haproxy": {"SIGTERM", "SIGINT"}, "nginx": {"SIGTERM", "SIGINT"},
		"httpd": {"SIGTERM"}, "apache2": {"SIGTERM"},
	}
	if slices.Contains(cuts[program], s.Retire.Signal) {
		warn("retire.signal", "%s on %s exits at once and cuts what is in flight; auto drains it", program, s.Retire.Signal)
	}
}

func reachedByNetwork(s SocketConfig) bool {
	return !strings.HasPrefix(string(s.Addr.Kind), "unix")
}

func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
