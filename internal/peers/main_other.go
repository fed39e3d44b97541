//go:build !linux

// Command peers runs on Linux only: it needs namespaces.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "peers: it needs Linux")
	os.Exit(1)
}
