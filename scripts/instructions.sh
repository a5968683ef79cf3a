#!/usr/bin/env bash
# Instructions per allocation and free through the shipped library, by the number of live blocks and the order in which
# they go: the cost must not grow with the blocks, nor much with the way of asking. Fails if a figure is above twice that of 10
# live blocks, or, of calls with a description or by pointer, above three times that of calls by handle; or if a pair of one size
# takes more than it should, in the default pool or in those that the quick way does not serve.
#
# instructions.sh [BUILD_DIR]    BUILD_DIR: a built tree of the top-level CMakeLists.txt (default: build/release)
# Counted by callgrind, inside the library's calls only; the figures are the same at every run.
given=${1:+$(realpath -m "$1")}
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
build=${given:-$root/build/release}
need valgrind=valgrind gcc=gcc /usr/include/valgrind/callgrind.h=valgrind
if [ ! -f "$build/lib/libsmp.so" ]; then
    need_rust
    need cmake=cmake make=make
    build_tree "$build" >/dev/null
fi

work=$build/instructions
mkdir -p "$work"
# -z now: the dynamic linker's work at first calls is not the library's.
gcc -std=c99 -O2 -Wall -Wextra -Iinclude scripts/instructions.c -o "$work/instructions" \
    -L"$build/lib" -lsmp -Wl,-rpath,"$build/lib" -Wl,-z,now

count() { # count LIVE ORDER [WAY [POOL]]: instructions per pair
    local out=$work/callgrind.$1.$2.${3:-handle}.${4:-mapped} pairs total
    pairs=$(valgrind --tool=callgrind --instr-atstart=no --toggle-collect=smp_alloc_async --toggle-collect=smp_free_async \
        --toggle-collect=smp_alloc_async_ex --toggle-collect=smp_alloc_ptr_async --toggle-collect=smp_free_ptr_async \
        --callgrind-out-file="$out" "$work/instructions" "$1" "$2" "${3:-handle}" "${4:-mapped}" 2>"$out.log") ||
        { cat "$out.log" >&2; die "the run with $1 live blocks in $2 order failed"; }
    total=$(awk '/^totals:/ {print $2}' "$out")
    [ "${total:-0}" -gt 0 ] || die "callgrind counted nothing with $1 live blocks in $2 order"
    echo $((total / pairs))
}

say "instructions per alloc and free, shipped library, 256 B to 64 KiB, one stream"
printf '%-8s %10s %10s %10s %10s\n' order 10 1,000 100,000 1,000,000
bad=0
for order in lifo fifo random; do
    row=() base=
    for live in 10 1000 100000 1000000; do
        figure=$(count $live $order)
        base=${base:-$figure}
        row+=("$figure")
        [ "$figure" -le $((2 * base)) ] || { bad=1; over="$order at $live live blocks: $figure, with 10: $base"; }
    done
    printf '%-8s %10s %10s %10s %10s\n' $order "${row[@]}"
done
[ $bad = 0 ] || die "above twice the figure of 10 live blocks: $over"

handle=$(count 1000 random)
for way in described pointer; do
    figure=$(count 1000 random $way)
    say "random order, 1,000 live blocks, $way: $figure; by handle: $handle"
    [ "$figure" -le $((3 * handle)) ] || die "calls of the kind $way take more than three times what those by handle take"
done

while read -r pool most; do
    figure=$(count 10 pair handle "$pool")
    say "a pair of 1 MiB, 10 live blocks, $pool: $figure; at most $most"
    [ "$figure" -le "$most" ] || die "a pair of one size takes more than $most instructions with $pool"
done <<'POOLS'
mapped 185
sub-slices 330
exclusive-pages 345
direct 345
POOLS
