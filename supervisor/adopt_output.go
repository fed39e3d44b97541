package supervisor

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// markSuffix is added to the name of an output file for that of its mark: eight
// bytes that say up to where the output was passed on. It is written without
// waiting for a disk, since it only has to outlive this process, and not with the
// state, which is written once a turn: a line that a program has written would be
// passed on twice, or a part that was given back read as zeros.
const markSuffix = ".offset"

// note writes down what has been passed on: all that was read but the last line,
// if that has no end yet.
func (f *followed) note() {
	if f.mark == nil {
		return
	}
	f.mu.Lock()
	at := f.offset - int64(len(f.part))
	f.mu.Unlock()
	// A mark that is not written costs lines that come twice, at worst.
	_, _ = f.mark.WriteAt(binary.BigEndian.AppendUint64(nil, uint64(at)), 0)
}

// resume goes on with the output of a generation that an earlier handoverd has
// started, from where that one stopped.
func (o *output) resume(a at, spec *Spec) error {
	if spec.Config.Log == "inherit" {
		return nil
	}
	path := o.dir.file("log", a.String())
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it was never started, or has been passed on to its end
	}
	if err != nil {
		return err
	}
	file := newFollowed(f, path, a)
	file.mark, err = os.OpenFile(path+markSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		file.offset, err = markedOffset(file.mark, f)
	}
	if err == nil {
		err = o.watch.add(path, a)
	}
	if err != nil {
		if file.mark != nil {
			_ = file.mark.Close()
		}
		return errors.Join(err, f.Close())
	}
	file.punched = file.offset &^ 4095
	file.grown <- struct{}{} // what came meanwhile
	o.add(a, file)
	return nil
}

// markedOffset is where to go on: at the mark, or where the file has data after it.
func markedOffset(mark, f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	var b [8]byte
	var at int64
	if _, err := mark.ReadAt(b[:], 0); err == nil {
		at = int64(binary.BigEndian.Uint64(b[:]))
	} else if !errors.Is(err, io.EOF) {
		return 0, err
	}
	if at < 0 || at > info.Size() {
		return 0, nil // it was emptied since
	}
	err = control(f, func(fd int) error {
		data, err := unix.Seek(fd, at, seekData)
		if err == nil {
			at = data
		}
		return nil // ENXIO: nothing comes after it
	})
	return at, err
}
