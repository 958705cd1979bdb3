# Run the benchmarks: `make bench`, or only some scripts: `make bench ROWS="table1 race-elasticsearch"`.
#
# DATA contains flickr8k/ (images/, captions.csv, train.ids.txt, dev.ids.txt) and multi30k/captions.en.tsv.gz.
# Benchmarks whose data is missing are skipped and listed. Files that are newer than their sources are not rebuilt, so
# an interrupted run can be resumed. Rows are written to NAME.csv.part, which is renamed at the end. TINY=1 draws its
# own data and uses minimal settings, to check that all scripts run. The races on servers and over a million vectors
# run only if they are named.
BIN ?= .venv/bin
PY := $(BIN)/python -m
BOC := $(BIN)/boc
PAINT := $(PY) demo.gallery
DATA ?= ../shared/data
OUT ?= bench-out
F ?= $(OUT)/flickr8k
S := $(OUT)/scenes
M := $(OUT)/multi30k
RECIPES := photos photos-teran photos-align photos-vsrn photos-vsrnpp
SCENES := 500
SCENES_LEARNED := 1500
SCENES_HELD := 300
# Number of training pictures that are encoded without context, where each region is encoded like a picture.
ALONE := 1500
SHARD := --shard 1/6
CLUSTERS := 1000
ALL := models table1 sparsity-tern sparsity-teran claims recall-postings-tern all-codes scene-truth \
	rivals recall-postings-captions race-embedded race-ratios growth race-composed race-filtered
ROWS ?= $(ALL)
RACES := race-embedded race-composed race-elasticsearch race-opensearch race-elasticsearch-rounds
COUNTS := 1000 10000 100000 1000000
CODEBOOKS := centred rescaled words learned
with = --kind plain --clusters $(CLUSTERS)
centred := --kind centered --clusters 384
rescaled := --kind rescaled --clusters 1000
words := --kind words
learned := --kind learned --clusters 1024

ifdef TINY
DATA := $(OUT)/data
RECIPES := photos photos-teran
EYES := grid
SCENES := 20
SCENES_LEARNED := 20
SCENES_HELD := 20
SHARD :=
CLUSTERS := 9
COUNTS := 300 600
centred := --kind centered --clusters 9
rescaled := --kind rescaled --clusters 9
words := --kind words --clusters 9
learned := --kind learned --clusters 40
SMALL := $(addprefix --set ,visual_width=16 joint_width=16 feedforward=16 heads=2 text=small text_layers=1 text_lr=1 \
	epochs=1 batch_size=8 held_out=8)
FEW_SPARSITIES := --terms 32 --sparsity 0.5 --sparsity 0.99
FEW_CODES := --code dictionary:2/8 --code 'late(terms=9)'
FEW_QUERIES := --queries 5 --explained 2
FEW_CAPTIONS := --gallery 200 --queries 20
FEW_INDEXES := --index 'boc bits:16' --index flat --index hnsw32 --rounds 2
FEW_COMPOSED := --count 400 --dim 16
FEW_FILTERED := --queries 5 --share .05 --share .5 --rounds 1
FEW_DIMENSIONS := --dim 16 --queries 20
FEW_TERMS := --terms 32
FEW_RIVALS := --small --seeds 1
ONE_CODE := --only dictionary --terms 32
else
FEW_TERMS := --terms 2048 --terms 4096
endif

PHOTOS ?= $(DATA)/flickr8k
TRAIN := $(PHOTOS)/train.ids.txt
DEV := $(PHOTOS)/dev.ids.txt
comma := ,
rows = $(PY) bench.$(1) > $@.part && mv $@.part $@

.PHONY: rows
.SECONDARY:
.DELETE_ON_ERROR:
rows: $(ROWS:%=$(OUT)/%.csv)

ifdef TINY
# With TINY=1, scenes replace the photographs, and their captions replace Multi30k.
$(PHOTOS)/captions.csv:
	$(PAINT) $(PHOTOS) --count 60
$(TRAIN): $(PHOTOS)/captions.csv
	tail -n +2 $< | cut -d, -f1 | uniq | head -n 40 > $@
$(DEV): $(PHOTOS)/captions.csv
	tail -n +2 $< | cut -d, -f1 | uniq | tail -n 20 > $@
