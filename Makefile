# carat: `make` builds ./carat and the libraries; `make help` lists the rest.
.DEFAULT_GOAL := all
ifeq ($(origin CC),default)
CC = gcc
endif
# A cache in front of CC serves the C++ compiler of the emulator too.
ifeq ($(origin CXX),default)
CXX = $(filter ccache,$(CC)) g++
endif
OBJCOPY ?= objcopy
STRIP ?= strip
NM ?= nm
# Objects and programs are in BUILD; a second one keeps builds of two kinds side by side.
BUILD ?= build
DEBUG ?=
# `make clean all` cleans first.
ifneq ($(filter clean,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif
, := ,
# The linker of programs; tools/dist.sh has another than the compiler.
LINK ?= $(CC)
# make V=1 shows the commands
Q = $(if $(V),,@)
MACHINE := $(shell $(CC) -dumpmachine)
# What a build depends on beside its sources: compilers, flags, lists of files. $(call noted,FILE,WORDS)
# is FILE, which holds these words and is written anew when they are others. So a build with other flags
# in the same BUILD makes everything anew.
same = $(if $(subst =$(1)=,,=$(2)=),,$(if $(subst =$(2)=,,=$(1)=),,same))
noted = $(1)$(if $(call same,$(strip $(file <$(1))),$(strip $(2))),,$(shell mkdir -p $(dir $(1)))$(file >$(1),$(strip $(2))))
PKGS = jansson libcurl libedit libjpeg libmicrohttpd libpng libwebp libxxhash libzstd sndfile

# Warnings stop a build by STRICT=1 alone, so that a compiler of next year still builds this. Sanitizer
# builds are never strict: checks inside loops make gcc warn where nothing is wrong.
STRICT ?=
WARN = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith \
       -Wwrite-strings -Wvla
# Full debug information takes the compiler a tenth of its time; DEBUG_INFO=-g1 has line numbers alone.
DEBUG_INFO ?= -g
CFLAGS_ALL = -std=c11 -D_GNU_SOURCE -O3 $(DEBUG_INFO) -fno-math-errno -fno-trapping-math -ffp-contract=off -fPIC \
             -fvisibility=hidden -pthread -Iinclude -I. $(WARN) $(if $(STRICT),$(if $(SAN),,-Werror)) \
             $(PKG_CFLAGS) $(SAN) $(CFLAGS)
ifneq ($(DEBUG),)
# Sanitizers triple what the compiler has to do. -Og takes a fifth less of its time than -O1: 19 % of 40 files that
# were drawn, 26 % of the CPU's kernels.
SAN_OPT ?= -Og
CFLAGS_ALL += $(if $(SAN),$(SAN_OPT),-O2) -DCARAT_DEBUG=1
endif
# Sanitizer builds need line numbers alone: full debug information of unrolled kernels takes the
# compiler minutes.
CFLAGS_ALL += $(if $(SAN),-g1)
# Libraries may be outside /usr. Their headers are not ours to warn about, and a program finds them
# where the linker did.
PKG_CFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(PKGS) 2>/dev/null))
PKG_DIRS := $(shell pkg-config --libs-only-L $(PKGS) 2>/dev/null)
PKG_LIBS := $(PKG_DIRS) $(PKG_DIRS:-L%=-Wl,-rpath,%)
LIBS = -Wl,--build-id $(PKG_LIBS) -lxxhash -lzstd -lm -ldl -pthread $(SAN)
# Kernels for one instruction set each; cpu.c picks one at run time. Functions begin at cache lines:
# otherwise a change of another file moves the loops by 16 bytes, which cost attention a tenth.
# Builds with sanitizers link those of the plain build (ISA_FROM). With AddressSanitizer they took half of the time of
# tests of whole models. The portable kernels have the same source and are checked; and operands of tests of ops
# (test_alloc) end before a page that nobody may touch.
KERNEL_SAN = $(if $(SAN),-fno-sanitize=all)
# Full debug information takes the compiler half of its time here: 25 of the 50 s of matmul_avx512.c.
ISA_AVX2 = -g1 -mavx2 -mfma -mf16c -falign-functions=64 $(KERNEL_SAN)
ISA_AVX512 = -g1 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni \
             -mavx2 -mfma -mf16c -mprefer-vector-width=512 -falign-functions=64 $(KERNEL_SAN)
ISA_AVX512BF16 = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 \
                 -mavx2 -mfma -mprefer-vector-width=512 $(KERNEL_SAN)
ISA_AMX = $(ISA_AVX512BF16) -mamx-tile -mamx-bf16
# Tests compute little beside the product, except those of kernels, and this takes the compiler half the time. What
# UBSan looks for is faults of the product: in the tests' own lines it takes the compiler a fifth more.
TEST_OPT ?= $(if $(SAN),-Og $(if $(findstring undefined,$(SAN)),-fno-sanitize=undefined),-O1)
FLAGS := $(call noted,$(BUILD)/flags,$(filter-out ccache,$(CC)) $(shell $(CC) --version 2>/dev/null | head -n 1) $(CFLAGS_ALL) \
         $(ISA_AVX2) $(ISA_AVX512) $(ISA_AMX) $(TEST_OPT))

