#!/usr/bin/env bash
# Runs real clients of the driver interface on the stand-in driver: NVIDIA's cuda-bindings, cuda-core and numba-cuda,
# with programs of ours that check data, in each mode of the stand-in; then numba-cuda's own published driver tests.
#
# clients.sh [--only NAME] [COMMAND...]
#   --only NAME    bindings, core, numba_arrays or numba_tests
#   COMMAND        put before each Python program, for instance: env LD_PRELOAD=/path/libsmp_preload.so SMP_MODE=pool
#
# The packages (some 850 MB unpacked) are installed into build/clients; nothing of them is shipped.
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

only=
if [ "${1:-}" = --only ]; then only=${2:?--only needs a name}; shift 2; fi
wrapper=("$@")
tree=$root/build/clients
packages=(numpy cuda-bindings cuda-core 'numba-cuda[cu13]' filecheck psutil cffi pytest)

need_rust
need python3=python3
mkdir -p "$tree/driver" "$tree/run"
asked=$(printf '%s\n' "${packages[@]}"; cat scripts/constraints.txt)
if [ ! -e "$tree/installed" ] || [ "$(cat "$tree/installed")" != "$asked" ]; then
    wheels "$tree/venv" "${packages[@]}"
    printf '%s\n' "$asked" >"$tree/installed"
fi
"$tree/venv/bin/pip" list --disable-pip-version-check 2>/dev/null | grep -E '^(cuda-bindings|cuda-core|numba-cuda|numpy) '

"${CARGO:-cargo}" build --quiet --locked -p simcuda
# Found under the driver's name in a folder of its own only.
cp "${CARGO_TARGET_DIR:-$root/target}/debug/libsimcuda.so" "$tree/driver/libcuda.so.1"

ran=0
run() { # run PROGRAM MODE SEED
    [ -z "$only" ] || [ "$only" = "$1" ] || return 0
    ran=$((ran + 1))
    printf '%-14s %-12s ' "$1" "$2"
    local log=$tree/run/$1.$2.log
    # -I: nothing of the caller's Python comes in; the folder is one where imports find nothing by accident.
    if (cd "$tree/run" && LD_LIBRARY_PATH="$tree/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
        SIMCUDA_MODE=$2 SIMCUDA_SEED=$3 \
        timeout 1800 "${wrapper[@]}" "$tree/venv/bin/python" -I "$root/scripts/clients/$1.py") >"$log" 2>&1 </dev/null
    then
        say "ok"
        if [ "$1" = numba_tests ]; then sed 's/^/    /' "$log"; fi
    else
        say "FAILED ($?); the end of $log:"
        tail -n 40 "$log"
        exit 1
    fi
}

for program in bindings core numba_arrays; do
    run $program eager 0
    run $program lazy 0
    run $program adversarial 1
done
run numba_tests eager 0
[ $ran -gt 0 ] || die "no program '$only'"
