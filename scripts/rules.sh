#!/usr/bin/env bash
# Do the tests notice when a rule is broken? Builds the library with a switch for each rule (feature `rule-switches`,
# core/src/rules.rs), turns one rule off at a time, runs the C tests, whose names say the rule they check, and prints
# which went red. Fails if some rule can be turned off without a test going red, or if a test is red with every rule on.
# The property tests are left out: they compare everything with a reference model, so any rule turns them red.
#
# rules.sh [RULE...]             only these rules
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tree=$root/build/rules
need_rust
need gcc=gcc g++=g++ cmake=cmake make=make

# The table in core/src/rules.rs: NAME = "switch", "what it turns off";
mapfile -t rules < <(sed -n 's/^    [A-Z_0-9]* = "\([a-z0-9-]*\)", ".*";$/\1/p' core/src/rules.rs)
# Those of CUDA devices only are cuda_tests' business.
mapfile -t rules < <(printf '%s\n' "${rules[@]}" | grep -v '^cuda-')
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

# red RULE: one line for each test that fails with the rule off
red() {
    local program out source test
    export SMP_RULE_OFF=$1
    for program in "${programs[@]}"; do
        out=$(timeout 120 "$program" 2>&1) && continue
        echo "$out" | sed -n 's/^FAILED \([a-z_0-9]*\).*/\1/p' | grep . && continue
        # The program ended inside a test, whose name it then did not print: run its tests one by one.
        source=c_tests/${program##*.}.c
        for test in $(grep -oE 'RUN\([a-z_0-9]+\)' "$source" | sed 's/RUN(\(.*\))/\1/' | sort -u); do
            timeout 120 "$program" "$test" >/dev/null 2>&1 || echo "$test"
        done
    done
}

mapfile -t broken < <(red "")
[ ${#broken[@]} = 0 ] || die "red with every rule on: ${broken[*]}"

running=0
for rule in "${rules[@]}"; do
    red "$rule" >"$tree/$rule.red" &
    if [ $((++running)) -ge "$jobs" ]; then
        wait -n
        running=$((running - 1))
    fi
done
wait

printf '%-20s %5s  %s\n' "rule off" red "tests (at most 3 named; all of them in build/rules/RULE.red)"
green=()
for rule in "${rules[@]}"; do
    mapfile -t tests <"$tree/$rule.red"
    printf '%-20s %5d  %s\n' "$rule" ${#tests[@]} "$(printf '%s, ' "${tests[@]:0:3}" | sed 's/, $//')"
    [ ${#tests[@]} -gt 0 ] || green+=("$rule ($(meaning "$rule"))")
done
[ ${#green[@]} = 0 ] || die "no test notices when this is off: ${green[*]}"
say "every rule that is turned off turns a test red"
