#!/usr/bin/env bash
# Measures libsmp beside its peers: one run, one table (build/bench/results.md), one JSON (build/bench/results.json).
#
# bench.sh [--quick] [--made-up] [--traces DIR]... [--build BUILD_DIR]
#   --quick       fewer cases and one repetition: two minutes or so instead of ten
#   --made-up     replays what benches/made_up.py draws, too: programs of thirty kinds, no recordings
#   --traces DIR  traces of either version to replay besides those in traces/ (may be repeated)
#   --build DIR   a built tree of the top-level CMakeLists.txt (default: build/release, built here)
#
# Needs gcc, python3 with pip, and cargo; valgrind counts instructions, strace futex calls. The peers come from PyPI and
# the crate registry into build/bench. A peer that cannot be had or built is said to be missing, and the rest runs. Nothing here
# gates anything: the figures are for people. docs/performance.md tells the method.
quick=() traces=() made_up=() given=
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=(--quick) ;;
        --made-up) made_up=(--made-up) ;;
        --traces) [ -d "${2-}" ] || { echo "bench.sh: no such folder: ${2-}" >&2; exit 2; }
            traces+=(--traces "$(realpath "$2")"); shift ;;
        --build) given=$(realpath -m "${2?}"); shift ;;
        --help | -h) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "bench.sh: unknown option: $1" >&2; exit 2 ;;
    esac
    shift
done
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
need gcc=gcc g++=g++ cmake=cmake make=make python3=python3 valgrind=valgrind /usr/include/valgrind/callgrind.h=valgrind strace=strace
need_rust
build=${given:-$root/build/release}
work=$root/build/bench
programs=$work/programs
mkdir -p "$programs" "$work/wheels"
missing=()

# The library as shipped. A tree that the caller names is taken as it is.
[ -n "$given" ] || build_tree "$build" >"$work/libsmp.log" 2>&1 || { tail "$work/libsmp.log" >&2; die "libsmp did not build"; }
[ -f "$build/lib/libsmp.so" ] || die "no library in $build/lib"

flags=(-std=c++17 -O3 -DNDEBUG -g -Wall -Wextra -pthread -DHAVE_CALLGRIND)
compile() { # compile PROGRAM "PEERS" ARGUMENTS...: a peer that does not build is left out and said to be missing
    local program=$1 peers=$2
    shift 2
    # The headers of others and the library do not change behind our back; our own sources may.
    if [ -x "$programs/$program" ] && [ "$(cat "$programs/$program.flags" 2>/dev/null)" = "$*" ] &&
        [ -z "$(find benches include scripts/bench.sh "$work/peers-rs/release/libpeers.a" -newer "$programs/$program" \
            \( -name "*.?pp" -o -name "*.h" -o -name "*.a" -o -name bench.sh \) -print -quit 2>/dev/null)" ]; then
        return 0
    fi
    say "building $program"
    rm -f "$programs/$program"
    g++ "${flags[@]}" "$@" -o "$programs/$program" >"$work/$program.log" 2>&1 && { echo "$*" >"$programs/$program.flags"; return; }
    missing+=(--missing "$peers: did not compile, see $program.log")
    return 0
}

compile host "glibc and the floor" benches/host.cpp
[ -x "$programs/host" ] || { cat "$work/host.log" >&2; die "the harness did not compile"; }
# -z now: the dynamic linker's work at first calls is not the library's.
compile smp libsmp -Iinclude benches/smp.cpp -L"$build/lib" -lsmp -Wl,-rpath,"$build/lib" -Wl,-z,now
[ -x "$programs/smp" ] || { cat "$work/smp.log" >&2; die "libsmp's adapter did not compile"; }
compile pytorch "PyTorch's policy" benches/pytorch.cpp

# RMM and CUB are headers; what they ask of CUDA is answered by benches/stub.
wheels=(librmm-cu12==24.12.1 nvidia-cuda-cccl-cu12==12.6.77 nvidia-cuda-runtime-cu12==12.6.77 nvidia-cuda-nvcc-cu12==12.6.77)
headers=$work/headers
if [ ! -f "$headers/complete" ]; then
    say "fetching ${wheels[*]}"
    rm -rf "$headers"
    if python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$work/wheels" "${wheels[@]}" \
        >"$work/pip.log" 2>&1; then
        mkdir -p "$headers"
        for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$headers"; done
        touch "$headers/complete"
    fi
fi
if [ -f "$headers/complete" ]; then
    nvidia=(-isystem "$headers/librmm/include" -isystem "$headers/nvidia/cuda_cccl/include"
        -isystem "$headers/nvidia/cuda_runtime/include" -isystem "$headers/nvidia/cuda_nvcc/include"
        -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE -DSPDLOG_FMT_EXTERNAL -DFMT_HEADER_ONLY)
    compile rmm RMM "${nvidia[@]}" benches/rmm.cpp benches/stub/cudart.cpp -ldl
    compile cub CUB "${nvidia[@]}" benches/cub.cpp benches/stub/cudart.cpp
else
    missing+=(--missing "RMM and CUB: their packages could not be fetched, see pip.log")
    rm -f "$programs/rmm" "$programs/cub"
fi

# The allocators written in Rust.
say "building benches/peers-rs"
rm -f "$programs/peers"
if CARGO_TARGET_DIR=$work/peers-rs "${CARGO:-cargo}" build --release --locked --manifest-path benches/peers-rs/Cargo.toml \
    >"$work/peers-rs.log" 2>&1; then
    compile peers "cubecl, oxicuda, offset-allocator, rlsf and mimalloc" benches/peers.cpp \
        "$work/peers-rs/release/libpeers.a" -ldl -lm
else
    missing+=(--missing "cubecl, oxicuda, offset-allocator, rlsf and mimalloc: did not build, see peers-rs.log")
fi

[ ! -d traces ] || traces=(--traces "$root/traces" "${traces[@]}")
python3 benches/run.py --programs "$programs" --work "$work" --out "$work/results.json" \
    "${quick[@]}" "${made_up[@]}" "${traces[@]}" "${missing[@]}"
