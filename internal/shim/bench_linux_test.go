package shim

import (
	"slices"
	"syscall"
	"testing"
	"time"
)

// BenchmarkSpawn runs /bin/true to its end bare (fork and exec) and through the
// shim, in turns, so that both meet the same machine. It reports the medians in
// milliseconds and the median of the differences of neighbours.
func BenchmarkSpawn(b *testing.B) {
	var bare, shimmed, added []float64
	ms := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
	for b.Loop() {
		begin := time.Now()
		spawnBare(b)
		middle := time.Now()
		spawnShimmed(b)
		end := time.Now()
		bare = append(bare, ms(middle.Sub(begin)))
		shimmed = append(shimmed, ms(end.Sub(middle)))
		added = append(added, ms(end.Sub(middle)-middle.Sub(begin)))
	}
	b.ReportMetric(median(bare), "bare-ms")
	b.ReportMetric(median(shimmed), "shim-ms")
	b.ReportMetric(median(added), "added-ms")
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}

const benchProgram = "/bin/true"

func spawnBare(b *testing.B) {
	pid, err := syscall.ForkExec(benchProgram, []string{benchProgram}, &syscall.ProcAttr{
		Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := wait(pid); err != nil {
		b.Fatal(err)
	}
}

func spawnShimmed(b *testing.B) {
	p, err := Start(&Spec{Path: benchProgram, Argv: []string{benchProgram}, ListenPID: true}, nil, 1, 2)
	if err != nil {
		b.Fatal(err)
	}
	if err := p.Go(); err != nil {
		b.Fatal(err)
	}
	if err := p.Result(); err != nil {
		b.Fatal(err)
	}
	if _, err := wait(p.PID); err != nil {
		b.Fatal(err)
	}
	if err := p.Close(); err != nil {
		b.Fatal(err)
	}
}
