#!/usr/bin/env bash
# The package as a stranger meets it: install, move the prefix, build C and C++ programs against it through find_package
# and through pkg-config, shared and static; ask for what it must refuse; uninstall, and look that no file is left.
#
# run.sh BUILD_DIR WORK_DIR      BUILD_DIR is a built tree of the top-level CMakeLists.txt
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "$1" && pwd)
rm -rf "$2"
mkdir -p "$2"
work=$(cd "$2" && pwd)

fail() { echo "package/run.sh: $*" >&2; exit 1; }
quiet() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; fail "failed: $*"; }; }
# says GREP-ARGS...: its input has such a line. Reads to the end, so that what writes never fails for want of a reader.
says() {
    local text
    text=$(cat)
    grep -q "$@" <<<"$text"
}
refuse() { # refuse WORD COMMAND...: the command must fail, and say WORD
    local word=$1
    shift
    if "$@" >"$work/log" 2>&1; then fail "should have been refused: $*"; fi
    tr '\n' ' ' <"$work/log" | tr -s ' ' | says -- "$word" ||
        { cat "$work/log"; fail "the refusal does not say '$word': $*"; }
}

version=$(sed -n '/^version = /{s/^version = "\([0-9.]*\)"$/\1/p;q}' "$root/Cargo.toml")
[ -n "$version" ] || fail "Cargo.toml names no version"
major=${version%%.*} minor=$(echo "$version" | cut -d. -f2)

# --- install
first="$work/first place"        # with a space: paths with spaces are ordinary
moved="$work/moved"
quiet cmake --install "$build" --prefix "$first"
libdir=$(cd "$first" && dirname "$(find . -name libsmp.a)" | sed 's@^\./@@')
(cd "$first" && find . ! -type d | LC_ALL=C sort) >"$work/installed"
LC_ALL=C sort >"$work/expected" <<LIST
./bin/smp-run
./include/smp.h
./include/smp.hpp
./$libdir/libsmp.a
./$libdir/libsmp.so
./$libdir/libsmp.so.$major.$minor
./$libdir/libsmp.so.$version
./$libdir/libsmp_preload.so
./$libdir/smp/stand-in/libcuda.so.1
./$libdir/cmake/smp/smp-config.cmake
./$libdir/cmake/smp/smp-config-version.cmake
./$libdir/pkgconfig/smp.pc
./share/doc/smp/CHANGELOG.md
./share/doc/smp/LICENSE-APACHE
./share/doc/smp/LICENSE-MIT
./share/doc/smp/README.md
./share/doc/smp/docs/access.md
./share/doc/smp/docs/cuda-device.md
./share/doc/smp/docs/cuda-tests.md
./share/doc/smp/docs/performance.md
./share/doc/smp/docs/placement.md
./share/doc/smp/docs/pool-spec.md
./share/doc/smp/docs/preload.md
./share/doc/smp/docs/traces.md
LIST
diff "$work/expected" "$work/installed" || fail "the installed files are not the expected ones"
soname=$(objdump -p "$first/$libdir/libsmp.so" | awk '$1 == "SONAME" {print $2}')
[ "$soname" = "libsmp.so.$major.$minor" ] || fail "SONAME is '$soname'"
for text in "$first/$libdir/pkgconfig/smp.pc" "$first/$libdir/cmake/smp/"*.cmake; do
    ! grep -qE "$work|$build|$root" "$text" || fail "$text holds an absolute path"
done
! objdump -p "$first/$libdir/libsmp.so" | says -E 'RPATH|RUNPATH' || fail "libsmp.so has a run path"

# --- move
mv "$first" "$moved"

# --- find_package
configure() { # configure NAME ARGS...
    local name=$1
    shift
    cmake -S "$here" -B "$work/$name" -DCMAKE_PREFIX_PATH="$moved" -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF "$@"
}
for components in "" shared static "shared;static"; do
    name="cmake-${components:-default}"
    name=${name/;/-}
    quiet configure "$name" "-DSMP_COMPONENTS=$components" "-DSMP_ASK=$major.$minor"
    grep -qF "smp_VERSION=$version" "$work/log" || fail "find_package gives another version than $version"
    quiet cmake --build "$work/$name"
    links=${components:-shared;static}
    for link in ${links/;/ }; do
        for language in c cpp; do
            said=$("$work/$name/${language}_$link") || fail "find_package consumer $name/${language}_$link failed"
            [ "$said" = "$version" ] || fail "${language}_$link says version $said"
            if [ $link = static ]; then
                ! ldd "$work/$name/${language}_$link" | says libsmp || fail "the static consumer needs libsmp.so"
            else
                ldd "$work/$name/${language}_$link" | says "libsmp.so.$major.$minor => $moved" ||
                    fail "the shared consumer does not load the moved libsmp.so.$major.$minor"
            fi
        done
    done
