package fdpass_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/handoverd/handover/fdpass"
)

// BenchmarkPass moves descriptors of a listener over a SEQPACKET pair and closes
// them, in three ways: the bare system calls with buffers made
// beforehand, SendFDs and RecvFDs, and Send and Recv. It
// reports descriptors a second.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{1, 16, 64, fdpass.MaxFiles} {
		s := bind(b, "tcp://127.0.0.1:0")
		fds := make([]int, n)
		for i := range fds {
			fds[i] = s.FD()
		}
		msg, buf := []byte("sockets"), make([]byte, 64)
		run := func(name string, pass func(b *testing.B)) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				pass(b)
				b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds(), "fds/s")
			})
		}
		run("bare", func(b *testing.B) {
			from, to := pair(b, unix.SOCK_SEQPACKET)
			rights, oob := unix.UnixRights(fds...), make([]byte, unix.CmsgSpace(4*n))
			for b.Loop() {
				if err := unix.Sendmsg(from, msg, rights, nil, unix.MSG_NOSIGNAL); err != nil {
					b.Fatal(err)
				}
				_, oobn, _, _, err := unix.Recvmsg(to, buf, oob, unix.MSG_CMSG_CLOEXEC)
				if err != nil {
					b.Fatal(err)
				}
				closeRights(b, oob[:oobn])
			}
		})
		run("SendFDs", func(b *testing.B) {
			from, to := pair(b, unix.SOCK_SEQPACKET)
			for b.Loop() {
				if err := fdpass.SendFDs(from, msg, fds); err != nil {
					b.Fatal(err)
				}
				_, got, err := fdpass.RecvFDs(to, buf, n)
				if err != nil || len(got) != n {
					b.Fatal(len(got), err)
				}
				for _, fd := range got {
					_ = unix.Close(fd)
				}
			}
		})
		run("Send", func(b *testing.B) {
			from, to := conns(b, unix.SOCK_SEQPACKET)
			var fs []*os.File
			for range n {
				fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
				if err != nil {
					b.Fatal(err)
				}
				f := os.NewFile(uintptr(fd), "listener")
				b.Cleanup(func() { _ = f.Close() })
				fs = append(fs, f)
			}
			for b.Loop() {
				if err := fdpass.Send(from, msg, fs); err != nil {
					b.Fatal(err)
				}
				_, got, err := fdpass.Recv(to, buf, n)
				if err != nil || len(got) != n {
					b.Fatal(len(got), err)
				}
				for _, f := range got {
					_ = f.Close()
				}
			}
		})
	}
}

func closeRights(b *testing.B, oob []byte) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) != 1 {
		b.Fatal(errors.Join(err, fmt.Errorf("%d control messages", len(messages))))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		b.Fatal(err)
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
