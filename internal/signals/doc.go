// Package signals takes the signals that handoverd obeys, from the first moment on in
// which a Go program can.
//
// execve(2) gives every caught signal back to its default, and Go's own default for
// SIGHUP, SIGINT and SIGTERM is to end the process; it also takes these out of the
// inherited signal mask when it begins, so that to block them helps nobody (measured, Go
// 1.26: a SIGHUP that was pending over execve ends the new image, also one that was
// blocked). What it respects is that SIGHUP and SIGINT are ignored, until somebody asks for
// them. So an image of handoverd that is about to execute another one ignores them
// (Ignore), and the next one asks for them in the init of this package, which needs os/signal
// alone and so comes before the inits of nearly everything else.
package signals
