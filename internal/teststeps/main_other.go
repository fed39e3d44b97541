//go:build !linux

package main

import (
	"log"
	"runtime"
)

func main() { log.Fatalf("teststeps: not supported on %s", runtime.GOOS) }
