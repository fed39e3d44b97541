package kube

import (
	"fmt"
	"strings"
)

// Place is where something stands. Every part may be missing.
type Place struct {
	File string `json:"file"`
	// Document counts the YAML documents of the file from 1.
	Document int `json:"document,omitempty"`
	// Line counts the lines of the file from 1. It is the line of the key,
	// or of the nearest one above it where the key is missing.
	Line int `json:"line,omitempty"`
	// Object is "Deployment shop/web": kind, namespace, name.
	Object string `json:"object,omitempty"`
	// Key is the path from the document's root: "spec.replicas". In it a
	// container is named, not counted: "containers[web]".
	Key string `json:"key,omitempty"`
}

// String is the place as a person looks for it: "web.yaml:12: Deployment
// shop/web (document 2), spec.replicas".
func (p Place) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	b.WriteString(": ")
	switch {
	case p.Object == "" && p.Document > 0:
		fmt.Fprintf(&b, "document %d", p.Document)
	case p.Document > 0:
		fmt.Fprintf(&b, "%s (document %d)", p.Object, p.Document)
	default:
		b.WriteString(p.Object)
	}
	if p.Key != "" {
		b.WriteString(", ")
		b.WriteString(p.Key)
	}
	return b.String()
}

// Problem is something that could not be read: broken YAML, or a value that
// Kubernetes would refuse. What it belongs to has not been checked.
type Problem struct {
	Place
	Problem string `json:"problem"`
}

// Error implements error.
func (p Problem) Error() string { return p.String() + ": " + p.Problem }

// Severity says whether a finding fails the check.
type Severity string

const (
	// Fault is something that loses requests, or time, as it stands.
	Fault Severity = "fault"
	// Note is something to know, which may be intended.
	Note Severity = "note"
)

// Finding is what one rule has to say about one place.
type Finding struct {
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Place
	// Reason is what happens as it stands, Remedy what to change.
	Reason string `json:"reason"`
	Remedy string `json:"remedy"`
}
