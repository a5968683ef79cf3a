#!/usr/bin/env bash
# Tests libsmp_preload.so over the stand-in driver, with programs built on NVIDIA's public headers.
#
# preload.sh [CTEST ARGUMENTS]   for instance -R lookups, or -LE seeds to leave the long runs out
#
# SEEDS=1000         adversarial orders that the programs of the runtime run in (default 100)
# PROGRAMS=1000      random programs of calls, compared without and with the library (default 6); -R random_programs: only these
# CLIENTS=1          also NVIDIA's Python packages, by scripts/clients.sh (some 850 MB are installed)
# FEATURES=...       cargo features of the library; scripts/pitfalls.sh uses break-switches
# TREE=DIR           where to build (default build/preload)
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tree=${TREE:-$root/build/preload}
venv=$root/build/venv
need_rust
need gcc=gcc g++=g++ cmake=cmake make=make python3=python3 readelf=binutils

# NVIDIA's headers, compiler and static runtime, CUB and RMM come in wheels; nothing of them is shipped.
packages=(nvidia-cuda-runtime nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-cccl librmm-cu13 rapids-logger)
wheels "$venv" --no-deps "${packages[@]}"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cuda=$(find "$site/nvidia" -name cuda.h -print -quit)
[ -n "$cuda" ] || die "the nvidia-cuda-runtime wheel brought no cuda.h"
cuda=$(dirname "$cuda")

"${CARGO:-cargo}" build --quiet --locked -p smp-preload ${FEATURES:+--features "smp-preload/$FEATURES"}
"${CARGO:-cargo}" build --quiet --locked -p simcuda -p smp
cargo_out=${CARGO_TARGET_DIR:-$root/target}/debug
# The stand-in is found under the driver's name in a folder of its own only.
mkdir -p "$tree/driver"
cp "$cargo_out/libsimcuda.so" "$tree/driver/libcuda.so.1"
gcc -std=c99 -D_POSIX_C_SOURCE=200809L -Iinclude examples/replay/replay.c -o "$tree/replay" \
    "$cargo_out/libsmp.a" -lgcc_s -lutil -lrt -lpthread -lm -ldl

# What is thread-local in it is taken from the stack of each thread of the program, which may be small.
thread_local=$(readelf -lW "$cargo_out/libsmp_preload.so" | awk '$1 == "TLS" {print $6}')
[ $((thread_local)) -le 1024 ] || die "libsmp_preload.so takes $((thread_local)) bytes of each thread's stack"
gcc -std=c99 -D_POSIX_C_SOURCE=200809L -Iinclude c_tests/test_stacks.c -o "$tree/test_stacks" \
    "$cargo_out/libsmp.a" -lgcc_s -lutil -lrt -lpthread -lm -ldl
for mode in off count; do
    SMP_MODE=$mode LD_PRELOAD="$cargo_out/libsmp_preload.so" "$tree/test_stacks" smallest ||
        die "a thread with a small stack does not start under libsmp_preload.so"
done

options=(-DPRELOAD="$cargo_out/libsmp_preload.so" -DDRIVER="$tree/driver" -DCUDA_INCLUDE="$cuda"
    -DSMP_RUN="$cargo_out/smp-run" -DREPLAY="$tree/replay" -DNVCC="$cuda/../bin/nvcc" -DPACKAGES="$site"
    -DLIBSMP="$cargo_out/libsmp.so" -DSEEDS="${SEEDS:-100}" -DPROGRAMS="${PROGRAMS:-6}")
[ -z "${CLIENTS:-}" ] || options+=(-DCLIENTS="$root/scripts/clients.sh")
cmake -S preload/c_tests -B "$tree" "${options[@]}" >/dev/null
cmake --build "$tree" --parallel "$jobs" >/dev/null
cd "$tree"
ctest --output-on-failure --no-tests=error --parallel "$jobs" "$@"
