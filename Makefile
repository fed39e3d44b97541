# Every target works as root, in a fresh clone, without a terminal. What a target needs beyond Go, git, make and apt
# is installed by .ci/setup.
SHELL       := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

GO       ?= go
BIN      := bin
LINT     := build/golangci-lint
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || cat VERSION 2>/dev/null || echo unknown)
FUZZTIME ?= 60s
COUNT    ?= 1
STEP     := .ci/step

# The tests of the root package that have a full form, with the numbers of the acceptance.
LOADS    := ^Test(Load|Promise1|Tableflip|HAProxyDrainsIdle|StopLoad|Standalone\b|Activated|HandoverdKilled|ScenarioKilled\b|NoUnknownProgram|Limits|KilledAtEachStep|KilledEveryTwoSeconds|Upgrade)

# Examples that need what the module itself does not: each is a module of its own, beside it.
MODULES  := examples/grpc examples/worker internal/drainbench/grpcserver

# One set of flags for all that is compiled, so that the standard library is compiled once: without cgo (but for the
# race detector), with trimmed paths as in a release. A build never edits go.mod. No version control stamp: VERSION
# says it, and a clone owned by another user would refuse to be stamped.
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out -mod=% -buildvcs=% -trimpath,$(GOFLAGS)) -mod=readonly -buildvcs=false -trimpath

.PHONY: build demo test setup fmt fix vet darwin linter lint unit real load mutants fuzz soak bench bench-peers drain-table cross systemd fresh-machine clean help

help: ## lists the targets
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

build: ## builds bin/handoverd, static
	$(GO) build -ldflags '-s -w -X main.version=$(VERSION)' -o $(BIN)/handoverd ./cmd/handoverd

demo: setup build ## shows two programs reloaded under load without a lost request
	$(GO) run ./internal/demo

# The order is cheapest first, so that a plain mistake is answered within seconds. What compiles everything once more, the vet
# for another system and on a new machine the linter, runs beside the unit tests with what they leave idle, and has ended
# before the programs are put under load.
test: ## all checks and tests, with the short load test
	@mkdir -p build && date +%s >build/test.begin
	@$(STEP) setup .ci/setup
	@$(STEP) vet $(MAKE) --no-print-directory vet
	@.ci/beside golangci $(MAKE) --no-print-directory linter
	@.ci/beside darwin $(MAKE) --no-print-directory darwin
	@$(STEP) unit $(MAKE) --no-print-directory unit
	@$(STEP) darwin .ci/beside --wait darwin
	@$(STEP) lint $(MAKE) --no-print-directory lint
	@$(STEP) real $(MAKE) --no-print-directory real
	@echo "make test: everything passed in $$(($$(date +%s) - $$(cat build/test.begin))) s"

setup: ## installs what the tests need and the machine lacks
	@.ci/setup

fmt: $(LINT) ## formats the tree
	$(LINT) fmt ./...

fix: $(LINT) ## formats, and lets the linters write what they can
	$(LINT) run --fix ./...

vet: ## go vet, and formatting
	@out=$$(git ls-files -z --cached --others --exclude-standard '*.go' | xargs -0r gofmt -s -l); \
	if [ -n "$$out" ]; then echo "not formatted, run make fmt:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	@for m in $(MODULES); do echo "$(GO) vet -C $$m ./..."; $(GO) vet -C $$m ./...; done

darwin: ## vets all packages as they compile elsewhere
	GOOS=darwin $(GO) vet ./...
	@for m in $(MODULES); do GOOS=darwin $(GO) vet -C $$m ./...; done

$(LINT): .ci/tools/go.mod .ci/tools/go.sum
	$(GO) build -C .ci/tools -ldflags '-s -w' -o ../../$(LINT) github.com/golangci/golangci-lint/v2/cmd/golangci-lint

linter:
	@mkdir -p build && flock build/linter.lock $(MAKE) --no-print-directory $(LINT)

lint: linter ## golangci-lint, built from source
	$(LINT) run ./...
	@for m in $(MODULES); do (cd $$m && $(CURDIR)/$(LINT) run ./...); done

