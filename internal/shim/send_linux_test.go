package shim

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/internal/fdleak"
)

// manyFiles is a thousand sockets and the control socket: with the memfd before
// them they take four packets.
const manyFiles = 1001

// controlPair is what Start makes; the child here is this process.
func controlPair(t testing.TB) (ours int, c *child) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(pair[0]), unix.Close(pair[1]) })
	return pair[0], &child{control: pair[1]}
}

func TestManyDescriptorsTakeFourPackets(t *testing.T) {
	fdleak.Snapshot(t)
	fds, links := sockets(t, manyFiles)
	memfd, err := sealed(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(memfd) }()
	ours, c := controlPair(t)
	if err := sendAll(ours, memfd, fds); err != nil {
		t.Fatal(err)
	}
	var sizes []int
	var got []string
	for range 4 {
		files, failure := c.receiveFiles()
		if failure != nil {
			t.Fatal(failure)
		}
		sizes = append(sizes, len(files))
		for _, fd := range files {
			link, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
			if err != nil {
				t.Error(err)
			}
			got = append(got, link)
			_ = unix.Close(fd)
		}
	}
	if want := []int{253, 253, 253, 243}; !slices.Equal(sizes, want) {
		t.Errorf("packets of %v descriptors, want %v", sizes, want)
	}
	if !strings.HasPrefix(got[0], "/memfd:handoverd-spec") || !slices.Equal(got[1:], links) {
		t.Errorf("other descriptors, or another order, than were sent")
	}
	if n, _, err := unix.Recvfrom(c.control, make([]byte, 16), unix.MSG_DONTWAIT); err != unix.EAGAIN {
		t.Errorf("a fifth packet: %d bytes, %v", n, err)
	}
}

// TestSendingCostsLittleMore compares, in turns, the sending and receiving of a
// thousand descriptors with the bare system calls. The bound is loose, since the
// machine may be busy; HANDOVERD_LOAD=full asks for what was promised.
func TestSendingCostsLittleMore(t *testing.T) {
	fdleak.Snapshot(t)
	if testing.Short() {
		t.Skip("it compares times; it runs without -short")
	}
	most := 2.0
	if os.Getenv("HANDOVERD_LOAD") == "full" {
		most = 1.2
	}
	bare, passed := passMany(t, 101)
	t.Logf("%d descriptors, medians: bare system calls %.0f µs, sendAll and receiveFiles %.0f µs, ratio %.3f",
		manyFiles+1, bare, passed, passed/bare)
	if passed > most*bare {
		t.Errorf("%.0f µs are more than %.1f times %.0f µs", passed, most, bare)
	}
}

// BenchmarkManyDescriptors reports the same medians, of the last 101 pairs.
func BenchmarkManyDescriptors(b *testing.B) {
	var bare, passed float64
	for b.Loop() {
		bare, passed = passMany(b, 101)
	}
	b.ReportMetric(bare, "bare-µs")
	b.ReportMetric(passed, "passed-µs")
	b.ReportMetric(passed/bare, "ratio")
}

// passMany sends and receives all descriptors in each of the two ways, in
// turns, and returns the medians in microseconds. Closing them is not counted.
func passMany(t testing.TB, rounds int) (bare, passed float64) {
	t.Helper()
	memfd, err := sealed(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(memfd) }()
	ours, c := controlPair(t)
	fds := make([]int, manyFiles)
	for i := range fds {
		if fds[i], err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fds[i]) })
	}
	var packets [][]byte
	for batch := range slices.Chunk(append([]int{memfd}, fds...), maxFiles) {
		packets = append(packets, unix.UnixRights(batch...))
	}
	var a, b []float64
	for range rounds {
		a = append(a, timed(t, func(got []int) ([]int, error) { return passBare(ours, c.control, packets, got) }))
		b = append(b, timed(t, func(got []int) ([]int, error) {
			if err := sendAll(ours, memfd, fds); err != nil {
				return got, err
			}
			for range packets {
				files, failure := c.receiveFiles()
				if failure != nil {
					return got, failure
				}
				got = append(got, files...)
			}
			return got, nil
		}))
	}
	return median(a), median(b)
}

// timed calls pass, closes what it received and returns its time in microseconds.
func timed(t testing.TB, pass func([]int) ([]int, error)) float64 {
	t.Helper()
	got := make([]int, 0, 2*manyFiles)
	begin := time.Now()
	got, err := pass(got)
	took := time.Since(begin)
	for _, fd := range got {
		_ = unix.Close(fd)
	}
	if err != nil || len(got) != manyFiles+1 {
		t.Fatalf("%d descriptors, %v", len(got), err)
	}
	return float64(took.Nanoseconds()) / 1000
}

// passBare is the system calls alone, with buffers made before.
func passBare(from, to int, packets [][]byte, got []int) ([]int, error) {
	for _, rights := range packets {
		if err := unix.Sendmsg(from, []byte{packetFiles}, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err != nil {
			return got, err
		}
	}
	b, oob := make([]byte, 16), make([]byte, unix.CmsgSpace(maxFiles*4))
	for range packets {
		if _, _, _, _, err := unix.Recvmsg(to, b, oob, unix.MSG_CMSG_CLOEXEC); err != nil {
			return got, err
		}
		// The header says how long it is; the control buffer's own length is padded to whole words (cmsg(3)).
		end := int((*unix.Cmsghdr)(unsafe.Pointer(&oob[0])).Len)
		for at := unix.CmsgLen(0); at < end; at += 4 {
			got = append(got, int(*(*int32)(unsafe.Pointer(&oob[at]))))
		}
	}
	return got, nil
}
