//go:build !linux

package supervisor

import "errors"

func lookAtExecutable(string) (*Executable, error) { return nil, errors.ErrUnsupported }

func statExecutable(int) (*Executable, error) { return nil, errors.ErrUnsupported }

func openProgram(string, int, *Executable) (*keptFile, error) { return nil, errors.ErrUnsupported }

func digestFD(int) (string, error) { return "", errors.ErrUnsupported }

func digestFile(string) (string, error) { return "", errors.ErrUnsupported }