# The short form leaves out tests that start real programs: they follow in `real`, against the binary as it is shipped.
unit: setup ## unit and property tests under the race detector
	CGO_ENABLED=1 .ci/gotest build/unit.log -race -short -timeout 6m ./...

# Three at a time: what waits leaves more than half of two cores idle. The load tests go before the rest by their priority;
# their bar is a count, not a time, and a row that the machine does not drive is repeated.
real: setup build ## every test against the static binary, with the short form of each load
	@$(GO) list -export -test ./... >/dev/null # compiled before the load tests begin
	@.ci/lanes 3 \
		'.ci/gotest build/loads.log -timeout 12m -run "$(LOADS)" .' \
		'nice .ci/gotest build/root.log -timeout 12m -skip "$(LOADS)|^TestIdle\b" .' \
		'nice .ci/gotest build/cmd.log -p 1 -timeout 12m ./cmd/... ./drain/... ./supervisor/...' \
		'nice .ci/gotest build/examples.log -p 1 -timeout 12m ./examples/...' \
		'nice .ci/gotest build/real.log -p 1 -timeout 12m $$($(GO) list ./... | tail -n +2 | grep -vE "/(cmd|drain|examples|supervisor)(/|$$)")' \
		'nice .ci/modules $(MODULES)'
	@# Alone: a thread that is kept from the processor has the runtime look at it again and again, which is no idleness.
	@.ci/gotest build/idle.log -run '^TestIdle$$' .

load: setup build ## the load test with the full number of reloads
	HANDOVERD_LOAD=full $(GO) test -count=1 -v -run '$(LOADS)' -timeout 120m .
	HANDOVERD_LOAD=full $(GO) test -C examples/worker -count=1 -v -run '^TestStops$$' -timeout 20m .

mutants: ## applies each deliberate mistake and fails unless the tests see it
	.ci/mutants

fuzz: ## each fuzz target for FUZZTIME
	.ci/fuzz $(FUZZTIME)

# HANDOVERD_SOAK_FOR=30m and HANDOVERD_SOAK_SEED=N change the second part; the seed of each run is in its log.
soak: setup build ## 200 reloads, then what has grown; and 10 minutes of everything that can happen
	HANDOVERD_SOAK=full $(GO) test -count=1 -v -run '^Test(Soak|Chaos)$$' -timeout 240m .

# Medians of pairs, in real-time priority where that may be had: they are to be those of handoverd, not of what else runs.
bench: setup build ## benchmarks (COUNT times each, for benchstat), and the budgets of a spawn and a reload
	$(GO) test -c -o build/root.test .
	HANDOVERD_LOAD=full $(shell chrt -r 1 true 2>/dev/null && echo chrt -r 1) build/root.test -test.v -test.run '^TestBudget$$' -test.timeout 30m
	HANDOVERD_LOAD=full $(GO) test -count=1 -v -run '^TestSendingCostsLittleMore$$' ./internal/shim
	$(GO) test -run '^$$' -bench . -benchmem -count $(COUNT) -timeout 60m ./... | tee build/bench.txt

bench-peers: ## what a reload costs here and elsewhere, in half an hour: writes docs/BENCHMARKS.md
	@.ci/setup bench
	$(GO) run ./internal/peers

drain-table: setup ## docs/DRAIN.md: what is lost when a program leaves, about 12 minutes
	$(GO) run ./internal/drainbench

cross: ## vets all packages for other systems and processors
	@for target in darwin/arm64 freebsd/amd64 openbsd/amd64 windows/amd64 linux/arm64 linux/386; do \
		echo "vet $$target"; \
		GOOS=$${target%/*} GOARCH=$${target#*/} $(GO) vet ./...; \
	done

systemd: setup ## the units of examples/systemd in a booted systemd, under load, in 7 minutes
	@.ci/setup systemd
	@.ci/systemd

fresh-machine: ## make demo and make test in a bare Debian with Go, git, make and apt only
	.ci/fresh-machine

clean: ## removes what the targets built
	rm -rf $(BIN) build
