# All commands run in .venv. The environment is created by uv if it is installed, and by pip otherwise.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := bench,encoders,parquet,heic,codebook,detectors,elastic,opensearch,minilm,eyes,web,watch,words,docs,dev
UV := $(shell command -v uv 2>/dev/null)

.PHONY: install demo stills demo-model flickr8k encoders check fast test test-servers test-all test-cluster browser lint types bench results report bench-smoke docs dist licences audit fuzz sanitize lowest clean

install: $(VENV)/installed

# Install the packages needed to search with an existing model. The demo needs only these packages.
SEARCH := search
$(VENV)/installed: WANTED := $(EXTRAS)
$(VENV)/searching: WANTED := $(SEARCH)
$(VENV)/installed $(VENV)/searching: setup.cfg pyproject.toml setup.py $(wildcard boc/*.[ch] boc/*/*.[ch] indexing/*/*.[ch])
	@echo "Installing '.[$(WANTED)]' into $(VENV): 0.55 GB for search, 6 GB and more with torch; minutes, by your network."
ifdef UV
	uv venv --quiet --allow-existing --python $(PYTHON) $(VENV)
	uv pip install --quiet --compile-bytecode --python $(BIN)/python -e '.[$(WANTED)]'
else
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[$(WANTED)]'
endif
	@touch $@

# Paint a gallery of scenes on which the model in demo/model was not trained, index the scenes, and serve a search
# page. SHOW is the last step.
DEMO := demo-out
SCENES := 500
SHOW = $(BIN)/boc serve scenes --at file:$(DEMO)/index --open
demo: $(or $(wildcard $(VENV)/installed),$(VENV)/searching)
	@echo "Painting $(SCENES) scenes and indexing them: half a minute for 500, on two cores."
	$(BIN)/python -m demo.gallery $(DEMO)/photos --count $(SCENES) --seed 2
	$(BIN)/boc extract $(DEMO)/photos/captions.csv -o $(DEMO)/photos.h5 --encoder teran:demo/model
	$(BIN)/boc index scenes $(DEMO)/photos.h5 --rerank mrsw --rm 20 \
		--metadata $(DEMO)/photos/fields.csv --at file:$(DEMO)/index
	$(BIN)/python -m bench.paper.scene_truth $(DEMO)/photos $(DEMO)/photos.h5 --index scenes --at file:$(DEMO)/index --brief
	$(BIN)/boc search scenes --queries bench/demo_queries.txt -k 5 --html $(DEMO)/hits.html --at file:$(DEMO)/index
	$(SHOW)

# Draw the pictures of the page for the README and the documentation, into docs/stills.
stills: install
	$(MAKE) demo SHOW="$(BIN)/python -m bench.report.stills $(BIN)/boc serve scenes --at file:$(DEMO)/index --port 0"

# Train the model of the demo again: first the eyes, on the known contents of twelve galleries, and then a network, on
# the captions of another gallery. A network of this size trains faster on one thread than on two if the machine is
# also running other work, because the threads wait for each other. With --jobs, make paints several galleries in
# parallel. MODEL is the destination folder.
MODEL := demo/model
LESSONS := 1000
CAPTIONED := 3000
STUDIES := $(foreach seed,101 102 103 104 105 106 107 108 109 110 111 112,$(DEMO)/studies/$(seed))
demo-model: install $(STUDIES:%=%/captions.csv)
	$(BIN)/python -m demo.eyes $(STUDIES) -o $(DEMO)/eyes.onnx $(EYES_OPTIONS)
	$(BIN)/python -m demo.gallery $(DEMO)/train --count $(CAPTIONED) --seed 1
	rm -rf $(DEMO)/model
	OMP_NUM_THREADS=1 $(BIN)/boc train $(DEMO)/train/captions.csv -o $(DEMO)/model --recipe scenes \
		--regions onnx:$(DEMO)/eyes.onnx $(MODEL_OPTIONS)
	mkdir -p $(MODEL)
	rm -f $(MODEL)/*.npz
	set -e; for file in $(DEMO)/model/*; do case $$file in \
		*.safetensors|*.onnx|*.npz|*/config.json|*/tokenizer.json|*/onnx.json|*/words.json) cp $$file $(MODEL);; \
	esac; done
$(DEMO)/studies/%/captions.csv: | install
	$(BIN)/python -m demo.gallery $(@D) --count $(LESSONS) --seed $*

