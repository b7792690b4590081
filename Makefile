# CortexFS: every target sets up what it needs; `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
BIN     := bin
TOOLS   := fs.read fs.list fs.stat fs.write fs.replace shell.exec bash
PROGS   := cortexfs ctxagent ctx ctxterm tsh
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo unknown)
STATICCHECK_VERSION := v0.8.2

# What the product needs at run time, and what the tests need beside that.
DEB_RUN  := bubblewrap fuse3 util-linux
DEB_TEST := vim nano emacs-nox git perl python3 tmux dash gcc libc6-dev procps acl attr socat jq man-db groff zsh fish

export CGO_ENABLED := 0

.PHONY: help deps build demo test race fuzz bench lint docs install deb boot soak clean

help: ## print every target
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

deps: ## install missing Debian packages (root), or print the line that does
	@./integration/deps.sh $(DEB_RUN) -- $(DEB_TEST)

build: ## static binaries into bin/
	@mkdir -p $(BIN)/tool
	$(GO) build -trimpath -ldflags "-s -w -X cortexfs/node.Version=$(VERSION)" -o $(BIN)/ $(PROGS:%=./cmd/%)
	@for t in $(TOOLS); do \
		$(GO) build -trimpath -ldflags "-s -w -X main.name=$$t" -o $(BIN)/tool/$$t ./cmd/tool || exit 1; done

demo: ## from an empty folder to an agent in its sandbox, step by step
	@./integration/deps.sh $(DEB_RUN) --
	@$(MAKE) --no-print-directory build
	@./integration/demo.sh $(BIN)

test: ## everything: unit, property, race, real mounts, real bwrap
	@./integration/deps.sh $(DEB_RUN) $(DEB_TEST) --
	@$(MAKE) --no-print-directory build
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 40m ./...

race: ## only the packages with the most goroutines, under the race detector, ten times
	CGO_ENABLED=1 $(GO) test -race -count=10 -timeout 60m ./node/... ./fs/... ./policy/... ./sandbox/term/... ./sandbox/wire/...

FUZZTIME ?= 30s
fuzz: ## run every fuzz target for FUZZTIME (default 30s)
	@for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz'); do \
			echo "== $$pkg $$f"; CGO_ENABLED=1 $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5s $$pkg || exit 1; done; done

bench: build ## ratios of design.md section 8, measured side by side
	@./integration/deps.sh $(DEB_RUN) gcc libc6-dev --
	$(GO) test -run '^$$' -bench '^(BenchmarkAllows|BenchmarkAuthorize|BenchmarkRebuild)$$' ./policy ./node/view
	$(GO) test -run '^$$' -bench '^BenchmarkStart$$' -benchtime 20x ./sandbox
	cd integration/bench && $(GO) run . -bin ../../$(BIN)

lint: ## gofmt, go vet, staticcheck
	@out=$$(gofmt -l cmd fs integration node policy sandbox); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	cd integration/bench && $(GO) vet ./...
	$(GO) run honnef.co/go/tools/cmd/staticcheck@$(STATICCHECK_VERSION) ./...

docs: ## write the generated documents: manual pages and docs/abi.md
	$(GO) test ./cmd/internal/manual -run TestGenerated -update >/dev/null

# mount(8) looks for its helpers in /sbin only, whatever PREFIX is.
SBIN ?= /usr/sbin
DIST := cmd/cortexfs/dist
install: build ## into DESTDIR/PREFIX (default /usr/local): programs, mount helpers, units, manual, completions
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/cortexfs/tool $(DESTDIR)$(SBIN)
	install -m 0755 $(PROGS:%=$(BIN)/%) $(DESTDIR)$(PREFIX)/bin/
	install -m 0755 $(TOOLS:%=$(BIN)/tool/%) $(DESTDIR)$(PREFIX)/lib/cortexfs/tool/
	ln -sf $(PREFIX)/bin/cortexfs $(DESTDIR)$(SBIN)/mount.cortexfs
	ln -sf $(PREFIX)/bin/cortexfs $(DESTDIR)$(SBIN)/mount.fuse.cortexfs
	for d in system user; do install -d $(DESTDIR)$(PREFIX)/lib/systemd/$$d; for u in $(DIST)/systemd/$$d/*; do \
		sed 's#/usr/bin/\(cortexfs\|ctx\) #$(PREFIX)/bin/\1 #' $$u > $(DESTDIR)$(PREFIX)/lib/systemd/$$d/$${u##*/} || exit 1; done; done
	for s in 1 5 8; do install -d $(DESTDIR)$(PREFIX)/share/man/man$$s && install -m 0644 docs/man/man$$s/* $(DESTDIR)$(PREFIX)/share/man/man$$s/ || exit 1; done
	install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/vendor-completions fish/vendor_completions.d doc/cortexfs/examples)
	$(BIN)/ctx completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/ctx
	$(BIN)/ctx completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_ctx
	$(BIN)/ctx completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/ctx.fish
	install -m 0644 $(DIST)/examples/* $(DIST)/apparmor/* $(DESTDIR)$(PREFIX)/share/doc/cortexfs/examples/
	install -m 0644 README.md docs/*.md $(DESTDIR)$(PREFIX)/share/doc/cortexfs/

deb: ## a Debian package in bin/
	@$(MAKE) --no-print-directory build
	@$(DIST)/debian/build.sh $(BIN) $(VERSION)

boot: ## boot Debian's systemd with the package, /ctx from fstab and as the service (root; the system is cached in /var/tmp)
	@./integration/deps.sh $(DEB_RUN) debootstrap --
	@$(MAKE) --no-print-directory deb
	@./integration/boot.sh $(BIN)

soak: ## 200 rounds of mounts with readers, and of crashes
	CTX_ROUNDS=200 $(GO) test -count=1 -timeout 120m -run 'TestFstab|TestCrash' ./integration

clean: ## remove bin/
	rm -rf $(BIN)
