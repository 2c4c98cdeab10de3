# carat: `make` builds ./carat and the libraries; `make help` lists the rest.
.DEFAULT_GOAL := all
ifeq ($(origin CC),default)
CC = gcc
endif
OBJCOPY ?= objcopy
NM ?= nm
BUILD ?= build
DEBUG ?=
# make V=1 shows the commands
Q = $(if $(V),,@)
MACHINE := $(shell $(CC) -dumpmachine)
PKGS = jansson libcurl libedit libmicrohttpd libxxhash libzstd

# Warnings stop a build by STRICT=1 alone, so that a compiler of next year still builds this. Sanitizer
# builds are never strict: checks inside loops make gcc warn where nothing is wrong.
STRICT ?=
WARN = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
       -Wwrite-strings -Wvla
CFLAGS_ALL = -std=c11 -D_GNU_SOURCE -O3 -g -fno-math-errno -fno-trapping-math -ffp-contract=off -fPIC \
             -fvisibility=hidden -pthread -Iinclude -I. $(WARN) $(if $(STRICT),$(if $(SAN),,-Werror)) \
             $(PKG_CFLAGS) $(SAN) $(CFLAGS)
ifneq ($(DEBUG),)
CFLAGS_ALL += -O2 -DCARAT_DEBUG=1
endif
# Sanitizer builds need line numbers alone: full debug information of unrolled kernels takes the
# compiler minutes.
CFLAGS_ALL += $(if $(SAN),-g1)
# Libraries may be outside /usr. Their headers are not ours to warn about, and a program finds them
# where the linker did.
PKG_CFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(PKGS) 2>/dev/null))
PKG_DIRS := $(shell pkg-config --libs-only-L $(PKGS) 2>/dev/null)
PKG_LIBS := $(PKG_DIRS) $(PKG_DIRS:-L%=-Wl,-rpath,%)
LIBS = $(PKG_LIBS) -ljansson -lxxhash -lzstd -lm -pthread $(SAN)

