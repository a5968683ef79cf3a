#!/usr/bin/env bash
# All tests, in stages; stops at the first that fails. On a new machine with Rust and gcc it installs what it needs.
#
# test.sh [STAGE...]             only these stages (and what they build on); test.sh --list names them
#                                all but `pitfalls`, which runs only when named
#
# Ends with one line 'N passed, N failed', counting stages. The log of each stage is in build/logs/.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

build=$root/build
cargo=${CARGO:-cargo}
export CARGO_TERM_COLOR=never

# --- the stages

stage_format() { "$cargo" fmt --all --check -- --color never; }

stage_clippy() {
    "$cargo" clippy --workspace --all-targets --locked -- -D warnings
    "$cargo" clippy --workspace --all-targets --locked --features rule-switches -- -D warnings
    "$cargo" clippy --package smp-preload --all-targets --locked --features break-switches -- -D warnings
}

stage_docs() { RUSTDOCFLAGS="-D warnings" "$cargo" doc --workspace --no-deps --locked; }

stage_cargo_test() { "$cargo" test --workspace --locked; }

# The shipped build; the C tests against it, as C99 and C++17, shared and static.
stage_build() { build_tree "$build/release" -DSMP_BUILD_TESTS=ON; }
stage_ctest() { run_ctest "$build/release"; }

# What is taken to a machine with a GPU, run here over the stand-in driver: without kernels, but known to work.
stage_gpu_check() {
    rm -rf "$build/gpu-check"
    scripts/gpu_check.sh pack "$build/release" "$build/gpu-check"
    SMP_CUDA_LIBRARY=$build/release/simcuda/libsimcuda.so "$build/gpu-check/gpu_check.sh" run "$build/gpu-check"
    python3 -m json.tool "$build/gpu-check/gpu_check.json" >"$build/gpu-check/tidy.json"
    # Nothing is skipped there but what needs kernels, and the statements about graph memory nodes (six on either side).
    [ "$(grep -c '"result": "skipped"' "$build/gpu-check/tidy.json")" = 13 ]
}

stage_header() {
    # NVIDIA's cuda.h comes in a wheel of a few megabytes; nothing of it is run or shipped.
    local cuda
    wheels "$build/venv" --no-deps nvidia-cuda-runtime
    cuda=$(find "$build/venv" -name cuda.h -print -quit)
    [ -n "$cuda" ] || { echo "the nvidia-cuda-runtime wheel brought no cuda.h"; return 1; }
    c_tests/header/matrix.sh "$build/header" "$build/release/lib" "$(dirname "$cuda")"
}

stage_package() { c_tests/package/run.sh "$build/release" "$build/package"; }

stage_quickstart() { SMP_BUILD_DIR=$build scripts/quickstart.sh "$build/quickstart-prefix"; }

stage_asan() {
    build_tree "$build/asan" -DSMP_BUILD_TESTS=ON -DSMP_SANITIZE=address
    run_ctest "$build/asan"
}

stage_tsan() {
    build_tree "$build/tsan" -DSMP_BUILD_TESTS=ON -DSMP_SANITIZE=thread
    # The planted race of the canary is in C; this shows that the library's own accesses are watched as well.
    nm "$build/tsan/lib/libsmp.so" | grep __tsan_write >/dev/null || { echo "libsmp.so is not instrumented"; return 1; }
    run_ctest "$build/tsan"
}

stage_valgrind() {
    # memcheck on the shipped library; the stress programs are ThreadSanitizer's. A child's 255 ends xargs at once.
    local tests=("$build"/release/c_tests/c99.shared.test_* "$build"/release/c_tests/cxx17.static.test_*) test
    # (One limits the process's memory, which would be valgrind's; in a child what other threads had is lost with them.)
    for test in "${tests[@]}"; do [[ $test == *.memcheck || $test == *.test_host_memory || $test == *.test_fork ]] || printf '%s\0' "$test"; done |
        xargs -0 -P "$jobs" -I '{}' bash -c '
            if valgrind --quiet --error-exitcode=99 --leak-check=full --show-leak-kinds=definite \
                --errors-for-leak-kinds=definite "$1" >"$1.memcheck" 2>&1
            then echo "memcheck $(basename "$1")"
            else cat "$1.memcheck"; echo "memcheck: $(basename "$1") failed"; exit 255
            fi' memcheck '{}'
}

stage_instructions() { scripts/instructions.sh "$build/release"; }

stage_preload() { scripts/preload.sh; }
stage_pitfalls() { scripts/pitfalls.sh; }

stage_rules() { scripts/rules.sh; }

