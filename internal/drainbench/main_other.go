//go:build !linux

// Command drainbench measures what is lost when a Go program leaves. It runs on Linux only.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "drainbench: it runs on Linux only")
	os.Exit(1)
}
