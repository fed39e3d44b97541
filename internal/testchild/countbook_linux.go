package main

import (
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// slots is how many generations a count file has room for.
	slots = 8192
	// slotSize is the bytes of one slot, at offset slotSize × generation: the
	// fields of a countbook in their order, each a uint64 of the machine's byte
	// order, and 0 to the end.
	slotSize = 8 * 8
)

// A countbook counts in a file mapped MAP_SHARED, so that the counts of a
// process that is killed are still there (mmap(2)): what it had taken and not
// answered is exactly what its death may lose.
//
// A process that dies inside accept(2) or write(2) cannot know how that call
// ended. So both are counted before and after: where the two counts agree the
// account is exact, and elsewhere their difference is what is not known.
type countbook struct {
	requests    *atomic.Uint64 // read
	answered    *atomic.Uint64 // handed to the kernel
	connections *atomic.Uint64 // accepted
	answering   *atomic.Uint64 // begun to be handed to the kernel
	entered     *atomic.Uint64 // calls of accept, also those that found nothing
	left        *atomic.Uint64 // of them, returned and counted
	doomed      *atomic.Uint64 // 1: its mode ends it while it may have something in hand
}

// openCounts maps the slot of a generation in the file at path, which is made
// when it is missing. Without a path it counts for nobody.
func openCounts(path string, generation int) (*countbook, error) {
	if path == "" {
		return bookAt(func(int) *atomic.Uint64 { return new(atomic.Uint64) }), nil
	}
	if generation < 0 || generation >= slots {
		return nil, fmt.Errorf("counts: no slot for generation %d", generation)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o666)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	// Every process sets the same size, so the order of two does not matter.
	if err := unix.Ftruncate(fd, slots*slotSize); err != nil {
		return nil, &os.PathError{Op: "truncate", Path: path, Err: err}
	}
	mem, err := unix.Mmap(fd, 0, slots*slotSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return bookAt(func(n int) *atomic.Uint64 {
		return (*atomic.Uint64)(unsafe.Pointer(&mem[generation*slotSize+n*8]))
	}), nil
}

func bookAt(at func(n int) *atomic.Uint64) *countbook {
	return &countbook{at(0), at(1), at(2), at(3), at(4), at(5), at(6)}
}

// handler counts a request when it has been read, and as answered when its
// response has been handed to the kernel.
func (c *countbook) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.requests.Add(1)
		next.ServeHTTP(w, r)
		// Without the flush the response could still be in a buffer of this
		// process, and its death would lose one that counts as answered.
		c.answering.Add(1)
		if err := http.NewResponseController(w).Flush(); err == nil {
			c.answered.Add(1)
		}
	})
}