# The floors, from the bottom up. Tests sit beside the code as *_test.c.
LIB_DIRS = base image sound num format backend backend/cpu kv model text spec engine
SERVER = apps/server/dialects apps/server/http apps/server/answers apps/server/models apps/server
APP_DIRS = apps apps/hub apps/mcp apps/media $(SERVER)
CODECS = -lpng -ljpeg -lwebp -lsndfile
APP_LIBS = -ljansson $(CODECS) -lcurl -ledit -lmicrohttpd
ISA_SKIP := $(if $(findstring x86_64,$(MACHINE)),%_neon.c,%_avx2.c %_avx512.c %_avx512bf16.c %_amx.c)
src = $(filter-out %_test.c $(ISA_SKIP),$(sort $(wildcard $(addsuffix /*.c,$(1)))))
# Files of pictures and sound are read by programs alone: libcarat takes pixels and samples, and is linked with no
# codec.
CODEC_SRC := $(addprefix image/,decode.c exif.c jpeg.c png.c webp.c) sound/decode.c
LIB_SRC := $(filter-out $(CODEC_SRC),$(call src,$(LIB_DIRS)))
APP_SRC := $(call src,$(APP_DIRS)) $(CODEC_SRC)
TEST_SRC := $(sort $(wildcard $(addsuffix /*_test.c,$(LIB_DIRS) $(APP_DIRS))) $(wildcard tests/*.c fuzz/*.c))
obj = $(patsubst %.c,$(BUILD)/%.o,$(1))
# T=WORDS: files of tests that one of the words occurs in, or in whose path it does; and those without
# tests of their own.
T ?=
ifneq ($(strip $(T)),)
T_WORDS = $(foreach w,$(T),-e '$(w:fuzz_corpus_%=%)')
# Every test includes files: a word with a slash is part of a path.
T_INSIDE = $(foreach w,$(T),$(if $(findstring /,$(w)),,-e '$(w:fuzz_corpus_%=%)'))
T_OBJ := $(call obj,$(filter-out %_test.c fuzz/fuzz_%,$(TEST_SRC)) $(shell { printf '%s\n' $(TEST_SRC) | \
         grep -F $(T_WORDS); $(if $(strip $(T_INSIDE)),grep -lF $(T_INSIDE) $(TEST_SRC),:); } | grep -E '_test\.c$$|^fuzz/fuzz_' | sort -u))
endif
# The kernels take the compiler longest, by far, so they come first: the rest is built beside them.
ISA_SRC := $(filter %_avx512.c %_avx2.c %_avx512bf16.c %_amx.c,$(LIB_SRC))
ISA_FROM ?= $(BUILD)
ISA_OBJ := $(ISA_SRC:%.c=$(ISA_FROM)/%.o)
CORE_OBJ := $(ISA_OBJ) $(call obj,$(filter-out $(ISA_SRC),$(LIB_SRC)))
# In a build without CUDA the host code of the CUDA device plans for GPUs that are not here: none.h is the
# runtime's header, and never.c has the launchers and calls of the runtime that a plan does not make.
NONE = $(BUILD)/none
CUDA_HOST := $(sort $(wildcard backend/cuda/*.c backend/cuda/*/*.c))
NONE_OBJ := $(CUDA_HOST:%.c=$(NONE)/%.o)
LIB_OBJ := $(CORE_OBJ) $(NONE_OBJ) $(NONE)/never.o
# JSON files and safetensors are read by programs alone: libcarat is not linked with jansson.
APP_ONLY := $(call obj,base/json.c format/safetensors.c)

# CUDA=1 (make cuda) adds kernels and runtime, in programs that are in
# BUILD/cuda. The CUDA runtime is linked statically and looks for the driver when the device is opened.
# ARCH=90 builds for one kind of GPU; without it the build is for the kinds below that NVCC knows and, as
# PTX, for later ones. AS=80 with it compiles the kernels of 8.x for that GPU: to be checked there, with
# CARAT_CARD or --card. MARKS=1 notes when each kernel begins (backend/cuda/marks.cuh).
CUDA ?= $(if $(filter cuda,$(MAKECMDGOALS)),1)
OUT := $(BUILD)$(if $(CUDA),/cuda)
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc /usr/local/cuda-*/bin/nvcc) nvcc)
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
ARCH ?=
CU_AS = $(if $(filter command,$(firstword $(origin AS))),$(AS),$(ARCH))
# Those of 8.0, 8.6, 8.9, 9.0, 10.0 and 12.0; the last two since CUDA 12.8.
ARCHS = 80 86 89 90 $(filter 100 120,$(subst compute_,,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)))
GENCODE = $(if $(ARCH),-gencode arch=compute_$(CU_AS)$(,)code=sm_$(ARCH),$(foreach a,$(ARCHS),\
          -gencode arch=compute_$(a)$(,)code=sm_$(a)) -gencode arch=compute_90$(,)code=compute_90)
NVFLAGS = -std=c++17 -O3 -Iinclude -I. $(GENCODE) -Xcompiler \
          "-O2 -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics"