$(DATA)/multi30k/captions.en.tsv.gz: $(PHOTOS)/captions.csv
	mkdir -p $(@D)
	tail -n +2 $< | tr -d '"' | awk -F, '{print $$1 "\t" n[$$1]++ + 0 "\t" $$2}' | gzip > $@
endif

# Train encoders of photographs, and encode the held-out pictures.
kind = $(if $(findstring teran,$(1)),teran,$(if $(findstring vsrnpp,$(1)),vsrnpp,$(if $(findstring vsrn,$(1)),vsrn,tern)))
spec = $(call kind,$(1)):$(F)/$(1)
$(F)/regions.h5: $(PHOTOS)/captions.csv
	mkdir -p $(F)
	$(BOC) extract $< -o $@ --regions '$(EYES)'
$(F)/%/history.json: $(F)/regions.h5 $(TRAIN)
	$(BOC) train $< --ids $(TRAIN) -o $(@D) --recipe $* --regions '$(EYES)' $(SMALL)
$(F)/alone.ids.txt: $(TRAIN)
	mkdir -p $(F)
	head -n $(ALONE) $< > $@
extract = $(BOC) extract $(F)/regions.h5 --ids $(1) -o $@ --encoder '$(2)'
$(RECIPES:%=$(F)/%.h5): $(F)/%.h5: $(F)/%/history.json $(DEV)
	$(call extract,$(DEV),$(call spec,$*))
$(F)/train-photos.h5: $(F)/photos/history.json
	$(call extract,$(TRAIN),$(call spec,photos))
# The codes of the papers are measured on the networks of the papers, without the components that correct hubs. These
# components are nearly constant, and would be among the few components that a sparse code keeps.
$(F)/plain-%/history.json: $(F)/%/history.json
	rm -rf $(@D)
	cp -r $(<D) $(@D)
	rm -f $(@D)/hubs.npz
$(F)/plain-photos.h5 $(F)/plain-photos-teran.h5: $(F)/%.h5: $(F)/%/history.json $(DEV)
	$(call extract,$(DEV),$(call spec,$*))
$(F)/train-plain-photos.h5: $(F)/plain-photos/history.json
	$(call extract,$(TRAIN),$(call spec,plain-photos))
$(F)/train-plain-photos-teran.h5: $(F)/plain-photos-teran/history.json
	$(call extract,$(TRAIN),$(call spec,plain-photos-teran)) $(SHARD)
$(F)/alone-train.h5: $(F)/plain-photos/history.json $(F)/alone.ids.txt
	$(call extract,$(F)/alone.ids.txt,$(call spec,plain-photos)?alone)
$(F)/alone-dev.h5: $(F)/plain-photos/history.json $(DEV)
	$(call extract,$(DEV),$(call spec,plain-photos)?alone)

# Measure encoders, and the codes of their vectors.
T := $(F)/photos.h5
FIT := --fit $(F)/train-photos.h5
LEARNED := $(T) $(F)/train-photos.h5
PLAIN := $(F)/plain-photos.h5 --fit $(F)/train-plain-photos.h5
ALONES := $(F)/alone-train.h5 $(F)/alone-dev.h5
BOOKS := $(F)/plain-codebooks
MODELS := TERN=$(F)/photos.h5 TERAN=$(F)/photos-teran.h5,mrsw
ifndef TINY
MODELS += 'TERN with alignment=$(F)/photos-align.h5' 'TERN with alignment=$(F)/photos-align.h5,mrsw' \
	VSRN=$(F)/photos-vsrn.h5 VSRN++=$(F)/photos-vsrnpp.h5 'TERN + VSRN++=$(F)/photos.h5+$(F)/photos-vsrnpp.h5'
endif
$(OUT)/models.csv: $(RECIPES:%=$(F)/%.h5)
	$(call rows,paper.models $(MODELS) --floor $(F)/regions.h5 --train $(TRAIN))
# Only by name: a TERN with and without hubs.npz.
$(OUT)/models-hubs.csv: $(F)/plain-photos.h5 $(F)/photos.h5
	$(call rows,paper.models TERN=$< 'TERN with hubs corrected=$(F)/photos.h5')
# Only by name: all scores of a TERAN.
TERAN := $(F)/photos-teran.h5
$(OUT)/models-teran.csv: $(F)/photos.h5 $(TERAN)
	$(call rows,paper.models TERN=$< TERAN=$(TERAN)$(comma)mrsw TERAN=$(TERAN)$(comma)mravgw TERAN=$(TERAN))
