#!/usr/bin/env bash
# Compiles the public headers the way strangers' projects do: every language standard, strict warnings as errors,
# included twice, from two translation units of one program, and beside NVIDIA's cuda.h in either order. Links a program
# that takes the address of every declared function, so that nothing declared is missing from either library.
#
# matrix.sh WORK_DIR LIB_DIR [CUDA_INCLUDE_DIR]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
include=$(cd "$here/../../include" && pwd)
work=$1 lib=$2 cuda=${3:-}
mkdir -p "$work"
rm -f "$work"/*
strict=(-Wall -Wextra -Wpedantic -Wundef -Werror)
# What C++ projects ask for besides: the headers' macros and inline functions are expanded in their code.
strict_cxx=(-Wold-style-cast -Wzero-as-null-pointer-constant -Wconversion -Wshadow)
native=(-lgcc_s -lutil -lrt -lpthread -lm -ldl)
count=0

compilers_c=(gcc) compilers_cxx=(g++)
if command -v clang >/dev/null && command -v clang++ >/dev/null; then compilers_c+=(clang) compilers_cxx+=(clang++); fi

compile() { # compile COMPILER STANDARD SOURCE OUTPUT [FLAGS...]
    local compiler=$1 standard=$2 source=$3 output=$4
    shift 4
    local language=(-x c -Wc++-compat)
    case $standard in c++*) language=(-x c++) ;; esac
    if ! "$compiler" "${language[@]}" "-std=$standard" "${strict[@]}" -I"$include" "$@" -c "$source" -o "$output"; then
        echo "matrix.sh: does not compile: $compiler -std=$standard $* $source" >&2
        exit 1
    fi
    count=$((count + 1))
}

# Sources made from the header itself: whatever is added to it later is covered without being listed here.
strangers=$(sed -n 's/^# *define \([A-Za-z_0-9]*\).*/\1/p' "$include/smp.h" | grep -vE '^(SMP_|smp_)' || true)
if [ -n "$strangers" ]; then
    echo "matrix.sh: smp.h defines macros outside SMP_:" $strangers >&2
    exit 1
fi
macros=$(sed -n 's/^#define \(SMP_[A-Z_]*_INIT\) .*/\1/p' "$include/smp.h")
exported=$(nm -D --defined-only "$lib/libsmp.so" | awk '{print $3}' | sed 's/@.*//' | sort -u)
# The declared functions: names before a parenthesis, outside comments and directives.
declared=$(sed 's@//.*@@' "$include/smp.h" | awk '/\/\*/{c=1} !c{print} /\*\//{c=0}' | grep -v '^ *#' |
    grep -oE '\bsmp_[a-z_0-9]+\(' | tr -d '(' | sort -u)
[ -n "$macros" ] && [ -n "$declared" ] || { echo "matrix.sh: found no macro or no function in smp.h" >&2; exit 1; }
missing=$(comm -23 <(echo "$declared") <(echo "$exported"))
if [ -n "$missing" ]; then
    echo "matrix.sh: smp.h declares what libsmp.so does not export:" $missing >&2
    exit 1
fi
foreign=$(echo "$exported" | grep -v '^smp_' || true)
if [ -n "$foreign" ]; then
    echo "matrix.sh: libsmp.so exports names outside smp_:" $foreign >&2
    exit 1
fi
undeclared=$(comm -13 <(echo "$declared") <(echo "$exported"))
if [ -n "$undeclared" ]; then
    echo "matrix.sh: libsmp.so exports what smp.h does not declare:" $undeclared >&2
    exit 1
fi

{
    echo '/* Every initialiser of smp.h, used. */'
    echo '#include "smp.h"'
    echo '#include "smp.h"'
    echo 'unsigned use_initialisers(void);'
    echo 'unsigned use_initialisers(void) {'
    echo '    unsigned sum = 0;'
    for macro in $macros; do
        type=$(echo "${macro%_INIT}" | tr '[:upper:]' '[:lower:]')
        echo "    { $type value = $macro; sum += value.struct_size == sizeof value; }"
    done
    echo '    {'
    echo '        smp_pool_entry entries[] = { SMP_ENTRY_EXCLUSIVE_INIT(1u), SMP_ENTRY_DIRECT_INIT(1u), SMP_ENTRY_SLICED_INIT(1u, 1u, 1u),'
    echo '                                     SMP_ENTRY_CUDA_INIT(1u), SMP_ENTRY_MAPPED_INIT(1u) };'
    echo '        smp_stream streams[] = { SMP_STREAM_LEGACY, SMP_STREAM_PER_THREAD };'
    echo '        sum += sizeof entries / sizeof entries[0] != 5u || streams[0] == streams[1];'
    echo '    }'
    echo '    return sum;'
    echo '}'
} >"$work/initialisers.c"
{
    echo '/* Takes the address of every function: what is declared must be there to link. */'
    echo '#include "smp.h"'
    echo '#include "smp.h"'
    echo '#include <stdio.h>'
    echo 'unsigned use_initialisers(void);'
    echo 'typedef void (*any_function)(void);'
    echo 'int main(void) {'
    echo '    any_function table[] = {'
    for function in $declared; do echo "        (any_function)$function,"; done
    echo '    };'
    echo '    size_t n = sizeof table / sizeof table[0], i, found = 0;'
    echo '    for (i = 0; i < n; ++i) found += table[i] != (any_function)0;'
    echo '    printf("%u functions, %u initialisers\n", (unsigned)found, use_initialisers());'
    echo "    return !(found == n && use_initialisers() == $(echo "$macros" | wc -l)u && smp_version() == SMP_VERSION);"
    echo '}'
} >"$work/witness.c"

