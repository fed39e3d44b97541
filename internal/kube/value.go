package kube

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// An anchor may contain itself, so what one look-up follows is bounded: aliases of aliases, merges in
// merges, and mappings merged at one place. Merges multiply, so their bounds are small.
const (
	maxAliases    = 64
	maxMergeDepth = 4
	maxMerges     = 8
)

// maxSeconds bounds a number of seconds, three years, so that sums and products of
// durations do not overflow.
const maxSeconds = 100_000_000

// value is one place of a document and what stands there. Its node is nil where the
// document says nothing; it has a path and a line all the same, so that what is
// missing can be pointed at.
type value struct {
	node *yaml.Node
	path string
	line int
	in   *Object
}

// exists reports whether the document says something here. An explicit null says
// nothing, as for Kubernetes.
func (v value) exists() bool { return v.node != nil && v.node.Tag != "!!null" }

// place is where the value stands.
func (v value) place() Place {
	p := v.in.place()
	p.Line, p.Key = v.line, v.path
	return p
}

// bad records that what stands here cannot be what is wanted.
func (v value) bad(format string, args ...any) {
	v.in.problems = append(v.in.problems, Problem{v.place(), fmt.Sprintf(format, args...)})
}

// get is the value below v under the keys, one within the other.
func (v value) get(keys ...string) value {
	for _, key := range keys {
		v = v.child(key)
	}
	return v
}

func (v value) child(key string) value {
	out := value{path: joinPath(v.path, key), line: v.line, in: v.in}
	if e := v.in.lookUps.find(v.node, key, maxMergeDepth); e.value != nil {
		out.node, out.line = follow(e.value), e.name.Line
	}
	return out
}

