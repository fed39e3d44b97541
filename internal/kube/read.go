package kube

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxFile is the longest text that Read takes, in bytes. A cluster's whole state is
// shorter; what is longer is most likely not a manifest.
const MaxFile = 32 << 20

// maxObjects bounds what one file may hold, lists of lists included, and whatever else
// stands in a list: aliases multiply.
const maxObjects = 100_000

// Object is one Kubernetes object. Its fields are "" where the document has none.
type Object struct {
	File      string
	Document  int
	Kind      string
	Namespace string
	Name      string

	root     value
	problems []Problem
	lookUps  *lookUps // of the whole document
}

// String is kind, namespace and name: "Deployment shop/web", "Namespace shop".
func (o *Object) String() string {
	kind := o.Kind
	if kind == "" {
		kind = "object"
	}
	switch {
	case o.Name == "":
		return kind
	case o.Namespace == "" || o.Kind == "Namespace":
		return kind + " " + o.Name
	}
	return kind + " " + o.Namespace + "/" + o.Name
}

func (o *Object) place() Place {
	return Place{File: o.File, Document: o.Document, Line: o.root.line, Object: o.String()}
}

// Read reads all documents of a text. A List is taken apart; an object of any kind is
// returned, known or not; a document that has nothing of an object is passed over. An object without a namespace gets the one given. A broken document
// ends the reading, with a Problem that has its line: where the next one begins cannot
// be told any more. What came before it is returned.
func Read(file string, text []byte, namespace string) ([]*Object, []Problem) {
	if len(text) > MaxFile {
		return nil, []Problem{{Place{File: file}, "longer than " + strconv.Itoa(MaxFile>>20) + " MiB"}}
	}
	r := reader{file: file, namespace: namespace, template: isTemplate(text)}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	for document := 1; ; document++ {
		var node yaml.Node
		err := decoder.Decode(&node)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.problems = append(r.problems, broken(file, document, err, text))
			break
		}
		r.lookUps = &lookUps{found: map[lookUpKey]entry{}}
		if len(node.Content) == 1 && node.Content[0].Tag != "!!null" {
			r.object(document, node.Content[0], "", 8)
		}
	}
	return r.objects, r.problems
}

type reader struct {
	file, namespace string
	template        bool // the text has what a chart's templates have
	seen            int  // nodes, objects or not
	lookUps         *lookUps
	objects         []*Object
	problems        []Problem
}

// object adds a node, or the items of a list, which may be lists themselves down to depth.
func (r *reader) object(document int, node *yaml.Node, path string, depth int) {
	o := &Object{File: r.file, Document: document, lookUps: r.lookUps}
	o.root = value{follow(node), path, node.Line, o}
	meta := o.root.get("metadata")
	o.Kind = o.root.get("kind").text()
	if o.Kind == "" {
		if meta.node != nil || o.root.get("apiVersion").node != nil {
			r.problems = append(r.problems, Problem{o.root.get("kind").place(), "no kind: what it is cannot be told"})
		}
		return // a chart's values, a list of something: folders have more than manifests
	}
	if items := o.root.get("items"); strings.HasSuffix(o.Kind, "List") && items.node != nil && items.node.Kind == yaml.SequenceNode {
		for i, item := range items.node.Content {
			if depth == 0 || r.seen >= maxObjects {
				if len(r.problems) < maxObjects {
					r.problems = append(r.problems, Problem{items.place(), "too many objects, or lists in lists"})
				}
				return
			}
			r.seen++
			r.object(document, item, items.path+"["+strconv.Itoa(i)+"]", depth-1)
		}
		return
	}
	name := meta.get("name")
	if o.Name = name.text(); o.Name == "" && name.exists() {
		said := "must be text, not " + name.shown()
		if r.template {
			said += unrendered
		}
		name.bad("%s", said)
	}
	o.Namespace = meta.get("namespace").text()
	if o.Namespace == "" {
		o.Namespace = r.namespace
	}
	r.objects = append(r.objects, o)
}

var (
	lineOfError  = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)
	parserError  = regexp.MustCompile(`^did not find expected (?:<|',' or|'-'|key|node content)`)
	anchorError  = regexp.MustCompile(`^unknown anchor '([^']*)'`)
	withoutPlace = regexp.MustCompile(`UTF-8|control characters|invalid Unicode|byte order`)
)

// broken turns the library's error, "yaml: line 3: did not …", into a place and a text. The library
// counts the lines of its parser's errors from 0, those of its scanner's from 1, and leaves out the first line.
func broken(file string, document int, err error, text []byte) Problem {
	p := Problem{Place: Place{File: file, Document: document}, Problem: err.Error()}
	if m := lineOfError.FindStringSubmatch(p.Problem); m != nil {
		line, _ := strconv.Atoi(m[1]) // no number is the first line
		said := p.Problem[len(m[0]):]
		switch anchor := anchorError.FindStringSubmatch(said); {
		case anchor != nil:
			line = 0
			if at := bytes.Index(text, []byte("*"+anchor[1])); at >= 0 {
				line = 1 + bytes.Count(text[:at], []byte("\n"))
			}
		case parserError.MatchString(said):
			line++
		case line == 0 && !withoutPlace.MatchString(said):
			line = 1
		}
		p.Line, p.Problem = line, "broken YAML: "+said
	}
	if isTemplate(text) {
		p.Problem += unrendered
	}
	return p
}

// unrendered is said of a text that cannot be read as it stands.
const unrendered = "; a template has to be rendered first: helm template … | handoverd check --kubernetes -"

// isTemplate reports whether a text looks like a chart's. An action at the place of a value is YAML all the
// same: a mapping with a mapping for its key.
func isTemplate(text []byte) bool { return bytes.Contains(text, []byte("{{")) }

// groups are the API groups of the kinds that are looked at, the oldest ones too.
var groups = map[string][]string{
	"Deployment": {"apps", "extensions"}, "DaemonSet": {"apps", "extensions"}, "StatefulSet": {"apps"},
	"Service": {""}, "Namespace": {""}, "Ingress": {"networking.k8s.io", "extensions"},
}

// is reports whether an object is of a kind that is looked at. Others have taken the same names: the Service of Knative,
// the Ingress of several controllers. An object that does not say its version is taken for Kubernetes' own.
func (o *Object) is(kind string) bool {
	if o.Kind != kind {
		return false
	}
	version := o.root.get("apiVersion").text()
	group, _, found := strings.Cut(version, "/")
	if !found {
		group = ""
	}
	return version == "" || slices.Contains(groups[kind], group)
}