run() { LD_LIBRARY_PATH="$lib" "$1" >/dev/null || { echo "matrix.sh: $1 failed" >&2; exit 1; }; }

build_c() { # build_c COMPILER STANDARD
    # Function pointers are cast to one type here, which -Wextra calls a mismatch; the header is not to blame.
    local more=()
    case $2 in c++*) more=("${strict_cxx[@]}") ;; esac
    compile "$1" "$2" "$work/initialisers.c" "$work/a.o" "${more[@]}"
    compile "$1" "$2" "$work/witness.c" "$work/b.o" -Wno-cast-function-type
    "$1" "$work/a.o" "$work/b.o" -L"$lib" -lsmp -o "$work/shared" && run "$work/shared"
    "$1" "$work/a.o" "$work/b.o" "$lib/libsmp.a" "${native[@]}" -o "$work/static" && run "$work/static"
    if [ "$2" = c99 ] || [ "$2" = c++17 ]; then
        compile "$1" "$2" "$work/initialisers.c" "$work/ptds.o" -DCUDA_API_PER_THREAD_DEFAULT_STREAM
    fi
}
for standard in c99 c11 c17; do
    for compiler in "${compilers_c[@]}"; do build_c "$compiler" "$standard"; done
done
for standard in c++11 c++14 c++17 c++20; do
    for compiler in "${compilers_cxx[@]}"; do build_c "$compiler" "$standard"; done
done
# The C++ header needs C++17.
for standard in c++17 c++20; do
    for compiler in "${compilers_cxx[@]}"; do
        compile "$compiler" "$standard" "$here/twice.cpp" "$work/hpp_a.o" "${strict_cxx[@]}"
        compile "$compiler" "$standard" "$here/other.cpp" "$work/hpp_b.o" "${strict_cxx[@]}"
        "$compiler" "$work/hpp_a.o" "$work/hpp_b.o" -L"$lib" -lsmp -o "$work/hpp" && run "$work/hpp"
        compile "$compiler" "$standard" "$here/default_stream.cpp" "$work/legacy.o" "${strict_cxx[@]}" -O0
        compile "$compiler" "$standard" "$here/default_stream.cpp" "$work/per_thread.o" "${strict_cxx[@]}" -O0 -DOTHER \
            -DCUDA_API_PER_THREAD_DEFAULT_STREAM
        # The linker keeps the first of functions of one name.
        for objects in "legacy per_thread" "per_thread legacy"; do
            "$compiler" "$work/${objects% *}.o" "$work/${objects#* }.o" -L"$lib" -lsmp -o "$work/default_stream" &&
                run "$work/default_stream"
        done
    done
done
if [ -n "$cuda" ]; then
    [ -f "$cuda/cuda.h" ] || { echo "matrix.sh: no cuda.h in $cuda" >&2; exit 1; }
    # NVIDIA's header is not held to these warnings, hence -isystem.
    for order in CUDA_FIRST CUDA_LAST; do
        for ptds in "" -DCUDA_API_PER_THREAD_DEFAULT_STREAM; do
            for standard in c99 c11 c17; do
                compile gcc "$standard" "$here/beside_cuda.c" "$work/cuda.o" -isystem "$cuda" "-D$order" $ptds
            done
            for standard in c++11 c++14 c++17 c++20; do
                compile g++ "$standard" "$here/beside_cuda.c" "$work/cuda.o" -isystem "$cuda" "-D$order" $ptds
            done
        done
    done
else
    echo "matrix.sh: no CUDA headers given; the cuda.h part was left out"
fi
"$work/shared"  2>/dev/null || LD_LIBRARY_PATH="$lib" "$work/shared"
echo "matrix.sh: $count compilations without a warning"
