package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/handoverd/handover/internal/drill"
)

// coordinator runs the blocks one after the other.
type coordinator struct {
	dir      string // of programs and blocks; close removes it
	self     string // this program, which is started again for each block
	chosen   []contender
	programs map[string]string // paths, by the names of the programs
	versions map[string]string
}

// newCoordinator builds and finds the programs. The caller closes it.
func newCoordinator(ctx context.Context, chosen []contender) (*coordinator, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// Short, for the paths of UNIX sockets below it, and in memory where that may be had.
	parent := "/dev/shm"
	if _, err := os.Stat(parent); err != nil {
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, "peers")
	if err != nil {
		return nil, err
	}
	c := &coordinator{dir: dir, self: self, chosen: chosen, programs: map[string]string{}, versions: map[string]string{}}
	if err := c.prepare(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *coordinator) close() { _ = os.RemoveAll(c.dir) }

// prepare builds what is of this tree, finds the rest, and asks each for its version.
func (c *coordinator) prepare(ctx context.Context) error {
	wanted := map[string]bool{}
	for _, contender := range c.chosen {
		for _, program := range contender.needs {
			wanted[program] = true
		}
	}
	if wanted[programBackend] {
		wanted[programGoserver] = true
	}
	var missing []string
	for program := range wanted {
		path, version, err := c.provide(ctx, program)
		if err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", program, err))
		}
		c.programs[program], c.versions[program] = path, version
	}
	if len(missing) > 0 {
		return fmt.Errorf("\"make bench-peers\" installs what is missing:\n%s", strings.Join(missing, "\n"))
	}
	if wanted[programBackend] {
		return os.Symlink(c.programs[programGoserver], c.programs[programBackend])
	}
	return nil
}

// measure runs the blocks and puts them together.
func (c *coordinator) measure(ctx context.Context, o options) (*results, error) {
	counts, order := map[string]int{}, []string{}
	for _, contender := range c.chosen {
		counts[contender.name] = o.peers
		if contender.base == "" || contender.name == bareHolder {
			counts[contender.name] = o.own
		}
		order = append(order, contender.name)
	}
	began := time.Now()
	turns := plan(counts, order, [2]string{ownGo, bareHolder}, o.seed)
	blocks, kernel, broken := map[string][]block{}, map[string]string{}, []string{}
	for i, t := range turns {
		if kernel[t.contender] != "" {
			continue
		}
		say("%d of %d: %s, %d reloads", i+1, len(turns), t.contender, t.reloads)
		a, err := c.block(ctx, t)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			broken = append(broken, fmt.Sprintf("%s, %d reloads: %v", t.contender, t.reloads, err))
		case a.Kernel != "":
			kernel[t.contender] = a.Kernel
		default:
			blocks[t.contender] = append(blocks[t.contender], a.Block)
		}
	}
	found := &results{
		Date: began.UTC().Format("2006-01-02 15:04 UTC"), Minutes: round3(time.Since(began).Minutes()), Machine: thisMachine(),
		Seed: o.seed, Reloads: o.own, PeerReloads: o.peers, Broken: broken,
		Window: leastWindow.Seconds(), Steady: steady.Seconds(),
	}
	for _, l := range loads {
		found.Loads = append(found.Loads, loadFigures(l))
	}
	for _, contender := range c.chosen {
		found.Contenders = append(found.Contenders, c.describe(contender, kernel[contender.name]))
		for _, l := range loads {
			if len(blocks[contender.name]) > 0 {
				found.Cells = append(found.Cells, newCell(contender.name, l.Mode, blocks[contender.name]))
			}
		}
	}
	return found, nil
}

// block runs a turn, and once more where it could not be measured: what is wrong with the machine for a moment should not cost
// half an hour. Lost requests are no reason.
func (c *coordinator) block(ctx context.Context, t turn) (answer, error) {
	a, log, err := c.startBlock(ctx, t)
	if err == nil || ctx.Err() != nil {
		return a, err
	}
	say("%s: %v\n%s", t.contender, err, log)
	a, log, err = c.startBlock(ctx, t)
	if err != nil && ctx.Err() == nil {
		say("%s, the second time: %v\n%s", t.contender, err, log)
	}
	return a, err
}

// describe is what the report says of a contender.
func (c *coordinator) describe(k contender, kernel string) contenderFigures {
	versions := []string{}
	for _, program := range k.needs {
		versions = append(versions, strings.TrimSpace(program+" "+c.versions[program]))
	}
	return contenderFigures{
		Name: k.name, Title: k.title, Base: k.base, Versions: versions, Command: k.command, Trigger: k.trigger, Kernel: kernel,
	}
}

func loadFigures(l drill.Load) modeFigures {
	return modeFigures{
		Mode: l.Mode, Rate: l.Rate, Clients: l.Clients,
		DelayMS: milliseconds(l.Delay), SpreadMS: milliseconds(l.Spread),
	}
}

// path of a program that is built for the run.
func (c *coordinator) built(program string) string { return filepath.Join(c.dir, program) }
