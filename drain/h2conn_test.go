package drain

import (
	"bytes"
	"io"
	"net"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the frames and however they are cut into writes: what is put between
// is between two frames, never within a header block, and nothing else changes.
func TestFramesOfOurOwnGoBetween(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		ends := map[int]bool{} // where a frame may be put
		n := rapid.IntRange(1, 8).Draw(t, "frames")
		for i := range n {
			kind := rapid.SampledFrom([]byte{0, frameHeaders, 4, framePing, framePushPromise, frameContinuation}).Draw(t, "type")
			flags := rapid.SampledFrom([]byte{0, flagAck, flagEndHeaders}).Draw(t, "flags")
			payload := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "payload")
			if i == 0 {
				kind = 4
			}
			stream = append(stream, 0, 0, byte(len(payload)), kind, flags, 0, 0, 0, 1)
			stream = append(stream, payload...)
			block := kind == frameHeaders || kind == framePushPromise || kind == frameContinuation
			open := block && flags&flagEndHeaders == 0
			if !block && i > 0 && !ends[len(stream)-len(payload)-frameHeaderLen] {
				open = true // a block goes on; no server sends this, and nothing may be put here either
			}
			ends[len(stream)] = !open
		}
		client, server := net.Pipe()
		got := make(chan []byte)
		go func() {
			b, _ := io.ReadAll(client)
			got <- b
		}()
		c := newH2conn(server)
		at := rapid.IntRange(0, len(stream)).Draw(t, "goaway")
		for i := 0; i < len(stream); {
			if i >= at {
				c.goAway()
			}
			k := rapid.IntRange(1, len(stream)-i).Draw(t, "write")
			if _, err := c.Write(stream[i : i+k]); err != nil {
				t.Fatal(err)
			}
			i += k
		}
		c.goAway()
		server.Close()
		out := <-got
		own := append(goAwayFrame(1<<31-1), pingFrame(pingData[0])...)
		i := bytes.Index(out, own)
		if i < 0 {
			if !bytes.Equal(out, stream) || ends[len(stream)] {
				t.Fatalf("not put anywhere: %x", out)
			}
			return
		}
		if rest := append(bytes.Clone(out[:i]), out[i+len(own):]...); !bytes.Equal(rest, stream) {
			t.Fatalf("got %x, want %x", rest, stream)
		}
		if !ends[i] {
			t.Fatalf("put at %d of %x", i, stream)
		}
	})
}

// Whatever a client sends, and however it arrives: the scan takes all of it, and
// ends where it would have ended byte by byte.
func FuzzFrameScan(f *testing.F) {
	f.Add(append([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}, pingFrame(pingData[0])...), uint8(3))
	f.Add(goAwayFrame(7), uint8(1))
	f.Fuzz(func(t *testing.T, stream []byte, size uint8) {
		var whole, parts frameScan
		for i := range stream {
			if n := whole.next(stream[i : i+1]); n != 1 {
				t.Fatalf("took %d of 1 byte", n)
			}
		}
		for rest := stream; len(rest) > 0; {
			chunk := rest[:min(len(rest), int(size)+1)]
			n := parts.next(chunk)
			if n < 1 || n > len(chunk) {
				t.Fatalf("took %d of %d bytes", n, len(chunk))
			}
			rest = rest[n:]
		}
		if whole.have != parts.have || whole.left != parts.left || whole.block != parts.block || whole.begun != parts.begun || !bytes.Equal(whole.payload, parts.payload) {
			t.Fatalf("by bytes %+v, by %d %+v", whole, size+1, parts)
		}
	})
}
