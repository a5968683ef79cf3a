# Shared by the scripts in this folder: where the project is, what must be installed, how progress is told.
# Source it; it leaves the caller in the project's root.

set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# A shell started by another program often lacks the folder that rustup adds to the path at login.
if ! command -v "${CARGO:-cargo}" >/dev/null; then export PATH="$HOME/.cargo/bin:$PATH"; fi

# What cargo fetches comes over the same network.
export CARGO_NET_RETRY=${CARGO_NET_RETRY:-10}

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
    # A new machine may be updating itself, and its network may be slow to come.
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=600)
    "${as_root[@]}" "${apt[@]}" update || say "apt-get update failed; trying with the package lists that are there"
    "${as_root[@]}" "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >/dev/null ||
        die "could not install ${missing[*]}"
}

# Debian's python3 comes without what a virtual environment needs; the file named is never there.
need_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null || need /no/python3-venv=python3-venv; }

# wheels VENV ARGUMENTS...: Python packages into a virtual environment, made if it is not there, in the versions of
# scripts/constraints.txt.
wheels() {
    local venv=$1
    shift
    need_venv
    [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 10 --timeout 60 \
        --constraint "$root/scripts/constraints.txt" "$@"
}

need_rust() {
    command -v "${CARGO:-cargo}" >/dev/null || die "cargo was not found: install Rust 1.89 or newer (https://rustup.rs)"
}

jobs=$(nproc 2>/dev/null || echo 2)

# Library, headers and package into a build tree: build_tree DIR CMAKE_ARGS...
build_tree() {
    local dir=$1
    shift
    cmake -S "$root" -B "$dir" "$@"
    cmake --build "$dir" --parallel "$jobs"
}
