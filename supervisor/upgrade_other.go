//go:build !linux

package supervisor

import (
	"errors"

	"github.com/handoverd/handover/internal/shim"
)

func memfd(string) (int, error)               { return -1, errors.ErrUnsupported }
func sealedMemfd(string, []byte) (int, error) { return -1, errors.ErrUnsupported }
func readSealed(int) ([]byte, error)          { return nil, errors.ErrUnsupported }
func readFault(int) string                    { return "" }
func openImage(string) (int, error)           { return -1, errors.ErrUnsupported }
func writtenTo(int) (imageText, error)        { return imageText{}, errors.ErrUnsupported }
func execute(int, []string, []string) error   { return errors.ErrUnsupported }
func showName(string)                         {}
func shownName() string                       { return "" }
func checkImage(int) error                    { return errors.ErrUnsupported }
func filesAsAtStart(*shim.Spec)               {}
func inheritable(int) (int, error)            { return -1, errors.ErrUnsupported }
func forkLock() (unlock func())               { return func() {} }
func startRehearsal(*chosenBinary, []string, []string, []uintptr) (int, error) {
	return 0, errors.ErrUnsupported
}