# The same for real photographs. DATA contains images/, captions.csv, train.ids.txt and dev.ids.txt. EYES selects the
# regions. AT is the backend of the index: a folder or a server.
AT ?= file:flickr8k/index
DATA ?= ../shared/data/flickr8k
EYES ?= efficientnet:lite2?cells=3&crops=2
export EYES
flickr8k: install
	$(BIN)/boc extract $(DATA)/captions.csv -o flickr8k/regions.h5 --regions '$(EYES)'
	$(BIN)/boc train flickr8k/regions.h5 --ids $(DATA)/train.ids.txt -o flickr8k/model \
		--recipe photos --regions '$(EYES)'
	$(BIN)/boc extract flickr8k/regions.h5 --ids $(DATA)/dev.ids.txt -o flickr8k/dev.h5 --encoder tern:flickr8k/model
	$(BIN)/boc evaluate flickr8k/dev.h5
	$(BIN)/boc index flickr8k flickr8k/dev.h5 --at '$(AT)'
	$(BIN)/boc evaluate flickr8k/dev.h5 --name flickr8k --at '$(AT)'

# Compare all encoders on the same photographs: flickr8k/models.csv. See docs/results/encoders.md.
encoders: install
	$(MAKE) -f bench/rows.mk PHOTOS=$(DATA) OUT=flickr8k F=flickr8k ROWS=models

# Tests run in one process more than there are cores, because some tests wait for servers and other processes. Each
# process uses one thread. The fast tests never wait, and a process needs seconds to import the tested modules, so
# they use one process per core. A process runs all tests of a file, or all tests that use the same kind of server,
# longest first (see tests/conftest.py). Compiled tests are cached even if PYTHONDONTWRITEBYTECODE is set. make
# install has already compiled the libraries, which takes longer.
CORES := $(shell getconf _NPROCESSORS_ONLN)
PROCESSES = $(shell expr $(CORES) + 1)
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= \
	$(BIN)/python -m pytest -n $(PROCESSES) --dist loadgroup --no-loadscope-reorder

# Run this target before every commit: linters, type checker and fast tests, with fewer examples per property test.
check: install
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint types fast

fast: PROCESSES := $(CORES)
fast: install
	$(PYTEST) -q -m "not slow and not servers" --hypothesis-profile quick

# Of the servers, only OpenSearch 3 is tested here, if it can be downloaded. See test-servers for the others.
test: install browser
	-$(BIN)/python -m tests.servers fetch opensearch-3
	$(PYTEST) -m "not servers"

# Run the tests marked "servers" against every search server. Servers are downloaded unless an address is set.
test-servers: install
	$(BIN)/python -m tests.servers fetch
	BOC_SERVERS_ALL=1 $(PYTEST) -m servers

# Run all tests at once. Several kinds of servers run in parallel, beside the tests that need no server.
test-all: install browser
	$(BIN)/python -m tests.servers fetch
	BOC_SERVERS_ALL=1 $(PYTEST)

# Test all faults of clusters of three nodes, during searches and during loads. This takes a quarter of an hour.
test-cluster: install
	$(BIN)/python -m tests.servers fetch elasticsearch-9 opensearch-3
	BOC_CLUSTER_FAULTS=1 BOC_SERVERS_ALL=1 $(BIN)/python -m pytest -m "servers or slow" tests/indexing/server/test_cluster.py

# The page is tested in Chromium. If Chromium is missing and cannot be installed, these tests are skipped.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
		{ [ "$$(id -u)" = 0 ] && apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium \
		>/dev/null; } || echo "no Chromium here: the page is not tested"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff check --quiet --select COM812 .
	$(BIN)/ruff format --check .
	$(BIN)/codespell *.md .github bench boc demo deploy docs encoders examples indexing

types: install
	$(BIN)/mypy

# Run the benchmarks (bench/rows.mk), and write the report page; see docs/results/index.md. To resume an interrupted
# run, run the same command again.
OUT ?= bench-out
bench: DATA := ../shared/data
bench: install
	$(MAKE) -k -f bench/rows.mk DATA=$(DATA) OUT=$(OUT)

