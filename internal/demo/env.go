package main

import "os"

// buildEnv is the environment of a build: static, as handoverd itself.
func buildEnv() []string { return append(os.Environ(), "CGO_ENABLED=0") }