// joinPath adds a key to a path; one that has dots itself is quoted, as in jq.
func joinPath(path, key string) string {
	if strings.ContainsAny(key, "./[]") {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// A mapping with more nodes than this, and one that is merged, is looked through once
// for each key: aliases may name it as often as they like.
const largeMapping = 256

// entry is a key of a mapping and its value; both are nil where there is none.
type entry struct{ name, value *yaml.Node }

// lookUps is what is kept of one document while it is looked through: what large and merged mappings have,
// and how many elements of lists were looked at.
type lookUps struct {
	found map[lookUpKey]entry
	items int
}

// maxItems bounds the elements of lists that are looked at in one document, some of them several times: far above what a
// cluster has, and a matter of seconds.
const maxItems = 2_000_000

type lookUpKey struct {
	node  *yaml.Node
	key   string
	steps int
}

// find finds a key of a mapping and its value. The last of several wins, and the
// mapping's own keys before those it merges ("<<", YAML 1.1), of which the first wins.
func (l *lookUps) find(node *yaml.Node, key string, steps int) entry {
	node = follow(node)
	if node == nil || node.Kind != yaml.MappingNode || steps == 0 {
		return entry{}
	}
	if steps == maxMergeDepth && len(node.Content) <= largeMapping {
		return l.scan(node, key, steps)
	}
	at := lookUpKey{node, key, steps}
	e, known := l.found[at]
	if !known {
		e = l.scan(node, key, steps)
		l.found[at] = e
	}
	return e
}

// scan is find without the memory.
func (l *lookUps) scan(node *yaml.Node, key string, steps int) entry {
	for i := len(node.Content) - 2; i >= 0; i -= 2 {
		if n := node.Content[i]; n.Kind == yaml.ScalarNode && n.Value == key && n.Tag != "!!merge" {
			return entry{n, node.Content[i+1]}
		}
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Tag != "!!merge" {
			continue
		}
		for _, s := range merged(node.Content[i+1]) {
			if e := l.find(s, key, steps-1); e.value != nil {
				return e
			}
		}
	}
	return entry{}
}

// follow is the node that an alias stands for; nil for one that leads nowhere.
func follow(node *yaml.Node) *yaml.Node {
	for range maxAliases {
		if node == nil || node.Kind != yaml.AliasNode {
			return node
		}
		node = node.Alias
	}
	return nil
}

// items are the elements of a list, named in the path by their "name" where they have one.
func (v value) items() []value {
	if v.node == nil || v.node.Kind != yaml.SequenceNode {
		if v.exists() {
			v.bad("must be a list")
		}
		return nil
	}
	if v.in.lookUps.items += len(v.node.Content); v.in.lookUps.items > maxItems {
		v.bad("too many elements of lists in one document")
		return nil
	}
	list := make([]value, 0, len(v.node.Content))
	for i, node := range v.node.Content {
		node = follow(node)
		if node == nil {
			continue
		}
		name := strconv.Itoa(i)
		if n := v.in.lookUps.find(node, "name", maxMergeDepth).value; n != nil && n.Kind == yaml.ScalarNode && n.Value != "" {
			name = n.Value
		}
		list = append(list, value{node, v.path + "[" + name + "]", node.Line, v.in})
	}
	return list
}

// pairs are the entries of a mapping of strings, which labels and annotations are.
func (v value) pairs() map[string]value {
	out := map[string]value{}
	if v.node == nil || v.node.Kind != yaml.MappingNode {
		if v.exists() {
			v.bad("must be a mapping")
		}
		return out
	}
	found := map[string]entry{}
	collect(v.node, maxMergeDepth, found, map[*yaml.Node]bool{})
	for key, e := range found {
		out[key] = value{follow(e.value), joinPath(v.path, key), e.name.Line, v.in}
	}
	return out
}

// collect adds the keys of a mapping and of what it merges that are not there yet, by the same
// order of precedence as lookUps.find. A mapping that is merged twice adds nothing the second time.
func collect(node *yaml.Node, steps int, found map[string]entry, seen map[*yaml.Node]bool) {
	node = follow(node)
	if node == nil || node.Kind != yaml.MappingNode || steps == 0 || seen[node] {
		return
	}
	seen[node] = true
	for i := len(node.Content) - 2; i >= 0; i -= 2 {
		name := node.Content[i]
		if _, have := found[name.Value]; name.Kind == yaml.ScalarNode && name.Tag != "!!merge" && !have {
			found[name.Value] = entry{name, node.Content[i+1]}
		}
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Tag != "!!merge" {
			continue
		}
		for _, s := range merged(node.Content[i+1]) {
			collect(s, steps-1, found, seen)
		}
	}
}

// merged are the mappings that a merge key names: one, or a list of them.
func merged(node *yaml.Node) []*yaml.Node {
	node = follow(node)
	if node == nil || node.Kind != yaml.SequenceNode {
		return []*yaml.Node{node}
	}
	return node.Content[:min(len(node.Content), maxMerges)]
}

// text is a scalar as it was written, "" where there is none.
func (v value) text() string {
	if v.node == nil || v.node.Kind != yaml.ScalarNode || !v.exists() {
		return ""
	}
	return v.node.Value
}

// whole is a number from 0 to limit, or def where nothing is said.
func (v value) whole(def, limit int) int {
	if !v.exists() {
		return def
	}
	n, err := strconv.ParseInt(v.text(), 10, 64)
	if err != nil || v.node.Tag != "!!int" || n < 0 || n > int64(limit) {
		v.bad("must be a whole number from 0 to %d, not %s", limit, v.shown())
		return def
	}
	return int(n)
}

// seconds is a number of seconds, or def where nothing is said.
func (v value) seconds(def int) time.Duration {
	return time.Duration(v.whole(def, maxSeconds)) * time.Second
}

// share is a number or a percentage of total, as maxSurge is.
func (v value) share(def string, total int, roundUp bool) int {
	text := v.text()
	if !v.exists() {
		text = def
	}
	percent, isPercent := strings.CutSuffix(text, "%")
	n, err := strconv.ParseInt(percent, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt32 {
		v.bad("must be a whole number or a percentage, not %s", v.shown())
		return 0
	}
	if !isPercent {
		return int(n)
	}
	part := n * int64(total)
	if roundUp {
		part += 99
	}
	return int(part / 100)
}

// shown is the value as an error shows it.
func (v value) shown() string {
	if v.node == nil || v.node.Kind != yaml.ScalarNode {
		return "a list or a mapping"
	}
	if len(v.node.Value) > 40 {
		return strconv.Quote(v.node.Value[:40]) + "…"
	}
	return strconv.Quote(v.node.Value)
}
