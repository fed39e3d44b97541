package kube

import (
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// hook is a preStop hook. The zero value is none.
type hook struct {
	exists bool
	// what it is, in a word or two.
	what string
	// time is how long it runs, where known.
	time  time.Duration
	known bool
	// lameDuck is set where it is handoverd's own lame duck.
	lameDuck bool
}

// readHook reads lifecycle.preStop. Its length is known for a sleep action (in
// Kubernetes 1.29 alpha, on by default from 1.30, stable in 1.34; KEP-3960) and for a
// command that sleeps; else it is the figure, if there is one.
func readHook(v value, fig figure) hook {
	if !v.exists() {
		return hook{}
	}
	h := hook{exists: true, what: "preStop hook"}
	switch {
	case v.get("sleep").exists():
		h.time, h.known = v.get("sleep", "seconds").seconds(0), true
		h.what = "preStop sleep"
		return h
	case v.get("exec").exists():
		var words []string
		for _, w := range v.get("exec", "command").items() {
			words = append(words, w.text())
		}
		h.what = "preStop exec"
		h.time, h.known = sleeps(words)
		h.lameDuck = len(words) > 1 && path.Base(words[0]) == "handoverd" && words[1] == "lame-duck"
		if h.lameDuck {
			h.what = "preStop handoverd lame-duck"
		}
	case v.get("httpGet").exists():
		h.what = "preStop httpGet"
	}
	if !h.known && fig.known {
		h.time, h.known = fig.d, true
	}
	return h
}

var sleepCommand = regexp.MustCompile(`(?:^|[\s;&|(])(?:\S*/)?sleep\s+(\d+(?:\.\d+)?)([smh]?)(?:$|[\s;&|)])`)

// sleeps is the sum of all sleep commands in a command line, with or without a shell.
// False if there is none: then its length cannot be seen.
func sleeps(words []string) (time.Duration, bool) {
	var sum time.Duration
	line, found := strings.Join(words, " "), false
	for {
		m := sleepCommand.FindStringSubmatchIndex(line)
		if m == nil {
			return sum, found
		}
		n, err := strconv.ParseFloat(line[m[2]:m[3]], 64)
		unit := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[line[m[4]:m[5]]]
		if err != nil || n*unit > maxSeconds {
			return 0, false
		}
		sum += time.Duration(n * unit * float64(time.Second))
		sum = min(sum, maxSeconds*time.Second)
		found, line = true, line[m[5]:]
	}
}