CU_SRC := $(sort $(wildcard backend/cuda/*.cu backend/cuda/*/*.cu))
CUDA_C := $(filter-out backend/cuda/none.c,$(CUDA_HOST))
CUDA_OBJ := $(CORE_OBJ) $(call obj,$(CUDA_C)) $(CU_SRC:%.cu=$(BUILD)/%.cu.o)
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
NVFLAGS_NOTED := $(call noted,$(BUILD)/nvcc,$(NVCC) $(shell $(NVCC) --version 2>/dev/null | tail -n 1) $(NVFLAGS) $(MARKS))
$(call obj,$(CUDA_C) $(wildcard tests/cuda/*.c bench/*_cuda*.c)): ISA = -isystem $(CUDA_HOME)/include
# wgmma exists on compute capability 9.0 alone, and code for it runs nowhere else.
$(BUILD)/%_hopper.cu.o: GENCODE = -gencode arch=compute_90a$(,)code=sm_90a
# Files that give elementwise.cuh a lambda.
$(addprefix $(BUILD)/backend/cuda/,elementwise.cu.o vision.cu.o audio.cu.o): NVFLAGS += --extended-lambda
$(BUILD)/%.cu.o: %.cu $(BUILD)/nvcc
	@mkdir -p $(@D)
	$(Q)$(NVCC) $(NVFLAGS) $(if $(MARKS),-DCARAT_MARKS='"$(*F)"') -MMD -MP -MF $(@:.o=.d) -c -o $@ $<
# Kernels take minutes, so each is compiled when a header of its own changes; one whose headers are
# not known yet, when any does.
CU_OBJ = $(CU_SRC:%.cu=$(BUILD)/%.cu.o) $(CU_SRC:%.cu=$(BUILD)/emu/%.cu.o)
$(foreach o,$(CU_OBJ),$(if $(wildcard $(o:.o=.d)),,$(o))): $(wildcard backend/cuda/*.cuh backend/cuda/*.h backend/cuda/*/*.cuh backend/cuda/*/*.h)
-include $(CU_OBJ:.o=.d)
APP_OBJ := $(call obj,$(APP_SRC))
TEST_OBJ := $(call obj,$(TEST_SRC))

VERSION := $(shell sed -n 's/^.define CARAT_VERSION_[A-Z]* //p' include/carat.h | paste -sd.)
SONAME = libcarat.so.$(firstword $(subst ., ,$(VERSION)))

.PHONY: all help check check-all test t test-isa asan ubsan sanitize tsan fuzz clean floors map vendor headers symbols format size \
        install uninstall cli cards docs results results-check
all: carat libcarat.a libcarat.so

LINKED := $(call noted,$(BUILD)/linked,$(filter-out ccache,$(LINK)) $(LDFLAGS) $(LIBS) $(APP_LIBS) $(CUDA_LIBS) $(LIB_OBJ) $(CUDA_OBJ) $(APP_OBJ) $(TEST_OBJ))
objects = $(filter %.o,$^)
# Programs are built beside their objects, so that each kind of build tests its own, with debug
# information. Those in the source tree are copies of one kind: programs and shared library without debug
# information, which is in carat.debug and libcarat.so.debug, where debuggers look.
SHOWN := $(call noted,build/shown,$(OUT))
carat libcarat.so: %: $(OUT)/% $(SHOWN)
	$(Q)$(OBJCOPY) --only-keep-debug $< $@.debug
	@chmod -x $@.debug
	$(Q)$(STRIP) --strip-unneeded -o $@.part $<
	$(Q)$(OBJCOPY) --add-gnu-debuglink=$@.debug $@.part
	@mv -f $@.part $@
	$(if $(findstring .so,$@),@ln -sf $@ $(SONAME))
libcarat.a: $(OUT)/libcarat.a $(SHOWN)
	$(Q)cp -f $< $@
OUT_OBJ := $(if $(CUDA),$(CUDA_OBJ),$(LIB_OBJ))
OUT_LIBS = $(LIBS) $(if $(CUDA),$(CUDA_LIBS))
$(OUT)/carat: $(OUT_OBJ) $(APP_OBJ) $(BUILD)/linked
	@mkdir -p $(@D)
	$(Q)$(LINK) -o $@ $(objects) $(LDFLAGS) $(OUT_LIBS) $(APP_LIBS)
# One object whose only global names are carat_*: a program may have a str_free of its own.
$(OUT)/libcarat.a: $(filter-out $(APP_ONLY),$(OUT_OBJ)) $(BUILD)/linked
	@mkdir -p $(@D)
	@rm -f $@
	$(Q)$(CC) -r -nostdlib -o $(@:.a=.o) $(objects)
	$(Q)$(OBJCOPY) --localize-hidden $(@:.a=.o)
	$(Q)$(AR) rcs $@ $(@:.a=.o)
$(OUT)/libcarat.so: $(filter-out $(APP_ONLY),$(OUT_OBJ)) $(BUILD)/linked
	@mkdir -p $(@D)
	$(Q)$(CC) -shared $(if $(SAN),,-Wl$(,)-z$(,)defs) -Wl,-soname,$(SONAME) -o $@ $(objects) $(LDFLAGS) $(OUT_LIBS)
# The test program holds the code of apps/ too, except main().
TESTED_OBJ := $(LIB_OBJ) $(filter-out $(BUILD)/apps/main.o,$(APP_OBJ))
$(BUILD)/carat_test: $(TESTED_OBJ) $(TEST_OBJ) $(BUILD)/linked
	$(Q)$(CC) -o $@ $(objects) $(LDFLAGS) $(LIBS) $(APP_LIBS)
# The same with the tests of T alone.
T_LINKED := $(if $(T),$(call noted,$(BUILD)/t_linked,$(T_OBJ)))
$(BUILD)/t_carat_test: $(TESTED_OBJ) $(T_OBJ) $(BUILD)/linked $(T_LINKED)
	$(Q)$(CC) -o $@ $(objects) $(LDFLAGS) $(LIBS) $(APP_LIBS)

$(call obj,$(filter-out num/% backend/%,$(TEST_SRC))): ISA = $(TEST_OPT)
$(BUILD)/%_avx2.o: ISA = $(ISA_AVX2)
$(BUILD)/%_avx512.o: ISA = $(ISA_AVX512)
$(BUILD)/%_avx512bf16.o: ISA = $(ISA_AVX512BF16)
$(BUILD)/%_amx.o: ISA = $(ISA_AMX)
# The bundled model, its drafters and its vision tower become part of the program if the files exist.
DEMO := $(wildcard models/demo.gguf)
DEMO_DFLASH := $(if $(DEMO),$(wildcard models/demo-dflash.gguf))
DEMO_MTP := $(if $(DEMO),$(wildcard models/demo-mtp.gguf))
DEMO_MMPROJ := $(if $(DEMO),$(wildcard models/demo-mmproj.gguf))
BUNDLED := $(call noted,$(BUILD)/bundled,$(DEMO) $(DEMO_DFLASH) $(DEMO_MTP) $(DEMO_MMPROJ))
$(BUILD)/apps/bundled.o: $(DEMO) $(DEMO_DFLASH) $(DEMO_MTP) $(DEMO_MMPROJ) $(BUNDLED)
$(BUILD)/apps/bundled.o: ISA = $(if $(DEMO),-DBUNDLED_MODEL='"$(DEMO)"') \
                               $(if $(DEMO_DFLASH),-DBUNDLED_DFLASH='"$(DEMO_DFLASH)"') \
                               $(if $(DEMO_MTP),-DBUNDLED_MTP='"$(DEMO_MTP)"') \
                               $(if $(DEMO_MMPROJ),-DBUNDLED_MMPROJ='"$(DEMO_MMPROJ)"')
# Files that the server sends: the schemas of its description, and the page at /.
PAGE := $(if $(wildcard apps/web/index.html),$(BUILD)/page.html)
$(BUILD)/apps/server/http/openapi.o: apps/server/http/schemas.json
$(BUILD)/apps/server/http/openapi.o: ISA = -DCARAT_SCHEMAS='"apps/server/http/schemas.json"'
$(BUILD)/apps/server/http/page.o: $(PAGE) $(PAGE:=.gz)
$(BUILD)/apps/server/http/page.o: ISA = $(if $(PAGE),-DCARAT_PAGE='"$(PAGE)"' -DCARAT_PAGE_GZ='"$(PAGE).gz"')
$(BUILD)/apps/licences.o: $(BUILD)/licences.txt
$(BUILD)/apps/licences.o: ISA = -DCARAT_LICENCES='"$(BUILD)/licences.txt"'
$(BUILD)/licences.txt: tools/licences.sh LICENSE num/grids.licence.txt apps/web/vendor/VENDOR $(wildcard apps/web/vendor/licences/*)
	@mkdir -p $(@D)
	$(Q)sh $< text > $@.part
	@mv $@.part $@
# The page is one file, made of those in apps/web/.
$(BUILD)/page.html: $(wildcard apps/web/* apps/web/vendor/* apps/web/vendor/*/*) include/carat/sampling_settings.h
	@mkdir -p $(@D)
	$(Q)CC='$(CC)' sh apps/web/page.sh > $@.part
	@mv $@.part $@
$(BUILD)/page.html.gz: $(BUILD)/page.html
	$(Q)gzip -9 -n < $< > $@.part
	@mv $@.part $@
$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) $(ISA) -MMD -MP -c -o $@ $<
$(NONE)/cuda_runtime_api.h:
	@mkdir -p $(@D)
	@echo '#include "backend/cuda/none.h"' > $@
