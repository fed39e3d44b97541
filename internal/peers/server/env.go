package main

import "os"

// environment is what this server is told: its generation by whoever starts it, and its socket by Server::Starter
// (Server::Starter(3pm): "host:port=fd;…").
func environment() (generation, starterPort string) {
	generation = os.Getenv("PEERS_GENERATION")
	if g := os.Getenv("SERVER_STARTER_GENERATION"); g != "" {
		generation = g
	}
	return generation, os.Getenv("SERVER_STARTER_PORT")
}
