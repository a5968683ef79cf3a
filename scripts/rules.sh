#!/usr/bin/env bash
# Do the tests notice when a rule is broken? Builds the library with a switch for each rule (feature `rule-switches`,
# core/src/rules.rs), turns one rule off at a time, runs the tests, and prints which went red. Fails if some rule can be
# turned off without a test going red, or if a test is red with every rule on.
#
# rules.sh [RULE...]             only these rules
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cargo=${CARGO:-cargo}
tree=$root/build/rules
need_rust
need gcc=gcc g++=g++ cmake=cmake make=make python3=python3

# The table in core/src/rules.rs: NAME = "switch", "what it turns off";
mapfile -t rules < <(sed -n 's/^    [A-Z_0-9]* = "\([a-z0-9-]*\)", ".*";$/\1/p' core/src/rules.rs)
[ ${#rules[@]} -gt 0 ] || die "found no rule in core/src/rules.rs"
meaning() { sed -n "s/^    [A-Z_0-9]* = \"$1\", \"\(.*\)\";\$/\1/p" core/src/rules.rs; }
if [ $# -gt 0 ]; then
    for rule in "$@"; do
        [[ " ${rules[*]} " == *" $rule "* ]] || die "no rule '$rule'; there are: ${rules[*]}"
    done
    rules=("$@")
fi

mkdir -p "$tree"
# Not optimised across crates: this library is for these tests only.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
build_tree "$tree" -DSMP_BUILD_TESTS=ON -DSMP_CARGO_FEATURES=rule-switches >"$tree/build.log" 2>&1 ||
    { tail -n 40 "$tree/build.log"; die "the build with switches failed"; }
programs=("$tree"/c_tests/c99.shared.test_*)
[ -x "${programs[0]}" ] || die "the build with switches has no C test"

# The Rust tests of single rules. The property tests are left out: they compare everything with a reference model, so
# they would go red for any rule and show nothing about the tests that name it.
"$cargo" test --package smp-core --locked --features rule-switches --target-dir "$tree/cargo-test" --no-run \
    --message-format=json >"$tree/tests.json" 2>"$tree/tests.log" ||
    { tail -n 40 "$tree/tests.log"; die "the Rust tests with switches do not build"; }
mapfile -t rust < <(python3 - "$tree/tests.json" <<'PY'
import json, sys
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message.get("executable") and message.get("profile", {}).get("test"):
        name = message["target"]["name"]
        if not any(word in name for word in ("property", "reference", "model_check", "fuzz", "stress", "traces")):
            print(message["executable"])
PY
)

# red RULE: one line for each test that fails with the rule off
red() {
    local program out
    export SMP_RULE_OFF=$1
    for program in "${programs[@]}"; do
        out=$(timeout 120 "$program" 2>&1) && continue
        echo "$out" | sed -n 's/^FAILED \([a-z_0-9]*\).*/\1/p' | grep . || echo "$(basename "$program") (ended early)"
    done
    for program in "${rust[@]}"; do
        out=$(cd core && timeout 120 "$program" --skip property 2>&1) && continue
        echo "$out" | sed -n 's/^test \([a-z_0-9:]*\) \.\.\. FAILED$/\1/p' | grep . ||
            echo "$(basename "$program") (ended early)"
    done
    unset SMP_RULE_OFF
}

mapfile -t broken < <(red "")
[ ${#broken[@]} = 0 ] || die "red with every rule on: ${broken[*]}"

printf '%-20s %5s  %s\n' "rule off" red "tests (at most 3 named; all of them in build/rules/RULE.red)"
green=()
for rule in "${rules[@]}"; do
    red "$rule" >"$tree/$rule.red"
    mapfile -t tests <"$tree/$rule.red"
    printf '%-20s %5d  %s\n' "$rule" ${#tests[@]} "$(printf '%s, ' "${tests[@]:0:3}" | sed 's/, $//')"
    [ ${#tests[@]} -gt 0 ] || green+=("$rule ($(meaning "$rule"))")
done
[ ${#green[@]} = 0 ] || die "no test notices when this is off: ${green[*]}"
say "every rule that is turned off turns a test red"
