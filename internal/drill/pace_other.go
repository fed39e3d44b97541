//go:build !linux

package drill

import "time"

func shortSleep(d time.Duration) { time.Sleep(d) }