# The data checks of the CUDA device, with their replays, under valgrind and with the core built for AddressSanitizer.
stage_cuda_memory() {
    local out=${CARGO_TARGET_DIR:-$root/target}/debug host
    "$cargo" build --locked --package smp-cuda-tests --package simcuda
    export SMP_CUDA_LIBRARY=$out/libsimcuda.so
    valgrind --quiet --error-exitcode=99 --leak-check=no "$out/cuda-programs" adversarial 1 8 --replay
    # The stand-in is not built for it: as a driver would be, it is opened at run time.
    host=$(rustc -vV | sed -n 's/^host: //p')
    RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address "$cargo" build --locked --package smp-cuda-tests --target "$host" \
        --target-dir "$build/asan/cuda"
    out=$build/asan/cuda/$host/debug
    for mode in adversarial lazy eager; do "$out/cuda-programs" $mode 1 24 --replay; done
    for which in steady-state another-context wrong-device capturing forked recycled default-streams driver-figures; do
        SIMCUDA_DEVICES=2 "$out/cuda-cases" $which
    done
}

# Each rule of reuse on the CUDA device, turned off, shows as wrong bytes.
stage_cuda_rules() {
    "$cargo" test --locked --target-dir "$build/rules/cuda" --package smp-cuda-tests --features rule-switches --test data
}

stage_clients() { scripts/clients.sh; }

run_ctest() { # run_ctest TREE ARGS...
    local tree=$1
    shift
    # --no-tests=error: a build without tests is a failure, not a success.
    (cd "$tree" && ctest --output-on-failure --no-tests=error --parallel "$jobs" "$@")
}

# One line of what a stage did, from its log.
summary() {
    case $1 in
        cargo_test | cuda_rules) awk '/^test result:/ {p += $4; i += $8} END {printf "(%d tests, %d ignored)", p, i}' "$2" ;;
        ctest | asan | tsan | preload) sed -n 's/^\([0-9]*%\) tests passed.* out of \([0-9]*\)$/(\1 of \2 test programs)/p' "$2" ;;
        header | package) tail -n 1 "$2" | sed 's/^[a-z/.]*: \(.*\)$/(\1)/' ;;
        valgrind) echo "($(grep -c '^memcheck ' "$2") test programs)" ;;
        gpu_check) echo "($(grep -E '^[0-9]+ ok ' "$2"))" ;;
        instructions | rules | clients) echo; sed 's/^/    /' "$2" ;;
    esac
}

# --- running them

stages=(format clippy docs cargo_test build ctest gpu_check header package quickstart asan tsan valgrind preload pitfalls instructions rules cuda_rules cuda_memory clients)

if [ "${1:-}" = --list ]; then printf '%s\n' "${stages[@]}"; exit; fi
wanted=("$@")
for stage in "${wanted[@]}"; do
    declare -F "stage_$stage" >/dev/null || die "no stage '$stage'; there are: ${stages[*]}"
done
# What these test is built first, and never older than the sources.
for stage in "${wanted[@]}"; do
    case $stage in ctest | gpu_check | header | package | valgrind | instructions) wanted+=(build) && break ;; esac
done

need_rust
# rustup's minimal profile leaves these two out.
for tool in fmt clippy; do
    "$cargo" $tool --version >/dev/null 2>&1 || rustup component add "${tool/fmt/rustfmt}" ||
        die "cargo $tool is missing: rustup component add ${tool/fmt/rustfmt}"
done
need gcc=gcc g++=g++ cmake=cmake make=make pkg-config=pkg-config valgrind=valgrind \
    /usr/include/valgrind/callgrind.h=valgrind python3=python3 objdump=binutils
need_venv
mkdir -p "$build/logs"

passed=0 begun=$SECONDS
for stage in "${stages[@]}"; do
    if [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $stage "* ]]; then continue; fi
    # Takes each protection out of the preload library in turn: long, and only when asked for by name.
    if [ ${#wanted[@]} = 0 ] && [ "$stage" = pitfalls ]; then continue; fi
    printf '%-14s ' "$stage"
    start=$SECONDS
    log=$build/logs/$stage.log
    # A stage runs in a shell of its own with -e in force, which a function called in a condition would not have.
    set +e
    (set -euo pipefail; "stage_$stage") >"$log" 2>&1 </dev/null
    status=$?
    set -e
    if [ $status != 0 ]; then
        say "FAILED after $((SECONDS - start)) s; the end of $log:"
        tail -n 60 "$log"
        say ""
        say "stage '$stage' failed; run it alone with scripts/test.sh $stage"
        say "$passed passed, 1 failed"
        exit 1
    fi
    passed=$((passed + 1))
    say "ok, $((SECONDS - start)) s  $(summary "$stage" "$log")"
done
say "all in $((SECONDS - begun)) s"
say "$passed passed, 0 failed"
