// Package fdleak is test support: it compares the descriptors of this process
// before and after a test, and the status flags of those that stayed.
//
// A leaked descriptor of a listening socket keeps a port open for ever, and a
// status flag (O_NONBLOCK above all) belongs to the open file description that
// every generation of a program shares: changing it here changes it for all of
// them. So a test that passes descriptors around begins with
//
//	fdleak.Snapshot(t)
//
// The comparison is with a baseline and not with an absolute set: a Go program
// holds descriptors of its own from the start (the poller's epoll and eventfd,
// two cgroup files from Go 1.25 on), and its environment may leak more.
//
// The descriptor table belongs to the process, so a test that takes a snapshot
// must not run in parallel with others.
package fdleak
