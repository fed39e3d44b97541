package main

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// maxDrill bounds --for: less than the library's own bound, so that a last reload is waited for.
const maxDrill = 3 * time.Hour

// leastEvery is the shortest time from trigger to trigger.
const leastEvery = time.Millisecond

// longest bounds what is given as a time and goes into sums.
const longest = 24 * time.Hour

// checkNumbers refuses what is parsed as a number and is none, and what overflows.
func (o *drillFlags) checkNumbers() error {
	for name, v := range map[string]float64{
		"--rate": o.rate, "--kill": o.kill, "--kill-supervisor": o.killSupervisor, "--max-p99-ratio": o.maxP99Ratio, "--deploys-per-week": o.deploys,
	} {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return fmt.Errorf("%s %v: want a number", name, v)
		}
	}
	for name, v := range map[string]time.Duration{
		"--window": o.window, "--timeout": o.timeout, "--restart-within": o.restartWithin, "--check-interval": o.checkInterval,
	} {
		if v > longest {
			return fmt.Errorf("%s %v: want at most %v", name, v, longest)
		}
	}
	if o.checkInterval.Hours()*(float64(o.checkFailures)+1) > longest.Hours() {
		return fmt.Errorf("--check-interval %v, --check-failures %d: together more than %v", o.checkInterval, o.checkFailures, longest)
	}
	return nil
}

// check refuses what does not go together.
func (o *drillFlags) check() error {
	triggers := 0
	for _, t := range []string{o.reload, o.signal, o.exec} {
		if t != "" {
			triggers++
		}
	}
	kills := o.kill + o.killSupervisor
	if err := o.checkNumbers(); err != nil {
		return err
	}
	expects := o.expectStatus != "" || o.expectBody != "" || o.sameBody
	switch {
	case o.url == "":
		return errors.New("drill needs --url")
	case o.rate <= 0:
		return fmt.Errorf("--rate %v: want more than 0", o.rate)
	case o.duration <= 0 || o.duration > maxDrill:
		return fmt.Errorf("--for %v: want up to %v", o.duration, maxDrill)
	case o.every < leastEvery:
		return fmt.Errorf("--every %v: want at least %v", o.every, leastEvery)
	case triggers > 0 && o.every >= o.duration:
		return fmt.Errorf("--every %v: no trigger comes within --for %v", o.every, o.duration)
	case triggers == 0 && o.maxP99Ratio > 0:
		return errors.New("--max-p99-ratio goes with a trigger: without one there is no p99 in windows")
	case o.window < 0 || o.restartWithin < 0 || o.timeout < 0 || o.checkInterval < 0 || o.clients < 0 || o.checkFailures < 0 || o.maxFailures < 0 || o.maxP99Ratio < 0 || o.deploys < 0:
		return errors.New("a number or time is negative")
	case o.instances < 1:
		return fmt.Errorf("--instances %d: want at least 1", o.instances)
	case triggers > 1:
		return errors.New("--reload, --signal and --exec: want at most one")
	case (o.signal != "") != (o.pid != 0) || o.pid < 0:
		return errors.New("--signal and --pid go together")
	case o.kill < 0 || o.killSupervisor < 0 || kills > 1:
		return fmt.Errorf("--kill %v, --kill-supervisor %v: want shares from 0 to 1, and no more than 1 together", o.kill, o.killSupervisor)
	case kills > 0 && o.reload == "":
		return errors.New("--kill and --kill-supervisor go with --reload: only handoverd says which process serves")
	case o.restart != "" && o.killSupervisor == 0:
		return errors.New("--restart goes with --kill-supervisor")
	case o.contract != "auto" && o.contract != "on" && o.contract != "off":
		return fmt.Errorf("--contract %s: want auto, on or off", o.contract)
	case o.contract == "on" && expects:
		return errors.New("--contract on checks each byte: leave out --expect-status, --expect-body and --same-body")
	}
	return nil
}
