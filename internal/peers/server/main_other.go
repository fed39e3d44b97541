//go:build !linux

// Command server runs on Linux only.
package main

func main() {
	_, _ = environment()
	panic("server runs on Linux only")
}
