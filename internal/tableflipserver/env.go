package main

import (
	"os"
	"strconv"
)

// generationEnv carries the number from each process to the next.
const generationEnv = "TABLEFLIPSERVER_GENERATION"

// nextGeneration is the number of this process, 1 for the first; the next one is
// told its own through the environment, which tableflip hands on.
func nextGeneration() int {
	n, err := strconv.Atoi(os.Getenv(generationEnv))
	if err != nil {
		n = 1
	}
	check(os.Setenv(generationEnv, strconv.Itoa(n+1)))
	return n
}