# Measure the rows of all pages of results, or of one page: make results PAGE=table1.
PAGES := $(filter-out index,$(basename $(notdir $(wildcard docs/results/*.md))))
PAGE ?= $(PAGES)
rows_of = $(sort $(shell sed -n 's/^<!-- rows: \([^ ]*\).*/\1/p' docs/results/$(1).md))
results: $(PAGE:%=results-%)
results-%: DATA := ../shared/data
results-%: install
	@echo "docs/results/$*.md has the rows $(call rows_of,$*)"
	$(MAKE) -k -f bench/rows.mk DATA=$(DATA) OUT=$(OUT) ROWS="$(call rows_of,$*)"

report: install
	$(BIN)/python -m bench.report.page $(OUT) -o $(OUT)/report.html

# Run all benchmarks and the report on tiny generated data, to check that they run.
bench-smoke: install
	rm -rf build/bench-smoke
	OMP_NUM_THREADS=1 $(MAKE) -j 2 -k -f bench/rows.mk TINY=1 OUT=build/bench-smoke
	$(BIN)/python -m bench.report.page build/bench-smoke -o build/bench-smoke/report.html

# Build the documentation site in build/docs.
docs: install
	$(BIN)/python -m sphinx -q -W -n --keep-going docs build/docs

# Build the wheel and the source distribution in dist/. Then install the wheel into an empty environment without a
# compiler, and build and search an index there.
TOOLS := build/tools/bin
EMPTY := $(CURDIR)/build/empty
dist: $(TOOLS)/python
	rm -rf dist $(EMPTY)
	$(TOOLS)/python -m build --outdir dist .
	$(PYTHON) -m venv $(EMPTY)
	wheel=$$(echo dist/*.whl); export PATH=$(EMPTY)/bin; \
		pip install --quiet --only-binary :all: $$wheel && boc --version && python .ci/smoke.py

# List the licences of the installed packages, and write a bill of materials (CycloneDX).
licences: install $(TOOLS)/python
	$(TOOLS)/pip-licenses --python $(BIN)/python --with-urls --format markdown --output-file build/licences.md
	$(TOOLS)/cyclonedx-py environment $(BIN)/python --output-file build/sbom.json

# Run the tests in tests/fuzz/ with hundreds of times as many cases. This takes hours.
fuzz: install
	BOC_FORGED=20000 BOC_PICTURES=100000 BOC_REQUESTS=100000 $(PYTEST) tests/fuzz --hypothesis-profile fuzz --timeout 0

# Compile the C modules with the address and undefined behaviour sanitizers, in a copy of the tree, and run their
# tests, their fuzzers (BOC_CALLS random calls, BOC_DAMAGED calls with damaged arrays), and the model of the engine.
SANITIZED := build/sanitize
sanitize: install
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	git ls-files -co --exclude-standard | tar c -T - | tar x -C $(SANITIZED)
	cd $(SANITIZED) && BOC_SANITIZE=1 $(CURDIR)/$(BIN)/python setup.py -q build_ext --inplace
	cd $(SANITIZED) && LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
		ASAN_OPTIONS=detect_leaks=0 OMP_NUM_THREADS=1 $(CURDIR)/$(BIN)/python -m pytest -q \
		-n $(CORES) --dist loadgroup --hypothesis-profile quick -m "not servers" tests/boc/clustering tests/boc/rerank \
		tests/indexing/embedded/test_search_kernel.py tests/indexing/embedded/test_postings.py \
		tests/indexing/embedded/test_ranking.py tests/indexing/embedded/test_string_column.py \
		tests/indexing/embedded/test_model_based.py

# Check the installed packages for known vulnerabilities.
audit: install $(TOOLS)/python
	$(TOOLS)/pip-audit --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') --skip-editable

# Run the tests with the lowest versions that setup.cfg allows, in a separate environment.
lowest: browser $(TOOLS)/python
	$(TOOLS)/uv venv --quiet --allow-existing --python $(PYTHON) build/lowest
	$(TOOLS)/uv pip install --quiet --compile-bytecode --resolution lowest-direct \
		--python build/lowest/bin/python -e '.[$(EXTRAS)]'
	$(subst $(BIN),build/lowest/bin,$(PYTEST)) -m "not servers"

$(TOOLS)/python:
	$(PYTHON) -m venv build/tools
	$(TOOLS)/pip install --quiet build cyclonedx-bom pip-audit pip-licenses uv

clean:
	rm -rf $(VENV) demo-out flickr8k bench-out build dist *.egg-info
