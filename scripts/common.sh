# Shared by the scripts in this folder: where the project is, what must be installed, how progress is told.
# Source it; it leaves the caller in the project's root.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# A shell started by another program often lacks the folder that rustup adds to the path at login.
if ! command -v "${CARGO:-cargo}" >/dev/null; then export PATH="$HOME/.cargo/bin:$PATH"; fi

# need COMMAND=PACKAGE...: installs the Debian packages of the commands that are missing. A COMMAND with a slash is a
# file that must exist.
need() {
    local pair command missing=()
    for pair in "$@"; do
        command=${pair%%=*}
        case $command in
            /*) [ ! -e "$command" ] || continue ;;
            *) ! command -v "$command" >/dev/null || continue ;;
        esac
        [[ " ${missing[*]} " == *" ${pair#*=} "* ]] || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing: ${missing[*]}"
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "missing: ${missing[*]}; install them, or run this as root or with sudo"
        as_root=(sudo)
    fi
    command -v apt-get >/dev/null || die "missing: ${missing[*]}; this machine has no apt-get, install them by hand"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
        say "apt-get update failed; trying with the package lists that are there"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
        >/dev/null || die "could not install ${missing[*]}"
}

need_rust() {
    command -v "${CARGO:-cargo}" >/dev/null || die "cargo was not found: install Rust 1.88 or newer (https://rustup.rs)"
}

jobs=$(nproc 2>/dev/null || echo 2)

# Library, headers and package into a build tree: build_tree DIR CMAKE_ARGS...
build_tree() {
    local dir=$1
    shift
    cmake -S "$root" -B "$dir" "$@"
    cmake --build "$dir" --parallel "$jobs"
}