done
refuse "not: nonsense" configure refused-component -DSMP_COMPONENTS=nonsense
refuse "compatible" configure refused-newer "-DSMP_ASK=$major.$((minor + 1))"
refuse "compatible" configure refused-major "-DSMP_ASK=$((major + 1)).0"
if [ "$minor" -gt 0 ]; then
    # 0.x: a minor version may change the interface, so an older one asked for is refused as well.
    refuse "compatible" configure refused-older "-DSMP_ASK=$major.$((minor - 1))"
fi

# --- pkg-config
export PKG_CONFIG_PATH="$moved/$libdir/pkgconfig"
[ "$(pkg-config --modversion smp)" = "$version" ] || fail "pkg-config says version $(pkg-config --modversion smp)"
cflags=$(pkg-config --cflags smp)
shared_libs=$(pkg-config --libs smp)
# -l:libsmp.a picks the static library where both are installed.
static_libs=$(pkg-config --static --libs smp | sed 's/-lsmp/-l:libsmp.a/')
warn="-Wall -Wextra -Wpedantic -Werror -DPACKAGE_VERSION=\"$version\""
quiet gcc -std=c99 $warn $cflags "$here/consumer.c" -o "$work/pc_c_shared" $shared_libs
quiet g++ -std=c++17 $warn $cflags "$here/consumer.cpp" -o "$work/pc_cpp_shared" $shared_libs
quiet gcc -std=c99 $warn $cflags "$here/consumer.c" -o "$work/pc_c_static" $static_libs
quiet g++ -std=c++17 $warn $cflags "$here/consumer.cpp" -o "$work/pc_cpp_static" $static_libs
for program in pc_c_shared pc_cpp_shared pc_c_static pc_cpp_static; do
    said=$(LD_LIBRARY_PATH="$moved/$libdir" "$work/$program") || fail "pkg-config consumer $program failed"
    [ "$said" = "$version" ] || fail "$program says version $said"
done
! ldd "$work/pc_c_static" | says libsmp || fail "the static pkg-config consumer needs libsmp.so"

# The C program on README's first screen is what a newcomer copies: it must build without a warning and run.
awk '/^```c$/ {c=1; next} /^```$/ {c=0} c' "$root/README.md" >"$work/readme.c"
grep -q smp_alloc_async "$work/readme.c" || fail "README.md shows no C program"
quiet gcc -std=c99 -Wall -Wextra -Wpedantic -Werror $cflags "$work/readme.c" -o "$work/readme" $shared_libs
LD_LIBRARY_PATH="$moved/$libdir" quiet "$work/readme"

# --- uninstall: what others put beside the package stays, nothing else does
mv "$moved" "$first"
touch "$first/$libdir/cmake/somebody-elses-file"
quiet cmake --build "$build" --target uninstall
left=$(cd "$first" && find . ! -type d)
[ "$left" = "./$libdir/cmake/somebody-elses-file" ] || fail "after uninstall there is: $left"
rm -rf "$first"
quiet cmake --install "$build" --prefix "$first"
quiet cmake --build "$build" --target uninstall
[ -z "$(find "$first" -mindepth 1)" ] || fail "after uninstall there is: $(find "$first" -mindepth 1)"

# Files that have only the root in common (an absolute CMAKE_INSTALL_LIBDIR, say), and a manifest that CMake broke at a
# semicolon: the one is done, the other refused, and both end.
cp "$build/install_manifest.txt" "$work/manifest"
trap 'cp "$work/manifest" "$build/install_manifest.txt"' EXIT
elsewhere=$(mktemp -d -p /dev/shm)
mkdir -p "$work/one/lib" "$elsewhere/two/lib"
touch "$work/one/lib/a" "$elsewhere/two/lib/b"
printf '%s\n' "$work/one/lib/a" "$elsewhere/two/lib/b" >"$build/install_manifest.txt"
quiet timeout 60 cmake -P "$build/uninstall.cmake"
[ ! -e "$work/one" ] && [ ! -e "$elsewhere" ] || fail "after uninstall there is: $(find "$work/one" "$elsewhere")"
touch "$work/se"
printf '%s\n' "$work/se" "mi/lib/a" >"$build/install_manifest.txt"
refuse "semicolon" timeout 60 cmake -P "$build/uninstall.cmake"
[ -e "$work/se" ] || fail "a refused uninstall removed something"
cp "$work/manifest" "$build/install_manifest.txt"
trap - EXIT

# --- staged install, as packagers do it
DESTDIR="$work/stage" quiet cmake --install "$build" --prefix /opt/smp
[ -f "$work/stage/opt/smp/include/smp.h" ] || fail "DESTDIR is not honoured by the install"
DESTDIR="$work/stage" quiet cmake --build "$build" --target uninstall
[ -z "$(find "$work/stage" ! -type d)" ] || fail "DESTDIR is not honoured by the uninstall"

echo "package/run.sh: version $version installed, moved, found by find_package and pkg-config, uninstalled"