# Only by name: 16 training runs.
$(OUT)/vsrnpp-tables.csv: $(F)/regions.h5 $(TRAIN) $(DEV)
	$(call rows,paper.vsrnpp_tables $< --train $(TRAIN) --test $(DEV) --out $(F)/vsrnpp)
$(OUT)/table1.csv: $(filter %.h5,$(PLAIN)) $(ALONES)
	$(call rows,paper.table1 $(PLAIN) --alone-train $(F)/alone-train.h5 --alone-dev $(F)/alone-dev.h5 \
		--clusters $(CLUSTERS) --codebooks $(BOOKS))
$(OUT)/sparsity-tern.csv: $(OUT)/table1.csv
	$(call rows,paper.sparsity_recall $(PLAIN) --alone $(F)/alone-train.h5 --codebooks $(BOOKS) \
		--clusters $(CLUSTERS) $(FEW_SPARSITIES))
# Only by name: the rows of the README.
$(OUT)/flickr8k.csv: $(LEARNED)
	$(call rows,paper.sparsity_recall $(T) $(FIT) --vectors --sparsity 0.5)
$(OUT)/sparsity-teran.csv: $(F)/plain-photos-teran.h5 $(F)/train-plain-photos-teran.h5
	$(call rows,paper.sparsity_recall $< --fit $(F)/train-plain-photos-teran.h5 --clusters $(CLUSTERS) $(FEW_SPARSITIES))
$(OUT)/claims.csv: $(OUT)/table1.csv $(OUT)/sparsity-tern.csv $(OUT)/sparsity-teran.csv
	$(call rows,paper.claims $^)
$(OUT)/recall-postings-tern.csv: $(LEARNED) $(F)/with.npz
	$(call rows,paper.recall_postings $(T) $(FIT) $(FEW_TERMS) --codebook $(F)/with.npz)
$(F)/with.npz $(CODEBOOKS:%=$(F)/%.npz): $(F)/%.npz: $(F)/train-photos.h5
	$(BOC) build-codebook $< -o $@ $($*)
$(OUT)/all-codes.csv: $(T) $(F)/with.npz $(CODEBOOKS:%=$(F)/%.npz)
	$(call rows,paper.all_codes $(T) $(FIT) --codebook $(F)/with.npz $(foreach b,$(CODEBOOKS),--$(b) $(F)/$(b).npz) \
		$(FEW_CODES))

# Measure searches on painted scenes, whose contents are known, with the steps of make demo.
$(S)/photos/captions.csv:
	$(PAINT) $(@D) --count $(SCENES) --seed 2
$(S)/photos.h5: $(S)/photos/captions.csv demo/model/config.json
	$(BOC) extract $< -o $@ --encoder teran:demo/model
$(OUT)/scene-truth.csv: $(S)/photos.h5
	$(call rows,paper.scene_truth $(S)/photos $< --rerank mrsw --rerank dot $(FEW_QUERIES))
# Paint two more galleries, for learning and for choosing settings.
$(S)/learned/captions.csv:
	$(PAINT) $(@D) --count $(SCENES_LEARNED) --seed 3
$(S)/held/captions.csv:
	$(PAINT) $(@D) --count $(SCENES_HELD) --seed 4
$(S)/learned.h5 $(S)/held.h5: $(S)/%.h5: $(S)/%/captions.csv demo/model/config.json
	$(BOC) extract $< -o $@ --encoder teran:demo/model
$(S)/words.npz $(S)/terms.npz: $(S)/learned.h5
	$(BOC) build-codebook $< -o $@ $(if $(findstring words,$@),$(words),$(learned))
$(OUT)/rivals.csv: $(S)/photos.h5 $(S)/learned.h5 $(S)/held.h5 $(S)/words.npz $(S)/terms.npz
	$(call rows,rivals.compare $< --fit $(S)/learned.h5 --validation $(S)/held.h5 --words $(S)/words.npz \
		--learned $(S)/terms.npz $(FEW_RIVALS))

# Only by name: all codes on the scenes.
$(S)/plain.npz $(S)/centred.npz: $(S)/learned.h5
	$(BOC) build-codebook $< -o $@ --kind $(if $(findstring plain,$@),plain,centered)
