# SPDX-License-Identifier: Apache-2.0
# A short front for CMake and Ninja. On Debian, missing packages are installed first (tools/packages).
#
#   make             all that can be built, build/isotach   make asan    build and test with ASan and UBSan
#   make test        build and run the tests                make tsan    the same with TSan
#   make demo        pretrain a Llama on the King James     make lint    formatting, clang-tidy, the house rules
#                    Bible and say what it has learnt       make install (PREFIX, DESTDIR)
#   make check-long  the tests that take minutes            make clean
#   make check-hosts ranks on two hosts: network namespaces, as root; make check-slurm: under a Slurm of its own
#   make chaos       kills a run 200 times, and what else breaks runs on purpose
#   make fuzz        every fuzzer for MINUTES (10), two at once; needs clang

BUILD ?= build
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
CTEST = ctest --output-on-failure --no-tests=error -j $(JOBS)

MINUTES ?= 10
.PHONY: all test demo asan tsan check-long check-hosts check-slurm chaos fuzz lint install clean packages packages-test

all: packages $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS)

packages:
	@tools/packages build

packages-test:
	@tools/packages build test

$(BUILD)/build.ninja: | packages
	@cmake -S . -B $(BUILD) -G Ninja

# CMake is run anew because a first configuration without cmocka has no tests.
test: packages-test
	@cmake -S . -B $(BUILD) -G Ninja >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@$(CTEST) --test-dir $(BUILD) -LE long

check-long: packages-test
	@cmake -S . -B $(BUILD) -G Ninja >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@$(CTEST) --test-dir $(BUILD) -L long

check-hosts check-slurm: packages-test
	@cmake -S . -B $(BUILD) -G Ninja >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --no-tests=error --test-dir $(BUILD) -V $(if $(filter check-slurm,$@),-R '^hosts/slurm',-R '^hosts/' -E slurm)

chaos: all
	@ISO_BUILD=$(BUILD) tests/chaos/kill --times 200 examples/tiny.yaml
	@ISO_BUILD=$(BUILD) tests/chaos/kill --times 100 --seed 2 examples/tiny.yaml log.durability=disk
	@if [ -x $(BUILD)/crash ]; then $(BUILD)/crash --points 10000; fi

fuzz: packages
	@cmake -S . -B $(BUILD)-fuzz -G Ninja -DISO_FUZZ=ON -DCMAKE_C_COMPILER=clang >/dev/null
	@cmake --build $(BUILD)-fuzz -j $(JOBS) --target fuzzers
	@tests/fuzz/run --build $(BUILD)-fuzz --minutes $(MINUTES) --jobs $(JOBS)

demo:
	@tools/packages build demo
	@cmake -S . -B $(BUILD) -G Ninja >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target isotach
	@tools/demo $(BUILD)/isotach

asan: packages-test
	@cmake -S . -B $(BUILD)-asan -G Ninja -DISO_SANITIZE=address,undefined >/dev/null
	@cmake --build $(BUILD)-asan -j $(JOBS)
	@$(CTEST) --test-dir $(BUILD)-asan -LE long

tsan: packages-test
	@cmake -S . -B $(BUILD)-tsan -G Ninja -DISO_SANITIZE=thread >/dev/null
	@cmake --build $(BUILD)-tsan -j $(JOBS)
	@$(CTEST) --test-dir $(BUILD)-tsan -LE long

lint: all
	@tools/packages lint
	@tools/lint $(BUILD)

install: all
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target isotach libisotach
	@cmake --install $(BUILD)

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan
