#!/usr/bin/env bash
# Long runs, for hours or days: the core against the reference model, wild handles, data checks on the CUDA device over
# the stand-in, threads that do everything at once, and the threads under ThreadSanitizer, in turns, with new seeds each
# time. Stops at the first finding; every part prints the seeds it used.
#
# soak.sh [MINUTES]              how long (default: 480); SMP_SOAK_SEED: where the seeds begin (default: the time)
# If cargo-fuzz is installed, the coverage-guided fuzzer of fuzz/ takes its turn as well.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cargo=${CARGO:-cargo}
export CARGO_TERM_COLOR=never
minutes=${1:-480}
[[ $minutes =~ ^[0-9]+$ ]] && [ "$minutes" -gt 0 ] || die "not a number of minutes: $minutes"
end=$((SECONDS + minutes * 60))
seed=${SMP_SOAK_SEED:-$(date +%s)}
part=$((minutes * 60 / 8))          # a part's share: several rounds fit even into a short soak
[ $part -le 1800 ] || part=1800
[ $part -ge 20 ] || part=20
log=$root/build/logs
mkdir -p "$log"

need_rust
need gcc=gcc g++=g++ cmake=cmake make=make
say "soak: $minutes minutes, seeds from $seed, logs in build/logs/soak-*.log"

turn() { # turn NAME COMMAND...
    local name=$1 start=$SECONDS
    shift
    [ $SECONDS -lt $end ] || return 0
    printf '%6d s  %-10s ' "$SECONDS" "$name"
    if ! "$@" >"$log/soak-$name.log" 2>&1; then
        say "FINDING after $((SECONDS - start)) s, seed $seed; the end of build/logs/soak-$name.log:"
        tail -n 60 "$log/soak-$name.log"
        exit 1
    fi
    say "nothing found in $((SECONDS - start)) s  $(grep -hE '^(seeds|SMP_WILD_SEED)' "$log/soak-$name.log" | sed -n 1p)"
}

property() {
    SMP_PROP_SEED=$seed SMP_PROP_SECONDS=$part "$cargo" test --release --locked --package smp-reference --test agree \
        -- --nocapture
}
wild() {
    # Runs of two million calls: a run keeps what its wild calls created, some gigabytes, until it ends.
    local run
    for run in 0 1 2 3 4 5 6 7; do
        SMP_WILD_SEED=$((seed + run)) SMP_WILD_CALLS=2000000 "$cargo" test --release --locked --package smp \
            --test wild_handles -- --nocapture any_handle || return 1 # no -e inside a condition
    done
}
# A thousand seeds of each kind of program on the CUDA device over the stand-in, every byte compared.
data() {
    SMP_CUDA_SEED=$seed SMP_CUDA_SEEDS=1000 "$cargo" test --release --locked --package smp-cuda-tests --test data \
        -- --nocapture
}
# Threads that are interrupted wherever they change a block's record.
calls() {
    SMP_THREADS_SEED=$seed SMP_THREADS_SECONDS=$part "$cargo" test --release --locked --package smp-core --test threads \
        -- --nocapture
}
threads() {
    build_tree "$root/build/tsan" -DSMP_BUILD_TESTS=ON -DSMP_SANITIZE=thread >/dev/null &&
        (cd "$root/build/tsan" && ctest --output-on-failure --no-tests=error --repeat until-fail:3)
}
fuzz() { (cd fuzz && RUSTC_BOOTSTRAP=1 "$cargo" fuzz run wild_handles -- -max_len=65536 -max_total_time=$part); }

# Release builds with the checks that the release profile leaves out.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true \
    CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
export CARGO_TARGET_DIR=$root/build/soak
while [ $SECONDS -lt $end ]; do
    turn property property
    turn wild wild
    turn data data
    turn calls calls
    turn threads threads
    if "$cargo" fuzz --version >/dev/null 2>&1; then turn fuzz fuzz; fi
    seed=$((seed + 1000000))
done
say "soak: nothing found in $((SECONDS / 60)) minutes"