# The floors, from the bottom up. Tests sit beside the code as *_test.c.
LIB_DIRS = base num format backend backend/cpu kv model text spec engine
APP_DIRS = apps apps/hub apps/server
APP_LIBS = -lcurl -ledit -lmicrohttpd
ISA_SKIP := $(if $(findstring x86_64,$(MACHINE)),%_neon.c,%_avx2.c %_avx512.c %_avx512bf16.c)
src = $(filter-out %_test.c $(ISA_SKIP),$(sort $(wildcard $(addsuffix /*.c,$(1)))))
LIB_SRC := $(call src,$(LIB_DIRS))
APP_SRC := $(call src,$(APP_DIRS))
TEST_SRC := $(sort $(wildcard $(addsuffix /*_test.c,$(LIB_DIRS) $(APP_DIRS))) $(wildcard tests/*.c fuzz/*.c))
obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
# The kernels take the compiler longest, by far, so they come first: the rest is built beside them.
LIB_OBJ := $(call obj,$(filter %_avx512.c %_avx2.c,$(LIB_SRC)) $(filter-out %_avx512.c %_avx2.c,$(LIB_SRC)))

# CUDA=1 (make cuda) replaces backend/cuda_none.c by the CUDA device. The CUDA runtime is linked
# statically and looks for the driver when the device is opened. ARCH=90 builds for one kind of GPU;
# without it the build is for the kinds below and, as PTX, for later ones.
CUDA ?=
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc) nvcc)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
ARCH ?=
GENCODE = $(if $(ARCH),-gencode arch=compute_$(ARCH)$(,)code=sm_$(ARCH),$(foreach a,80 86 89 90,\
          -gencode arch=compute_$(a)$(,)code=sm_$(a)) -gencode arch=compute_90$(,)code=compute_90)
, := ,
NVFLAGS = -std=c++17 -O3 -Iinclude -I. $(GENCODE) -Xcompiler \
          "-O2 -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics"
CU_SRC := $(sort $(wildcard backend/cuda/*.cu))
CUDA_C := $(sort $(wildcard backend/cuda/*.c))
ifneq ($(CUDA),)
LIB_OBJ := $(filter-out $(BUILD)/backend/cuda_none.o,$(LIB_OBJ)) $(call obj,$(CUDA_C)) \
           $(CU_SRC:%.cu=$(BUILD)/%.cu.o)
CFLAGS_ALL += -isystem $(CUDA_HOME)/include
LIBS += -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
endif
# wgmma exists on compute capability 9.0 alone, and code for it runs nowhere else.
$(BUILD)/%_hopper.cu.o: GENCODE = -gencode arch=compute_90a$(,)code=sm_90a
$(BUILD)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
# Kernels take minutes, so each is compiled when a header of its own changes; one whose headers are
# not known yet, when any does.
CU_OBJ = $(CU_SRC:%.cu=$(BUILD)/%.cu.o) $(CU_SRC:%.cu=$(BUILD)/emu/%.cu.o)
$(foreach o,$(CU_OBJ),$(if $(wildcard $(o:.o=.d)),,$(o))): $(wildcard backend/cuda/*.cuh backend/cuda/*.h)
-include $(CU_OBJ:.o=.d)
APP_OBJ := $(call obj,$(APP_SRC))
TEST_OBJ := $(call obj,$(TEST_SRC))

VERSION := $(shell sed -n 's/^.define CARAT_VERSION_[A-Z]* //p' include/carat.h | paste -sd.)
SONAME = libcarat.so.$(firstword $(subst ., ,$(VERSION)))

.PHONY: all help check test test-isa asan ubsan sanitize tsan fuzz clean floors map vendor headers symbols format size \
        install uninstall cli docs results results-check
all: carat libcarat.a libcarat.so

# The program is built beside its objects, so that each kind of build tests its own.
carat: $(BUILD)/carat
	$(Q)cp -f $< $@
$(BUILD)/carat: $(LIB_OBJ) $(APP_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS) $(APP_LIBS)
# One object whose only global names are carat_*: a program may have a str_free of its own.
libcarat.a: $(LIB_OBJ)
	@rm -f $@
	$(Q)$(CC) -r -nostdlib -o $(BUILD)/libcarat.o $(LIB_OBJ)
	$(Q)$(OBJCOPY) --localize-hidden $(BUILD)/libcarat.o
	$(Q)$(AR) rcs $@ $(BUILD)/libcarat.o
libcarat.so: $(LIB_OBJ)
	$(Q)$(CC) -shared -Wl,-soname,$(SONAME) -o $@ $(LIB_OBJ) $(LDFLAGS) $(LIBS)
	$(Q)ln -sf $@ $(SONAME)
# The test program holds the code of apps/ too, except main().
$(BUILD)/carat_test: $(LIB_OBJ) $(TEST_OBJ) $(filter-out $(BUILD)/apps/main.o,$(APP_OBJ))
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS) $(APP_LIBS)

# Kernels for one instruction set each; cpu.c picks one at run time. Functions begin at cache lines:
# otherwise a change of another file moves the loops by 16 bytes, which cost attention a tenth.
# Sanitized, their addresses are checked by AddressSanitizer alone: the checks of addresses of the other
# sanitizer double the code, and the compiler's time. ThreadSanitizer checks the portable kernels, which
# are the same source: in vectors its checks take three quarters of all time.
KERNEL_SAN = $(if $(findstring undefined,$(SAN)),-fno-sanitize=alignment$(,)null$(,)object-size$(,)pointer-overflow) \
             $(if $(findstring thread,$(SAN)),-fno-sanitize=thread)
$(BUILD)/%_avx2.o: ISA = -mavx2 -mfma -mf16c -falign-functions=64 $(KERNEL_SAN)
$(BUILD)/%_avx512.o: ISA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni \
                           -mavx2 -mfma -mf16c -mprefer-vector-width=512 -falign-functions=64 $(KERNEL_SAN)
$(BUILD)/%_avx512bf16.o: ISA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 \
                               -mavx2 -mfma -mprefer-vector-width=512 $(KERNEL_SAN)
# The bundled model and its drafters become part of the program if the files exist.
DEMO := $(wildcard models/demo.gguf)
DEMO_DFLASH := $(if $(DEMO),$(wildcard models/demo-dflash.gguf))
DEMO_MTP := $(if $(DEMO),$(wildcard models/demo-mtp.gguf))
$(BUILD)/apps/bundled.o: $(DEMO) $(DEMO_DFLASH) $(DEMO_MTP)
$(BUILD)/apps/bundled.o: ISA = $(if $(DEMO),-DBUNDLED_MODEL='"$(DEMO)"') \
                               $(if $(DEMO_DFLASH),-DBUNDLED_DFLASH='"$(DEMO_DFLASH)"') \
                               $(if $(DEMO_MTP),-DBUNDLED_MTP='"$(DEMO_MTP)"')
# Files that the server sends as they are: its description, and the page at /.
PAGE := $(if $(wildcard apps/web/index.html),$(BUILD)/page.html)
$(BUILD)/apps/server/info.o: $(BUILD)/openapi.json
$(BUILD)/apps/server/info.o: ISA = -DCARAT_OPENAPI='"$(BUILD)/openapi.json"'
$(BUILD)/apps/server/page.o: $(PAGE) $(PAGE:=.gz)
$(BUILD)/apps/server/page.o: ISA = $(if $(PAGE),-DCARAT_PAGE='"$(PAGE)"' -DCARAT_PAGE_GZ='"$(PAGE).gz"')
$(BUILD)/openapi.json: apps/server/openapi.json include/carat.h
	@mkdir -p $(@D)
	$(Q)sed 's/@VERSION@/$(VERSION)/' $< > $@
# The page is one file, made of those in apps/web/.
$(BUILD)/page.html: $(wildcard apps/web/* apps/web/vendor/* apps/web/vendor/*/*)
	@mkdir -p $(@D)
	$(Q)sh apps/web/page.sh > $@.part
	@mv $@.part $@
$(BUILD)/page.html.gz: $(BUILD)/page.html
	$(Q)gzip -9 -n < $< > $@.part
	@mv $@.part $@
$(BUILD)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) $(ISA) -MMD -MP -c -o $@ $<
-include $(LIB_OBJ:.o=.d) $(APP_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(wildcard $(BUILD)/bench/*.d)

$(BUILD)/bench_tokenize: $(BUILD)/bench/tokenize.o $(BUILD)/tests/vocab_json.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
.PHONY: bench-tokenize
bench-tokenize: $(BUILD)/bench_tokenize ## times the tokenizer; bench/tokenize.c says more
	$(BUILD)/bench_tokenize

$(BUILD)/bench_grammar: $(BUILD)/bench/grammar.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
.PHONY: bench-grammar
bench-grammar: $(BUILD)/bench_grammar ## times masks of grammars; bench/grammar.c says more
	$(BUILD)/bench_grammar

$(BUILD)/bench_ops: $(BUILD)/bench/ops.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
.PHONY: bench-ops
bench-ops: $(BUILD)/bench_ops ## times the CPU device's ops; build/bench_ops [SUBSTRING] some of them
	$(BUILD)/bench_ops

$(BUILD)/bench_cold: $(BUILD)/bench/cold.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
.PHONY: bench-cold
bench-cold: $(BUILD)/bench_cold ## times experts that the CPU computes beside a GPU; bench/cold.c says more
	$(BUILD)/bench_cold

# The CUDA device against the CPU reference: on a GPU (cuda-check), and emulated (cuda-emu): the C++
# compiler compiles the kernels for this machine's CPU, where SAN=-fsanitize=address checks each access.
CHECK_C = $(wildcard tests/cuda/*.c) tests/fidelity_model.c tests/kv_rig.c tests/kv_codes.c \
          tests/dflash_file.c tests/mtp_rig.c
EMU = $(BUILD)/emu
EMU_C = $(filter-out backend/cuda_none.c,$(LIB_SRC)) $(CUDA_C) $(CHECK_C)
EMU_OBJ = $(EMU_C:%.c=$(EMU)/%.o) $(CU_SRC:%.cu=$(EMU)/%.cu.o) $(EMU)/tests/cuda/emu.o
EMU_CXX = $(CXX) -std=c++17 -O2 -g -ffp-contract=off -Itests/cuda -Iinclude -I. $(SAN)
.PHONY: cuda cuda-check cuda-emu
cuda: ## ./carat with the CUDA device; ARCH=90 for one kind of GPU
	$(MAKE) CUDA=1 BUILD=build/cuda carat libcarat.a
cuda-check: ## build/cuda/cuda_check, for a machine with a GPU (tools/gpu_check.sh)
	$(MAKE) CUDA=1 BUILD=build/cuda build/cuda/cuda_check
cuda-emu: $(EMU)/check ## the CUDA kernels, emulated, against the reference
	$(EMU)/check --quick
$(BUILD)/cuda_check: $(call obj,$(CHECK_C)) $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
-include $(patsubst %.o,%.d,$(call obj,$(CHECK_C)))
$(EMU)/check: $(EMU_OBJ)
	$(Q)$(CXX) $(SAN) -o $@ $^ $(LDFLAGS) $(LIBS)
$(EMU)/%_avx2.o: ISA = -mavx2 -mfma -mf16c
$(EMU)/%_avx512.o: ISA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 \
                         -mavx2 -mfma -mf16c -mprefer-vector-width=512
$(EMU)/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(Q)$(CC) -Itests/cuda $(CFLAGS_ALL) $(ISA) -MMD -MP -c -o $@ $<
-include $(EMU_OBJ:.o=.d) $(wildcard $(EMU)/bench/*.d)
$(EMU)/%.cu.o: %.cu tests/cuda/emu.h
	@mkdir -p $(@D)
	$(Q)$(EMU_CXX) -MMD -MP -include tests/cuda/emu.h -x c++ -c -o $@ $<
$(EMU)/tests/cuda/emu.o: tests/cuda/emu.cpp tests/cuda/emu.h
	@mkdir -p $(@D)
	$(Q)$(EMU_CXX) -c -o $@ $<

$(BUILD)/bench_snapshot: $(BUILD)/bench/snapshot.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
.PHONY: bench-snapshot
bench-snapshot: $(BUILD)/bench_snapshot ## times of saving and restoring sessions; bench/snapshot.c says how

$(BUILD)/bench_attend: $(BUILD)/bench/attend.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
.PHONY: bench-attend
bench-attend: $(BUILD)/bench_attend ## times and errors of attention over every format of cache
	$(BUILD)/bench_attend

$(BUILD)/bench_recall: $(BUILD)/bench/recall.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
$(BUILD)/bench_sparse_recall: $(BUILD)/bench/sparse_recall.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)

$(BUILD)/bench_lookup: $(BUILD)/bench/lookup.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
$(BUILD)/bench_streams: $(BUILD)/bench/streams.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
.PHONY: bench-streams
bench-streams: $(BUILD)/bench_streams ## builds build/bench_streams MODEL [STREAMS ...]: answers side by side
$(BUILD)/bench_attend_cuda: $(patsubst %.c,$(BUILD)/%.o,$(wildcard bench/attend_cuda*.c)) $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
.PHONY: bench-attend-cuda
bench-attend-cuda: ## build/cuda/bench_attend_cuda: the same on a GPU
	$(MAKE) CUDA=1 BUILD=build/cuda build/cuda/bench_attend_cuda
$(BUILD)/bench_matmul_cuda: $(BUILD)/bench/matmul_cuda.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $^ $(LDFLAGS) $(LIBS)
# The emulated bench compares kernels and times nothing: build/emu/bench_matmul_cuda --small
$(EMU)/bench_matmul_cuda: $(EMU)/bench/matmul_cuda.o $(filter-out $(CHECK_C:%.c=$(EMU)/%.o),$(EMU_OBJ))
	$(Q)$(CXX) $(SAN) -o $@ $^ $(LDFLAGS) $(LIBS)
.PHONY: bench-matmul-cuda
bench-matmul-cuda: ## build/cuda/bench_matmul_cuda: products of 1 to 32 rows on a GPU
	$(MAKE) CUDA=1 BUILD=build/cuda build/cuda/bench_matmul_cuda

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

# A user's program: plain C, the public header, the shared library.
$(BUILD)/chat: examples/chat.c include/carat.h $(wildcard include/carat/*.h) libcarat.so
	$(Q)$(CC) -std=c11 $(WARN) -Iinclude -o $@ $< -L. -lcarat -Wl,-rpath,$(CURDIR)

# One more than there are processors: some tests wait.
TEST_JOBS ?= $(shell expr 1 + $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1))
test: $(BUILD)/carat_test $(BUILD)/carat $(BUILD)/chat carat ## unit and end-to-end tests
	$(BUILD)/carat_test -j $(TEST_JOBS)

# The tests in which a whole model computes, with the kernels of a chosen instruction set. Tests of
# single kernels go through all instruction sets anyway. `CARAT_ISA=avx2 make test` runs every test.
KERNELS ?= portable
ISA_TESTS ?= engine/ demo_test hybrid_test session_ daemon_ server_answers cli_answers cli_logits
test-isa: $(BUILD)/carat_test $(BUILD)/carat $(BUILD)/chat carat ## KERNELS=avx2: the tests of whole models, with those kernels
	CARAT_ISA=$(KERNELS) $(BUILD)/carat_test -j $(TEST_JOBS) $(ISA_TESTS)

check: test floors map vendor symbols docs results-check fuzz-links ## test, plus the rules of folders, map, vendored files and docs

ASAN = -fsanitize=address -fno-omit-frame-pointer
UBSAN = -fsanitize=undefined -fno-sanitize-recover=all
# $(call sanitized,NAME,FLAGS,TESTS): a build of its own, and its tests.
define sanitized
	+$(MAKE) BUILD=build/$(1) DEBUG=1 SAN="$(2)" build/$(1)/carat_test build/$(1)/carat
	build/$(1)/carat_test -j $(TEST_JOBS) $(3)
endef
asan: ## check under AddressSanitizer
	$(call sanitized,asan,$(ASAN))
ubsan: ## check under UndefinedBehaviorSanitizer
	$(call sanitized,ubsan,$(UBSAN))
sanitize: ## check under both at once: one build, one run
	$(call sanitized,sanitize,$(ASAN) $(UBSAN))
# One target, linked with the instrumented library. Findings are written to build/fuzz/; a crash becomes
# a file of fuzz/corpus/ and thereby a test.
T ?= gguf
SECS ?= 60
fuzz: ## make fuzz T=gguf SECS=60: libFuzzer over fuzz/fuzz_$T.c (needs clang)
	$(MAKE) CC=clang BUILD=build/fuzz DEBUG=1 SAN="-fsanitize=fuzzer-no-link,address,undefined" build/fuzz/fuzz_$(T)
	@mkdir -p build/fuzz/found/$(T)
	build/fuzz/fuzz_$(T) -max_total_time=$(SECS) -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
	    -artifact_prefix=build/fuzz/$(T)- build/fuzz/found/$(T) fuzz/corpus/$(T)
# The floors that read bytes from outside: no kernels.
FUZZ_OBJ := $(call obj,$(call src,base num format text))
# $(call fuzz_also,NAME,FILES): what a target needs beside them.
define fuzz_also
$(BUILD)/fuzz_$(1) $(BUILD)/fuzz_$(1).linked: FUZZ_OBJ += $(call obj,$(2))
$(BUILD)/fuzz_$(1) $(BUILD)/fuzz_$(1).linked: $(call obj,$(2))
endef
# The reader of requests needs no connection, model or thread.
$(eval $(call fuzz_also,request,$(patsubst %,apps/server/%.c,request fields sampling forms known tools tool_kinds jsonw \
    answer api_chat api_completions api_responses api_messages api_llama api_ollama embed_form) \
    engine/sample_check.c))
$(eval $(call fuzz_also,headers,apps/server/headers.c))
$(eval $(call fuzz_also,http,$(patsubst %,apps/server/%.c,head routes fields sampling) engine/sample_check.c))
$(BUILD)/fuzz_http $(BUILD)/fuzz_http.linked: LIBS += -lmicrohttpd
$(eval $(call fuzz_also,snapshot,$(call src,kv) backend/ops.c backend/pass.c backend/page_moves.c))
$(eval $(call fuzz_also,draft,$(patsubst %,apps/%.c,convert_config convert_draft_config) \
    model/shapes.c $(wildcard model/*_shapes.c) model/draft_kind.c))
$(eval $(call fuzz_also,hub,$(call src,apps/hub)))
$(BUILD)/fuzz_hub $(BUILD)/fuzz_hub.linked: LIBS += -lcurl
$(eval $(call fuzz_also,toml,apps/toml.c))
$(eval $(call fuzz_also,modelfile,apps/modelfile.c))
$(eval $(call fuzz_also,vocab,engine/text_file.c))
$(eval $(call fuzz_also,experts,engine/expert_file.c))
$(BUILD)/fuzz_%: fuzz/fuzz_%.c $(FUZZ_OBJ)
	$(Q)$(CC) $(CFLAGS_ALL) -DCARAT_FUZZ=1 -fsanitize=fuzzer -o $@ $< $(FUZZ_OBJ) $(LIBS)
# Any C compiler finds out whether the targets have all they call; only clang can run them.
FUZZ_TARGETS := $(filter-out fuzz,$(patsubst fuzz/fuzz_%.c,%,$(wildcard fuzz/fuzz_*.c)))
.PHONY: fuzz-links
fuzz-links: $(FUZZ_TARGETS:%=$(BUILD)/fuzz_%.linked) ## fail where a fuzz target does not link
$(FUZZ_TARGETS:%=$(BUILD)/fuzz_%.linked): $(BUILD)/fuzz_%.linked: fuzz/fuzz_%.c $(FUZZ_OBJ)
	$(Q)$(CC) $(CFLAGS_ALL) -O0 -DCARAT_FUZZ=1 -shared -Wl,-z,defs -o $@ $< $(FUZZ_OBJ) $(LIBS)
# The tests with threads, and portable kernels in two threads. Empty: all tests, which takes long.
TSAN_TESTS ?= server_ jobs_may_come a_batch_ends is_written_now killed_at_any keeps_to_its_budget \
              pool_runs several_threads another_thread grammars_side_by_side \
              timeline_portable every_format_portable \
              cold_pool_answers cold_pool_closes cold_pool_threads_that
# Some of them fork; the child starts threads of its own and shares none.
tsan: export TSAN_OPTIONS = die_after_fork=0
tsan: ## the tests with threads, under ThreadSanitizer
	$(call sanitized,tsan,-fsanitize=thread,$(TSAN_TESTS))

floors: ## fail on an #include of a folder above (DESIGN.md)
	@tools/floors.sh
map: ## fail on a file that DESIGN.md does not name, or that does not exist
	@tools/map.sh
vendor: ## fail when a file of another project is not the one that apps/web/vendor/VENDOR names
	@cd apps/web/vendor && grep -v '^#' VENDOR | sha256sum -c --quiet
	@cd apps/web/vendor && find . -type f ! -name VENDOR | while read -r f; do \
	    grep -q "  $${f#./}$$" VENDOR || { echo "apps/web/vendor/VENDOR does not name $$f"; exit 1; }; done
headers: ## fail where a compiler at hand does not read the public headers, as C and as C++
	@tools/headers.sh
symbols: libcarat.a libcarat.so ## fail on a global name in a library that is not carat_*
	@bad=$$({ $(NM) -g --defined-only libcarat.a; $(NM) -D --defined-only libcarat.so; } | \
	    awk 'NF == 3 && $$3 !~ /^(carat_|_)/ { print $$3 }'); \
	[ -z "$$bad" ] || { echo "libcarat shows" $$bad; exit 1; }
format: ## format all C files with clang-format
	@git ls-files '*.c' '*.h' | xargs clang-format -i
size: ## the ten largest files and functions
	@tools/size.sh
carat.1: carat
	$(Q)./carat --man > $@
# docs/cli.md is what the program prints. `make cli` writes it, `make docs` compares.
cli: carat ## write docs/cli.md
	./carat --markdown > docs/cli.md
docs: carat ## fail when docs/cli.md is not what the program prints
	@./carat --markdown | cmp -s - docs/cli.md || \
	    { echo "docs/cli.md is not what the program prints; run 'make cli'"; exit 1; }
results: ## write README's table of speed from bench/results.csv
	bench/results.sh write
results-check: ## fail when that table is another, or results.csv is damaged
	@bench/results.sh check

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
DEST = $(DESTDIR)$(PREFIX)
DESTLIB = $(DESTDIR)$(LIBDIR)
# Where the shells look for completions, under PREFIX/share.
ZSH_DIR ?= zsh/site-functions
COMPLETIONS = bash-completion/completions/carat $(ZSH_DIR)/_carat fish/vendor_completions.d/carat.fish
install: all carat.1 ## program, libraries, header, man page and bundled model, to DESTDIR and PREFIX
	install -d $(DEST)/bin $(DEST)/include/carat $(DEST)/share/man/man1 $(DESTLIB)/pkgconfig
	install -m 755 carat $(DEST)/bin/carat
	install -m 644 include/carat.h include/carat_bench.h $(DEST)/include
	install -m 644 include/carat/*.h $(DEST)/include/carat
	install -m 644 libcarat.a $(DESTLIB)/libcarat.a
	install -m 755 libcarat.so $(DESTLIB)/libcarat.so.$(VERSION)
	ln -sf libcarat.so.$(VERSION) $(DESTLIB)/$(SONAME)
	ln -sf $(SONAME) $(DESTLIB)/libcarat.so
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$${prefix}/include' '' \
	    'Name: carat' 'Description: inference engine for language models' 'Version: $(VERSION)' \
	    'Libs: -L$${libdir} -lcarat' 'Libs.private: -ljansson -lxxhash -lzstd -lm -pthread' \
	    'Cflags: -I$${includedir}' > $(DESTLIB)/pkgconfig/carat.pc
	install -m 644 carat.1 $(DEST)/share/man/man1/carat.1
	install -d $(addprefix $(DEST)/share/,$(dir $(COMPLETIONS)))
	for f in $(COMPLETIONS); do case $$f in bash*) s=bash ;; zsh*) s=zsh ;; *) s=fish ;; esac; \
	    $(BUILD)/carat completion $$s > $(DEST)/share/$$f && chmod 644 $(DEST)/share/$$f || exit 1; done
	if [ -f models/demo.gguf ]; then install -d $(DEST)/share/carat && \
	    install -m 644 models/demo.gguf $(DEST)/share/carat/demo.gguf; fi
uninstall:
	rm -f $(DEST)/bin/carat $(DEST)/include/carat.h $(DEST)/include/carat_bench.h $(DESTLIB)/libcarat.a $(DESTLIB)/libcarat.so* \
	    $(DESTLIB)/pkgconfig/carat.pc $(DEST)/share/man/man1/carat.1 $(DEST)/share/carat/demo.gguf \
	    $(addprefix $(DEST)/share/,$(COMPLETIONS))
	rm -rf $(DEST)/include/carat

.PHONY: deb
deb: all carat.1 ## Debian packages of program, library and header, in build/deb
	@tools/deb.sh $(VERSION) $(BUILD)/deb BUILD=$(BUILD) $(if $(CUDA),CUDA=$(CUDA))

clean: ## remove what was built
	rm -rf build carat carat.1 libcarat.a libcarat.so*
