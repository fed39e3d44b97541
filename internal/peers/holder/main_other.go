//go:build !linux

// Command holder runs on Linux only.
package main

func main() { panic("holder runs on Linux only") }
