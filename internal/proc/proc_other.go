//go:build !linux

package proc

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

var errOther = fmt.Errorf("package proc on %s: %w", runtime.GOOS, errors.ErrUnsupported)

func bootTime() Instant { return 0 }

// ThreadTime is not supported here.
func ThreadTime() time.Duration { return 0 }

// BootID is not supported here.
func BootID() (string, error) { return "", errOther }

// CheckMount is not supported on this system.
func CheckMount() error { return errOther }

// StartTime is not supported here.
func StartTime(int) (uint64, error) { return 0, errOther }

// CPUTime is not supported here.
func CPUTime(int) (time.Duration, error) { return 0, errOther }

// Runnable is not supported here.
func Runnable(int) (time.Duration, error) { return 0, errOther }

// RSS is not supported here.
func RSS(int) (int64, error) { return 0, errOther }

// OpenPidfd is not supported here.
func OpenPidfd(int) (int, error) { return -1, errOther }

// SignalPidfd is not supported here.
func SignalPidfd(int, unix.Signal) error { return errOther }

// Reaper is not supported here.
type Reaper struct{}

// NewReaper returns a Reaper that starts nothing.
func NewReaper() *Reaper { return &Reaper{} }

// SetSubreaper is not supported here.
func SetSubreaper() error { return errOther }

// Run waits until ctx is done.
func (r *Reaper) Run(ctx context.Context) { <-ctx.Done() }

// Start is not supported here.
func (r *Reaper) Start(func() (int, error), func(Exit)) (int, error) { return 0, errOther }

// Release is not supported here.
func (r *Reaper) Release(int) error { return errOther }

// Reaped returns zero.
func (r *Reaper) Reaped() uint64 { return 0 }

// Members is not supported here.
func Members(int, string) ([]Process, error) { return nil, errOther }

// MembersBefore is not supported here.
func MembersBefore(int, string, uint64) ([]Process, error) { return nil, errOther }

// KillMembersBefore is not supported here.
func KillMembersBefore(int, string, uint64, unix.Signal) (int, error) { return 0, errOther }

// FetchRefused says that it is not supported here.
func FetchRefused() string { return errOther.Error() }

// HelperBlindness says that it is not supported here.
func HelperBlindness(int) string { return errOther.Error() }

// WithVariable is not supported here.
func WithVariable(string) ([]int, error) { return nil, errOther }

// Ticks returns zero.
func Ticks(Instant) uint64 { return 0 }

// PIDNamespace is not supported here.
func PIDNamespace() (uint64, error) { return 0, errOther }

// Descendants is not supported on this system.
func Descendants(int) ([]Process, error) { return nil, errOther }

// KillMembers is not supported here.
func KillMembers(int, string, unix.Signal) (int, error) { return 0, errOther }

// Looker is not supported here.
type Looker struct{ Deep bool }

// Look is not supported here.
func (l *Looker) Look([]int, []uint64) (Sight, error) { return Sight{}, errOther }

// LookHelper is not supported here.
func LookHelper() error { return errOther }

// Look is not supported here.
func (h *Helper) Look([]int, []uint64) (Sight, error) { return Sight{}, errOther }

// Listening is not supported here.
func Listening([]int) ([]Listener, error) { return nil, errOther }

// Blindness says that looking is not supported here.
func Blindness(int) string { return errOther.Error() }

// Connections is not supported here.
func Connections([]uint16) ([]Connection, error) { return nil, errOther }

// HalfOpen is not supported here.
func HalfOpen([]uint16) (map[uint16]int, error) { return nil, errOther }

// UnixQueue is not supported here.
func UnixQueue(uint64) (int, error) { return 0, errOther }

// Holds is not supported here.
func Holds([]int, []uint64) (map[uint64]bool, error) { return nil, errOther }

// PassiveOpens is not supported here.
func PassiveOpens() (uint64, error) { return 0, errOther }

// Starved reports nothing here.
func Starved(error) bool { return false }

// IsChild is not supported here.
func IsChild(int) bool { return false }
