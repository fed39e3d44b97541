// Package until has contexts whose deadline can come nearer while they are in use.
//
// A context of the standard library keeps the deadline that it was made with. That
// of a drain may be shortened (a stop at short notice), and who has planned by it
// is to plan anew. A context derived from such a one, by package context, finds it
// by Value.
package until