$(OUT)/all-codes-scenes.csv: $(S)/photos.h5 $(S)/plain.npz $(S)/centred.npz $(S)/words.npz $(S)/terms.npz
	$(call rows,paper.all_codes $< --fit $(S)/learned.h5 --gallery $(S)/photos --rerank mrsw --codebook $(S)/plain.npz \
		--centred $(S)/centred.npz --words $(S)/words.npz --learned $(S)/terms.npz)

# Measure engines on real captions, and their growth on synthetic vectors.
ASKED := $(M)/captions.h5 $(M)/captions-queries.h5 --validation $(M)/captions-validation.h5
$(M)/captions.h5: $(DATA)/multi30k/captions.en.tsv.gz
	mkdir -p $(M)
	$(PY) bench.datasets.caption_vectors $< $@ $(FEW_CAPTIONS)
$(OUT)/recall-postings-captions.csv: $(M)/captions.h5
	$(call rows,paper.recall_postings $< --queries $(M)/captions-queries.h5 $(ONE_CODE))
$(OUT)/race-embedded.csv: $(M)/captions.h5
	$(call rows,race.race $(ASKED) --work $(OUT)/work/embedded $(FEW_INDEXES))
C := $(OUT)/composed
SENTENCES := $(C)/composed.h5 $(C)/composed-queries.h5 --validation $(C)/composed-validation.h5
$(C)/composed.h5: $(F)/regions.h5 $(TRAIN)
	mkdir -p $(C)
	$(PY) bench.datasets.composed $^ $@ $(FEW_COMPOSED)
$(OUT)/race-composed.csv: $(C)/composed.h5
	$(call rows,race.race $(SENTENCES) --work $(OUT)/work/composed $(FEW_INDEXES))
$(OUT)/race-filtered.csv: $(C)/composed.h5
	$(call rows,race.filtered $(SENTENCES) --work $(OUT)/work/filtered $(FEW_FILTERED))
$(OUT)/race-elasticsearch.csv: $(M)/captions.h5
	$(call rows,race.race $(ASKED) --work $(OUT)/work/elasticsearch --server elasticsearch-9 --limit 30000 --rounds 3)
$(OUT)/race-elasticsearch-rounds.csv: $(M)/captions.h5
	$(call rows,race.race $(ASKED) --work $(OUT)/work/elasticsearch --server elasticsearch-9 --limit 100000 --rounds 25 \
		--index 'elasticsearch-9 dictionary:8 text byte' --index 'elasticsearch-9 hnsw' --index 'elasticsearch-9 int8_hnsw')
$(OUT)/race-opensearch.csv: $(M)/captions.h5
	$(call rows,race.race $(ASKED) --work $(OUT)/work/opensearch --server opensearch-3-knn --limit 30000 --rounds 3)
CROWD := --count 100000 --clients 1 --clients 8 --clients 32 --recall .98
$(OUT)/crowd-elasticsearch.csv: $(C)/composed.h5
	$(call rows,race.crowd elasticsearch-9 $(SENTENCES) --work $(OUT)/work/crowd-elasticsearch $(CROWD))
$(OUT)/crowd-opensearch.csv: $(M)/captions.h5
	$(call rows,race.crowd opensearch-3-knn $(ASKED) --work $(OUT)/work/crowd-opensearch $(CROWD))
$(OUT)/race-million.csv:
	$(call rows,race.race --synthetic 1000000 --dim 256 --work $(OUT)/work/million --rounds 3 \
		--index 'boc dictionary:2' --index hnsw32)
# Races that are not measured in this run are read from docs/rows.
$(OUT)/race-ratios.csv: $(patsubst %,$(OUT)/%.csv,$(filter $(RACES),$(ROWS)))
	$(call rows,race.ratios $(foreach r,$(RACES),$$(ls $(OUT)/$r.csv 2> /dev/null || echo docs/rows/$r.csv)))
$(OUT)/growth.csv:
	mkdir -p $(OUT)
	$(call rows,speed.growth --work $(OUT)/work/growth --rounds 3 $(COUNTS:%=--n %) $(FEW_DIMENSIONS))
$(OUT)/growth-server.csv:
	mkdir -p $(OUT)
	$(call rows,speed.growth --work $(OUT)/work/growth --server elasticsearch-9 --rounds 10 --n 50000 --n 500000 --shards 1 --shards 3)
# Only by name: this benchmark takes hours and 10 GB.
$(OUT)/growth-ten-million.csv:
	mkdir -p $(OUT)
	$(call rows,speed.growth --work $(OUT)/work/growth --rounds 3 --n 10000000)
