#!/usr/bin/env bash
# The checks for a machine with a GPU, a C compiler, CMake and, for the kernels, nvcc; no Rust and no network needed there.
#
# gpu_check.sh pack BUILD FOLDER     here: the package built in BUILD, the checks and this script, to be taken there
# gpu_check.sh run FOLDER [JSON]     there: builds and runs them; writes one JSON file (default FOLDER/gpu_check.json)
#
# Exit status of run: 0, or 1 if a check of libsmp failed. A driver that differs from a statement is told, not a failure.
# SMP_CUDA_LIBRARY names another driver library, such as the stand-in: what needs kernels to run is then skipped and listed.
set -euo pipefail

die() { printf 'gpu_check.sh: %s\n' "$*" >&2; exit 1; }

pack() {
    local root
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    [ -d "$1" ] || die "no build folder $1: cmake -S . -B $1 && cmake --build $1"
    mkdir -p "$2"
    cmake --install "$1" --prefix "$2/prefix" >/dev/null
    rm -rf "$2/checks"
    cp -r "$root/c_tests/gpu" "$2/checks"
    cp "$root/scripts/gpu_check.sh" "$2/"
    printf 'take %s to the machine with the GPU, and run gpu_check.sh run FOLDER there\n' "$2"
}

run() {
    local folder json program ptx status=0
    folder=$(cd "$1" && pwd)
    json=${2:-$folder/gpu_check.json}
    cmake -S "$folder/checks" -B "$folder/build" -DCMAKE_PREFIX_PATH="$folder/prefix" \
        -DCMAKE_BUILD_TYPE=RelWithDebInfo >"$folder/build.log" 2>&1 ||
        { cat "$folder/build.log"; die "cannot configure the checks"; }
    cmake --build "$folder/build" >>"$folder/build.log" 2>&1 ||
        { cat "$folder/build.log"; die "cannot build the checks"; }
    program=$folder/build/gpu_check
    ptx=$folder/build/kernels.ptx
    [ -e "$ptx" ] || ptx=
    "$program" device >"$folder/device.txt" || die "no CUDA device; SMP_CUDA_LIBRARY may name a driver library"
    : >"$folder/results.txt"
    for what in "conformance driver" "conformance smp" "blocks${ptx:+ $ptx}" timing; do
        # shellcheck disable=SC2086  # two words
        if ! TMPDIR=$folder timeout 300 "$program" $what >>"$folder/results.txt"; then
            status=1
            printf '{"check": "%s", "target": "smp", "result": "failed", "detail": "%s"}\n' "${what%% *}" \
                "the run ended early or a check failed" >>"$folder/results.txt"
        fi
    done
    {
        printf '{\n"date": "%s",\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
        sed 's/$/,/' "$folder/device.txt"
        printf '"kernels": %s,\n"results": [\n' "$([ -n "$ptx" ] && echo true || echo false)"
        sed '$!s/$/,/' "$folder/results.txt"
        printf ']\n}\n'
    } >"$json"
    local count
    for count in ok differs skipped failed; do
        printf '%s %s  ' "$(grep -c "\"result\": \"$count\"" "$json" || true)" "$count"
    done
    printf '\n%s\n' "$json"
    grep -E '"result": "(differs|failed|skipped)"' "$json" || true
    return $status
}

case ${1:-} in
    pack) [ $# = 3 ] || die "gpu_check.sh pack BUILD FOLDER"; pack "$2" "$3" ;;
    run) [ $# -ge 2 ] || die "gpu_check.sh run FOLDER [JSON]"; run "$2" "${3:-}" ;;
    *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