$(NONE)/%.o: %.c $(BUILD)/flags $(NONE)/cuda_runtime_api.h
	@mkdir -p $(@D)
	$(Q)$(CC) -I$(NONE) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<
$(NONE)/never.c: $(NONE_OBJ)
	$(Q)$(CC) -r -nostdlib -o $(NONE)/all.o $^
	@$(NM) -u $(NONE)/all.o | sed -n 's/^ *U \(cu[a-zA-Z0-9_]*\)$$/int \1(void);\nint \1(void)\n{\n    return 801; \/* cudaErrorNotSupported *\/\n}/p' > $@.part
	@mv -f $@.part $@
$(NONE)/never.o: $(NONE)/never.c
	$(Q)$(CC) $(CFLAGS_ALL) -c -o $@ $<
-include $(LIB_OBJ:.o=.d) $(patsubst %.o,%.d,$(call obj,$(CUDA_C))) $(APP_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(wildcard $(BUILD)/bench/*.d)

# Programs that time or measure one part; the file of each says what it does.
BENCHES = attend offload grammar lookup ops pace recall record snapshot sparse_recall streams tokenize
$(BENCHES:%=$(BUILD)/bench_%): $(BUILD)/bench_%: $(BUILD)/bench/%.o $(LIB_OBJ)
	$(Q)$(CC) -o $@ $(objects) $(LDFLAGS) $(LIBS) -ljansson
$(BUILD)/bench_tokenize: $(BUILD)/tests/vocab_json.o
$(BUILD)/bench_pace: $(BUILD)/tests/pace_rig.o
.PHONY: bench-tokenize bench-grammar bench-ops bench-offload bench-pace bench-snapshot bench-attend bench-streams
bench-tokenize: $(BUILD)/bench_tokenize ## times the tokenizer
bench-grammar: $(BUILD)/bench_grammar ## times masks of grammars
bench-ops: $(BUILD)/bench_ops ## times the CPU device's ops; build/bench_ops [SUBSTRING] some of them
bench-offload: $(BUILD)/bench_offload ## times experts that the CPU computes beside a GPU
bench-pace: $(BUILD)/bench_pace ## what a gap between tokens costs, by arithmetic and by engine/pace.c
bench-snapshot: $(BUILD)/bench_snapshot ## times of saving and restoring sessions
bench-attend: $(BUILD)/bench_attend ## times and errors of attention over every format of cache
bench-streams: $(BUILD)/bench_streams ## builds build/bench_streams MODEL [STREAMS ...]: answers side by side
bench-tokenize bench-grammar bench-ops bench-offload bench-pace bench-snapshot bench-attend:
	$<

# The CUDA device against the CPU reference: on a GPU (cuda-check), and emulated (cuda-emu): the C++
# compiler compiles the kernels for this machine's CPU, where SAN=-fsanitize=address checks each access.
SYNTH_C = $(filter-out %_test.c,$(wildcard apps/synth*.c apps/term*.c apps/options*.c))
CHECK_C = $(wildcard tests/cuda/*.c) tests/fidelity_model.c tests/kv_rig.c tests/kv_codes.c \
          tests/dflash_file.c tests/mtp_rig.c tests/lora_rig.c tests/splits_rig.c tests/synth_file.c $(SYNTH_C)
CHECK_OBJ := $(call obj,$(CHECK_C))
# Emulated are the files that see CUDA's headers; tests/cuda/ has headers that replace them.
EMU = $(BUILD)/emu
EMU_C := $(CUDA_C) $(filter tests/cuda/%,$(CHECK_C))
EMU_DEVICE := $(CUDA_C:%.c=$(EMU)/%.o) $(CU_SRC:%.cu=$(EMU)/%.cu.o) $(EMU)/tests/cuda/emu.o
EMU_CHECK := $(EMU_C:%.c=$(EMU)/%.o) $(call obj,$(filter-out tests/cuda/%,$(CHECK_C)))
# -Og: the compiler takes half of the time that it takes with -O1, and the checks run as long.
EMU_CXX = $(CXX) -std=c++17 -Og -g1 -ffp-contract=off -Itests/cuda -Iinclude -I. $(SAN)
EMU_NOTED := $(call noted,$(BUILD)/emulator,$(filter-out ccache,$(EMU_CXX)))
.PHONY: cuda cuda-check cuda-emu cuda-emu-all cuda-compile
cuda: carat libcarat.a ## ./carat with the CUDA device; ARCH=90 for one kind of GPU
cuda-check: $(BUILD)/cuda/cuda_check ## build/cuda/cuda_check, for a machine with a GPU (tools/gpu_check.sh)
# $(call emulated,OPTIONS): the checks in parts, several for each processor: they last differently.
define emulated
	@rm -f $(EMU)/log.*
	@n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); m=$$((12 * n)); seq 0 $$((m - 1)) | xargs -P $$n -I'{}' sh -c \
	    '$(EMU)/check $(1) --part "{}/$$0" >$(EMU)/log.{} 2>&1 || { grep -v "^ok" $(EMU)/log.{}; exit 1; }' $$m
	@tail -qn 1 $(EMU)/log.*
endef
cuda-emu: $(EMU)/check ## the CUDA kernels, emulated, against the reference: a few checks of each op
	$(call emulated,--brief --ops)
cuda-emu-all: $(EMU)/check ## all checks, whole passes and sessions too; minutes to an hour
	$(call emulated,--quick)
# SECS=90: compilations end after so many seconds, and the files left are named.
cuda-compile: ## do all CUDA files compile for 8.6 and 9.0? (needs nvcc; keeps objects by content)
	@tools/cuda_compile.sh '$(NVCC)' $(SECS)
$(BUILD)/cuda/cuda_check: $(CHECK_OBJ) $(CUDA_OBJ) $(BUILD)/linked
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $(objects) $(LDFLAGS) $(LIBS) -ljansson $(CUDA_LIBS)
-include $(CHECK_OBJ:.o=.d)
$(EMU)/check: $(sort $(CORE_OBJ) $(EMU_DEVICE) $(EMU_CHECK)) $(BUILD)/linked
	$(Q)$(CXX) $(SAN) -rdynamic -o $@ $(objects) $(LDFLAGS) $(LIBS) -ljansson
$(EMU)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(Q)$(CC) -Itests/cuda $(CFLAGS_ALL) -MMD -MP -c -o $@ $<
-include $(EMU_CHECK:.o=.d) $(wildcard $(EMU)/bench/*.d)
$(addprefix $(EMU)/backend/cuda/,product/matmul_rows.cu.o experts/matmul_experts.cu.o attend/split8.cu.o): EMU_CALLS = -include tests/cuda/emu_calls.h
$(EMU)/%.cu.o: %.cu tests/cuda/emu.h tests/cuda/emu_calls.h $(BUILD)/emulator
	@mkdir -p $(@D)
	$(Q)$(EMU_CXX) -MMD -MP -include tests/cuda/emu.h $(EMU_CALLS) -x c++ -c -o $@ $<
$(EMU)/tests/cuda/emu.o: tests/cuda/emu.cpp tests/cuda/emu.h tests/cuda/emu_trace.h $(BUILD)/emulator
	@mkdir -p $(@D)
	$(Q)$(EMU_CXX) -c -o $@ $<

ATTEND_CUDA := $(call obj,$(wildcard bench/attend_cuda*.c))
$(BUILD)/cuda/bench_attend_cuda: $(ATTEND_CUDA) $(CUDA_OBJ)
MATMUL_CUDA := $(wildcard bench/matmul_cuda*.c)
$(BUILD)/cuda/bench_matmul_cuda: $(call obj,$(MATMUL_CUDA)) $(CUDA_OBJ)
$(BUILD)/cuda/bench_attend_cuda $(BUILD)/cuda/bench_matmul_cuda: $(BUILD)/linked
	@mkdir -p $(@D)
	$(Q)$(CC) -o $@ $(objects) $(LDFLAGS) $(LIBS) -ljansson $(CUDA_LIBS)
# The emulated bench compares kernels and times nothing: build/emu/bench_matmul_cuda --small
$(EMU)/bench_matmul_cuda: $(MATMUL_CUDA:%.c=$(EMU)/%.o) $(CORE_OBJ) $(EMU_DEVICE)
	$(Q)$(CXX) $(SAN) -o $@ $(objects) $(LDFLAGS) $(LIBS) -ljansson
.PHONY: bench-attend-cuda bench-matmul-cuda
bench-attend-cuda: $(BUILD)/cuda/bench_attend_cuda ## build/cuda/bench_attend_cuda: the same on a GPU
bench-matmul-cuda: $(BUILD)/cuda/bench_matmul_cuda ## build/cuda/bench_matmul_cuda: products of 1 to 32 rows on a GPU

# Where one of these files was removed.
NOTED = $(addprefix $(BUILD)/,flags nvcc linked t_linked bundled emulator) build/shown
$(NOTED):
	@mkdir -p $(@D) && echo unknown > $@

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

# A user's program: plain C, the public header, the shared library.
$(BUILD)/chat: examples/chat.c include/carat.h $(wildcard include/carat/*.h) libcarat.so
	$(Q)$(CC) -std=c11 $(WARN) -Iinclude -o $@ $< -L. -lcarat '-Wl,-rpath,$(CURDIR)' 

# One more than there are processors: some tests wait.
TEST_JOBS ?= $(shell expr 1 + $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1))
test: $(BUILD)/carat_test $(BUILD)/carat $(BUILD)/chat carat ## unit and end-to-end tests; TEST_LONG=1: the long suite
	$(BUILD)/carat_test -j $(TEST_JOBS)
# Its own program, so that files of tests that have nothing to do with it are neither compiled nor linked.
t: ## make t T=WORD: the tests whose name or file holds WORD, from a program with them alone
	@[ -n "$(strip $(T))" ] || { echo 'usage: make t T=WORD'; exit 2; }
	+@$(MAKE) --no-print-directory T='$(T)' $(BUILD)/t_carat_test $(BUILD)/carat
	$(BUILD)/t_carat_test -j $(TEST_JOBS) $(T)

# Programs with the kernels of a chosen instruction set. Tests of kernels and of fidelity go through all
# instruction sets anyway. `CARAT_ISA=avx2 make test` runs every test.
KERNELS ?= portable
ISA_TESTS ?= demo_answers hybrid_test cli_answers
test-isa: $(BUILD)/carat_test $(BUILD)/carat $(BUILD)/chat carat ## KERNELS=avx2: some tests of whole models, with those kernels
	CARAT_ISA=$(KERNELS) $(BUILD)/carat_test -j $(TEST_JOBS) $(ISA_TESTS)

check: test floors map vendor symbols docs results-check fuzz-links ## test, plus the rules of folders, map, vendored files and docs
check-all: export TEST_LONG = 1
check-all: check ## the long suite: every shape, every instruction set, every test under the sanitizers
	for isa in portable avx2; do ! CARAT_ISA=$$isa ./carat run -n 1 hello </dev/null >/dev/null 2>&1 || \
	    CARAT_ISA=$$isa $(BUILD)/carat_test -j $(TEST_JOBS) engine/ demo_test session_ daemon_ server_answers cli_logits $(ISA_TESTS) || exit 1; done
	+$(MAKE) sanitize
	+$(MAKE) tsan
	+$(MAKE) cuda-emu-all

ASAN = -fsanitize=address -fno-omit-frame-pointer
UBSAN = -fsanitize=undefined -fno-sanitize-recover=all
# $(call sanitized,NAME,FLAGS): a build of its own. Its tests are a line of their own: a `+` in a canned recipe
# holds for all of its lines, and `make -n` would run the tests. The builds have targets too, so that they can be
# made beside the tests of another, which often wait.
sanitized = +$(MAKE) BUILD=build/$(1) ISA_FROM=$(ISA_FROM) DEBUG=1 SAN="$(2)" build/$(1)/carat_test build/$(1)/carat
# The longest tests start first, also in the first run.
as_plain = @cp -n build/carat_test.times build/$(1)/carat_test.times 2>/dev/null || true
.PHONY: sanitize-built tsan-built
asan: $(ISA_OBJ) ## check under AddressSanitizer
	$(call sanitized,asan,$(ASAN))
	$(call as_plain,asan)
	build/asan/carat_test -j $(TEST_JOBS)
ubsan: $(ISA_OBJ) ## check under UndefinedBehaviorSanitizer
	$(call sanitized,ubsan,$(UBSAN))
	$(call as_plain,ubsan)
	build/ubsan/carat_test -j $(TEST_JOBS)
# A fault of undefined behaviour is a trap here, which AddressSanitizer reports with its place: the compiler takes an
# eighth less than for calls that also say which fault it is, as `make ubsan` does.
sanitize: export ASAN_OPTIONS = handle_sigill=1
sanitize-built: $(ISA_OBJ)
	$(call sanitized,sanitize,$(ASAN) $(UBSAN) -fsanitize-undefined-trap-on-error)
sanitize: sanitize-built ## check under both at once: one build, one run
	$(call as_plain,sanitize)
	build/sanitize/carat_test -j $(TEST_JOBS)
# Targets are linked with the instrumented library. Findings are written to build/fuzz/; a crash becomes a
# file of fuzz/corpus/ and thereby a test. Of the last line of a log, exec/s says whether a target sees much:
# below 2000 it needs smaller inputs or less to do for each.
SECS ?=
FUZZ_TARGETS := $(filter-out fuzz,$(patsubst fuzz/fuzz_%.c,%,$(wildcard fuzz/fuzz_*.c)))
FUZZ_RUN = $(or $(strip $(T)),$(FUZZ_TARGETS))
# libFuzzer traces a comparison for each check of a pointer, about half of the time of a grammar. The suite has these
# checks when it replays the corpus; inputs that fuzzing finds are not shown to them before they are in it.
FUZZ_SAN = -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=pointer-overflow,null,alignment
fuzz: ## libFuzzer over every target, 60 s each; T=gguf SECS=300: over fuzz/fuzz_gguf.c (needs clang)
	+$(MAKE) CC=clang BUILD=build/fuzz DEBUG=1 SAN_OPT=-O2 TEST_OPT=-O2 SAN="$(FUZZ_SAN)" \
	    $(FUZZ_RUN:%=build/fuzz/fuzz_%)
	@mkdir -p $(FUZZ_RUN:%=build/fuzz/found/%)
	@printf '%s\n' $(FUZZ_RUN) | xargs -P $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1) -I'{}' sh -c \
	    'build/fuzz/fuzz_{} -max_total_time=$(or $(SECS),60) -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
	    -print_final_stats=1 -artifact_prefix=build/fuzz/{}- build/fuzz/found/{} fuzz/corpus/{} >build/fuzz/{}.log 2>&1 \
	    && echo "{}: $$(grep -o "average_exec_per_sec: *[0-9]*" build/fuzz/{}.log | grep -o "[0-9]*$$") inputs a second" \
	    || { tail -n 40 build/fuzz/{}.log; echo "{}: build/fuzz/{}.log"; exit 1; }'
# The floors that read bytes from outside: no kernels.
FUZZ_OBJ := $(call obj,$(call src,base num format text))
# What binds files of models; vision.c asks how large pictures become.
MODELS = $(filter-out backend/wrap%.c,$(call src,model kv backend)) image/patches.c image/resize.c sound/mel.c
# $(call fuzz_also,NAME,FILES): what a target needs beside them.
define fuzz_also
$(BUILD)/fuzz_$(1) $(BUILD)/fuzz_$(1).linked: FUZZ_OBJ += $(call obj,$(2))
$(BUILD)/fuzz_$(1) $(BUILD)/fuzz_$(1).linked: $(call obj,$(2))
endef
SAMPLING = engine/sampling_settings.c
# The reader of requests needs no connection, model or thread.
$(eval $(call fuzz_also,request,$(patsubst %,apps/server/dialects/%.c,request fields sampling forms known tools tool_kinds \
    parts answer api_chat api_completions api_responses api_responses_read api_messages api_llama api_ollama embed_form) \
    apps/jsonw.c apps/media/pictures.c $(call src,image sound) \
    $(SAMPLING) engine/compress_parse.c))
$(foreach f,png jpeg webp,$(eval $(call fuzz_also,$(f),$(call src,image))))
$(eval $(call fuzz_also,sound,$(call src,sound)))
$(foreach f,png jpeg webp sound request,$(BUILD)/fuzz_$(f) $(BUILD)/fuzz_$(f).linked): LIBS += $(CODECS)
$(eval $(call fuzz_also,headers,$(patsubst %,apps/server/%.c,http/head dialects/fields dialects/sampling) \
    $(SAMPLING) engine/compress_parse.c))
$(eval $(call fuzz_also,multipart,apps/server/http/multipart.c))
$(eval $(call fuzz_also,http,$(patsubst %,apps/server/%.c,http/head http/routes dialects/fields dialects/sampling) \
    $(SAMPLING) engine/compress_parse.c))
$(BUILD)/fuzz_http $(BUILD)/fuzz_http.linked: LIBS += -lmicrohttpd
$(eval $(call fuzz_also,snapshot,$(call src,kv) $(wildcard backend/ops*.c) backend/lora.c backend/pass.c backend/ranks.c backend/page_moves.c))
$(eval $(call fuzz_also,draft,$(patsubst %,apps/%.c,convert_fields convert_families convert_draft_config) \
    $(MODELS)))
$(eval $(call fuzz_also,table,tests/table_file.c $(MODELS)))
$(eval $(call fuzz_also,lora,tests/table_file.c $(MODELS)))
$(eval $(call fuzz_also,draft_load,$(MODELS)))
$(eval $(call fuzz_also,tokenizer_json,apps/convert_vocab.c apps/convert_scores.c apps/convert_fields.c \
    apps/convert_families.c $(SAMPLING) \
    $(MODELS)))
$(eval $(call fuzz_also,hub,$(SAMPLING) $(filter-out apps/hub/pull.c apps/hub/preview.c apps/hub/head.c apps/hub/mmproj.c,$(call src,apps/hub))))
$(BUILD)/fuzz_hub $(BUILD)/fuzz_hub.linked: LIBS += -lcurl
$(eval $(call fuzz_also,mcp,$(SAMPLING) $(filter-out apps/hub/pull.c apps/hub/preview.c apps/hub/head.c apps/hub/mmproj.c,$(call src,apps/hub apps/mcp))))
$(BUILD)/fuzz_mcp $(BUILD)/fuzz_mcp.linked: LIBS += -lcurl
$(eval $(call fuzz_also,cache,$(SAMPLING) $(filter-out apps/hub/pull.c apps/hub/preview.c apps/hub/head.c apps/hub/mmproj.c,$(call src,apps/hub))))
$(BUILD)/fuzz_cache $(BUILD)/fuzz_cache.linked: LIBS += -lcurl
$(eval $(call fuzz_also,daemon,apps/daemon_parse.c apps/ids.c $(SAMPLING)))
$(eval $(call fuzz_also,conversations,apps/conversations.c apps/state_dir.c apps/talk_json.c apps/jsonw.c $(SAMPLING)))
$(eval $(call fuzz_also,toml,apps/toml.c))
$(eval $(call fuzz_also,modelfile,apps/modelfile.c))
$(eval $(call fuzz_also,vocab,engine/text_file.c))
$(eval $(call fuzz_also,experts,engine/expert_file.c))
$(BUILD)/fuzz_%: fuzz/fuzz_%.c $(FUZZ_OBJ)
	$(Q)$(CC) $(CFLAGS_ALL) -DCARAT_FUZZ=1 -fsanitize=fuzzer -o $@ $< $(FUZZ_OBJ) $(LIBS) -ljansson
# Any C compiler finds out whether the targets have all they call; only clang can run them.
.PHONY: fuzz-links
fuzz-links: $(FUZZ_TARGETS:%=$(BUILD)/fuzz_%.linked) $(BENCHES:%=$(BUILD)/bench/%.o) ## fail where a fuzz target does not link, or a bench does not compile
$(FUZZ_TARGETS:%=$(BUILD)/fuzz_%.linked): $(BUILD)/fuzz_%.linked: fuzz/fuzz_%.c $(FUZZ_OBJ)
	$(Q)$(CC) $(CFLAGS_ALL) -O0 -DCARAT_FUZZ=1 -shared -Wl,-z,defs -o $@ $< $(FUZZ_OBJ) $(LIBS) -ljansson
# The tests with threads, and portable kernels in two threads. Empty: all tests, which takes long.
TSAN_TESTS ?= tests/server_test tests/clients_server tests/router_server sixteen_clients_of_a_pool others_are_answered_while server_soak recordings_number jobs_may_come a_batch_ends apps/mcp/mcp_test tests/mcp_server \
              is_written_now keeps_to_its_budget pool_runs several_threads another_thread \
              grammars_side_by_side timeline_portable every_format_portable \
              offload_pool_answers offload_pool_closes offload_pool_threads_that
# Some of them fork; the child starts threads of its own and shares none.
tsan: export TSAN_OPTIONS = die_after_fork=0
tsan-built: $(ISA_OBJ)
	+$(MAKE) BUILD=build/tsan ISA_FROM=$(ISA_FROM) DEBUG=1 SAN=-fsanitize=thread T='$(TSAN_TESTS)' build/tsan/t_carat_test build/tsan/carat
tsan: tsan-built ## the tests with threads, under ThreadSanitizer
	build/tsan/t_carat_test -j $(TEST_JOBS) -x server_memory_is_bounded $(TSAN_TESTS)

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
symbols: libcarat.a libcarat.so ## fail on a global name in a library that is not carat_*, and on jansson or codecs in it
	@bad=$$($(NM) -D --undefined-only libcarat.so | awk '$$2 ~ /^(json_|curl_|MHD_|png_|jpeg_|WebP|sf_)/ { print $$2 }'); \
	[ -z "$$bad" ] || { echo "libcarat.so needs" $$bad; exit 1; }
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
cards: carat ## write docs/cards.md
	tools/cards.sh ./carat > docs/cards.md.part
	@mv docs/cards.md.part docs/cards.md
docs: carat ## fail when docs/cli.md or docs/cards.md is not what the program says
	@tools/cards.sh ./carat | cmp -s - docs/cards.md || \
	    { echo "docs/cards.md is not what the planner says; run 'make cards'"; exit 1; }
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
install: all carat.1 ## program, libraries, headers, man page and bundled model, to DESTDIR and PREFIX
	install -d "$(DEST)/bin/.debug" "$(DEST)/include/carat" "$(DEST)/share/man/man1" "$(DESTLIB)/pkgconfig" \
	    "$(DESTLIB)/.debug"
	install -m 755 carat "$(DEST)/bin/carat"
	install -m 644 carat.debug "$(DEST)/bin/.debug/carat.debug"
	install -m 644 include/carat.h include/carat_bench.h "$(DEST)/include"
	install -m 644 include/carat/*.h "$(DEST)/include/carat"
	install -m 644 libcarat.a "$(DESTLIB)/libcarat.a"
	install -m 755 libcarat.so "$(DESTLIB)/libcarat.so.$(VERSION)"
	install -m 644 libcarat.so.debug "$(DESTLIB)/.debug/libcarat.so.debug"
	ln -sf libcarat.so.$(VERSION) "$(DESTLIB)/$(SONAME)"
	ln -sf $(SONAME) "$(DESTLIB)/libcarat.so"
	printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$${prefix}/include' '' \
	    'Name: carat' 'Description: inference engine for language models' 'Version: $(VERSION)' \
	    'Libs: -L$${libdir} -lcarat' 'Libs.private: -lxxhash -lzstd -lm -pthread' \
	    'Cflags: -I$${includedir}' > "$(DESTLIB)/pkgconfig/carat.pc"
	install -m 644 carat.1 "$(DEST)/share/man/man1/carat.1"
	for f in $(COMPLETIONS); do case $$f in bash*) s=bash ;; zsh*) s=zsh ;; *) s=fish ;; esac; \
	    install -d "$(DEST)/share/$${f%/*}" && ./carat completion $$s > "$(DEST)/share/$$f" && \
	    chmod 644 "$(DEST)/share/$$f" || exit 1; done
	if [ -f models/demo.gguf ]; then install -d "$(DEST)/share/carat" && \
	    install -m 644 models/demo.gguf "$(DEST)/share/carat/demo.gguf"; fi
uninstall:
	rm -f "$(DEST)/bin/carat" "$(DEST)/bin/.debug/carat.debug" "$(DEST)/include/carat.h" "$(DEST)/include/carat_bench.h" \
	    "$(DESTLIB)/libcarat.a" "$(DESTLIB)"/libcarat.so* "$(DESTLIB)/.debug/libcarat.so.debug" \
	    "$(DESTLIB)/pkgconfig/carat.pc" "$(DEST)/share/man/man1/carat.1" "$(DEST)/share/carat/demo.gguf"
	rm -rf "$(DEST)/include/carat"
	cd "$(DEST)/share" && rm -f $(COMPLETIONS)

.PHONY: deb
deb: all carat.1 ## Debian packages of program, library and header, in build/deb
	@tools/deb.sh $(VERSION) $(BUILD)/deb BUILD=$(BUILD) $(if $(CUDA),CUDA=$(CUDA))

.PHONY: dist
dist: ## programs for other machines: x86-64 and aarch64, any glibc from 2.28 on, in build/dist
	@tools/dist.sh $(VERSION)

clean: ## remove what was built
	rm -rf build carat carat.debug carat.1 libcarat.a libcarat.so*
