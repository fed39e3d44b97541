package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// request describes a block to its process.
type request struct {
	Contender string
	Reloads   int
	Dir       string
	Programs  map[string]string
}

// answer is what the process of a block says, if it says anything.
type answer struct {
	Block  block
	Error  string
	Kernel string // why this kernel cannot do it at all
}

// errKernel is wrapped where the kernel lacks what a contender is made of.
var errKernel = errors.New("not on this kernel")

// runBlock is the whole of a block's process.
func runBlock(ctx context.Context, in io.Reader, out io.Writer) error {
	var r request
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return err
	}
	c, ok := contenderNamed(r.Contender)
	if !ok {
		return fmt.Errorf("no contender %q", r.Contender)
	}
	if err := isolate(); err != nil {
		return err
	}
	b := &bench{contender: c, dir: r.Dir, programs: r.Programs, log: os.Stderr, runs: map[drill.Mode]*drill.Run{}}
	found, err := b.measure(ctx, r.Reloads)
	a := answer{Block: found}
	if err != nil {
		a.Error = err.Error()
	}
	if errors.Is(err, errKernel) {
		a.Kernel = err.Error()
	}
	return json.NewEncoder(out).Encode(a)
}

// startBlock runs a turn in a process of its own and waits for it. The log is what the contender and the process wrote.
func (c *coordinator) startBlock(ctx context.Context, t turn) (a answer, log string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+time.Duration(t.reloads)*patience)
	defer cancel()
	dir, err := os.MkdirTemp(c.dir, "block-")
	if err != nil {
		return a, "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return a, "", err
	}
	defer func() { _ = file.Close() }()
	description, err := json.Marshal(request{t.contender, t.reloads, dir, c.programs})
	if err != nil {
		return a, "", err
	}
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, c.self, "-block")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(description), &out, file
	cmd.WaitDelay = time.Second
	isolated(cmd)
	// Pdeathsig is sent when the thread ends that forked, prctl(2), PR_SET_PDEATHSIG: it has to live as long as this call.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Run()
	text, _ := os.ReadFile(file.Name())
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &a)
	}
	if err == nil && a.Error != "" && a.Kernel == "" {
		err = errors.New(a.Error)
	}
	return a, tail(text), err
}

// tail is the end of a log.
func tail(text []byte) string {
	const most = 4000
	return string(text[max(0, len(text)-most):])
}
