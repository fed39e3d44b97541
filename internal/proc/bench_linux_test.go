package proc

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkLook looks at this process, which runs and so is never remembered, with many descriptors that are all in
// an epoll set, as those of a server with as many connections. Links alone is what a look without Deep costs.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{1000, 10_000} {
		for _, deep := range []bool{false, true} {
			b.Run(fmt.Sprintf("descriptors=%d/deep=%v", n, deep), func(b *testing.B) {
				ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
				if err != nil {
					b.Fatal(err)
				}
				open := []int{ep}
				defer func() {
					for _, fd := range open {
						unix.Close(fd)
					}
				}()
				for range n / 2 {
					pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						b.Fatal(err)
					}
					for _, fd := range pair {
						open = append(open, fd)
						ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
						if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
							b.Fatal(err)
						}
					}
				}
				l := Looker{Deep: deep}
				for b.Loop() {
					if _, err := l.Look([]int{os.Getpid()}, []uint64{1}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkMembers makes the pass over all processes of the machine.
func BenchmarkMembers(b *testing.B) {
	numbers, err := pids()
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(len(slices.Compact(numbers))), "processes")
	for b.Loop() {
		if _, err := Members(os.Getpid(), "5e1f-nobody"); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLookRemembered looks at a process that sleeps with 1,000 descriptors.
func BenchmarkLookRemembered(b *testing.B) {
	fd, inode, _ := listen(b, 0)
	k, _ := startChild(b, "accept", kidOptions{files: slices.Repeat([]int{fd}, 1000)})
	var l Looker
	look := func() *view {
		if _, err := l.Look([]int{k.pid}, []uint64{inode}); err != nil {
			b.Fatal(err)
		}
		return l.memory[k.pid].seen
	}
	k.until(b, "remembered", func() bool { before := look(); return look() == before })
	for b.Loop() {
		look()
	}
}
