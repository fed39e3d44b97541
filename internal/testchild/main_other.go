//go:build !linux

package main

import (
	"log"
	"runtime"
)

func main() { log.Fatalf("testchild: not supported on %s", runtime.GOOS) }
