#!/usr/bin/env bash
# Tests libsmp_preload.so over the stand-in driver, with programs built on NVIDIA's public headers.
#
# preload.sh [CTEST ARGUMENTS]   for instance -R lookups
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tree=$root/build/preload
need_rust
need gcc=gcc cmake=cmake make=make python3=python3
python3 -c 'import ensurepip, venv' 2>/dev/null || need /no/python3-venv=python3-venv

# NVIDIA's headers come in a wheel of a few megabytes; nothing of it is shipped.
if [ ! -x "$root/build/venv/bin/pip" ]; then python3 -m venv "$root/build/venv"; fi
"$root/build/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps nvidia-cuda-runtime
cuda=$(find "$root/build/venv" -name cuda.h | head -n 1)
[ -n "$cuda" ] || die "the nvidia-cuda-runtime wheel brought no cuda.h"

"${CARGO:-cargo}" build --quiet --locked -p smp-preload -p simcuda
cargo_out=${CARGO_TARGET_DIR:-$root/target}/debug
# The stand-in is found under the driver's name in a folder of its own only.
mkdir -p "$tree/driver"
cp "$cargo_out/libsimcuda.so" "$tree/driver/libcuda.so.1"

cmake -S preload/c_tests -B "$tree" -DPRELOAD="$cargo_out/libsmp_preload.so" -DDRIVER="$tree/driver" \
    -DCUDA_INCLUDE="$(dirname "$cuda")" -DSMP_RUN="$cargo_out/smp-run" >/dev/null
cmake --build "$tree" --parallel "$jobs" >/dev/null
cd "$tree"
ctest --output-on-failure --no-tests=error --parallel "$jobs" "$@"
