#!/usr/bin/env bash
# From a fresh clone to a running program: installs what is missing, builds libsmp, installs it into a local prefix,
# builds the examples against that prefix as a stranger's projects would, and replays a real program's allocations.
#
# quickstart.sh [PREFIX]         PREFIX: where to install (default: prefix/ in the project's folder)
# Needs Rust and gcc; takes cmake, make, g++ and pkg-config from apt-get if they are missing. No GPU, no CUDA.
given=${1:+$(realpath -m "$1")}
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
prefix=${given:-$root/prefix}
build=${SMP_BUILD_DIR:-$root/build}

step() { say ""; say "== $*"; }

step "1/5 tools"
need_rust
need gcc=gcc g++=g++ cmake=cmake make=make
say "$("${CARGO:-cargo}" --version), $(cmake --version | sed -n 1p), $(gcc --version | sed -n 1p)"

step "2/5 building the library (a first build takes a minute or two)"
build_tree "$build/release"

step "3/5 installing into $prefix"
cmake --install "$build/release" --prefix "$prefix" | sed -n 's/^-- Installing: /  /p'

step "4/5 building the examples through find_package(smp)"
for example in quickstart cpp replay; do
    cmake -S "examples/$example" -B "$build/examples/$example" -DCMAKE_PREFIX_PATH="$prefix" \
        -DCMAKE_BUILD_TYPE=RelWithDebInfo >"$build/examples-$example.log" 2>&1 &&
        cmake --build "$build/examples/$example" >>"$build/examples-$example.log" 2>&1 ||
        { cat "$build/examples-$example.log"; die "building examples/$example failed"; }
    say "  examples/$example"
done

# An example's program has the example's name; it lies where its CMakeLists.txt puts it.
program() { find "$build/examples/$1" -type f -name "$1" -perm -u+x -print -quit; }

step "5/5 running them"
for example in quickstart cpp; do
    say "-- $example"
    binary=$(program $example)
    [ -n "$binary" ] || die "examples/$example built no program named $example"
    "$binary" || die "example $example failed"
done
trace=$(find traces -name '*.gz' | LC_ALL=C sort | sed -n 1p)
[ -n "$trace" ] || die "traces/ holds no trace"
say "-- replay $trace"
"$(program replay)" "$trace" || die "replaying $trace failed"

say ""
version=$(sed -n '/^version = /{s/^version = "\([0-9.]*\)"$/\1/p;q}' Cargo.toml)
say "libsmp is in $prefix. Use it from CMake:"
say "    find_package(smp ${version%.*} REQUIRED)                 # cmake -DCMAKE_PREFIX_PATH=$prefix"
say "    target_link_libraries(your_program smp::smp)"
