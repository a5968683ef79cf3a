#!/usr/bin/env bash
# Do the tests notice when a protection of the preload library is taken out? Builds the library with a switch for each
# (feature `break-switches`), takes out one at a time, runs the tests that are to notice, and prints which went red. Fails
# if one can be taken out without a test going red, or if a test is red with all of them in.
#
# pitfalls.sh [PROTECTION...]    only these
# shellcheck source=scripts/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
tree=$root/build/pitfalls
export CARGO_TARGET_DIR=$tree/cargo TREE=$tree/tests FEATURES=break-switches SEEDS=20

# The pitfall, as libraries of this kind have met it; the protection; the tests that are to notice, as a pattern.
table=(
    "1 a look-up of cuGetProcAddress itself must give ours;self-look-up;^lookups.13.5.count$"
    "2 the caller's own handle decides;callers-handle;^odd_answers_are_kept$"
    "2 only exact names are replaced;exact-names;^odd_answers_are_kept$"
    "3 nothing is initialised before the program does;lazy-start;^nothing_is_called_before"
    "4 the status of a look-up is the driver's;look-up-status;^lookups.13.5.count$"
    "5 older forms under the same name stay the driver's;exact-versions;^odd_answers_are_kept$"
    "6 look-ups for per-thread streams get that form;twin;^lookups.13.5.count$"
    "6 that form means the thread's own stream;twin-stream;^app.lookup.per_thread.pool$"
    "7 a driver without a symbol loses only that;missing-symbols;^odd_answers_are_kept$"
    "7 nothing of CUDA is needed to load;needs-nothing;^nothing_of_cuda_is_needed"
    "8 a free waits for the device;synchronise;^bytes_stay_right.legacy.SMP_MODE=pool$"
    "8 a deferred free is ordered after all streams;deferred-order;^bytes_stay_right.legacy.SMP_MODE=pool,SMP_FREE=deferred$"
    "9 a block is usable at once from any stream;usable-at-once;^bytes_stay_right.legacy.SMP_MODE=pool,SMP_FREE=deferred$"
    "10 each free takes the other's memory;cross-free;^app.dlsym.legacy.pool$"
    "11 a block counts on its own device;own-device;^a_block_counts_on_its_own_device"
    "12 size 0 is the driver's to answer;zero-size;^app.dlsym.legacy.pool$"
    "13 blocks are aligned to 512;alignment;^app.dlsym.legacy.pool$"
    "14 captures are the driver's;capture;^captures_are_the_drivers"
    "14 a capture ends with its stream;capture-of-a-destroyed-stream;^a_capture_ends_with_the_stream"
    "15 null pointers are allowed;null;^null_pointers_are_answered"
    "16 what is free never falls below zero;clamp;^nothing_is_left_rather_than_less"
    "17 a block inside a page is not exported;export;^only_a_block_with_a_page"
    "18 an address shows its block, not the page;range;^(an_address_tells|app.dlsym.legacy.pool$)"
    "19 memory goes with its context;context;^memory_goes_with_its_context"
    "19 a context is struck out before it goes;context-handle;^a_context_is_another_when_its_handle_comes_back.pool$"
    "20 the report is written before late frees;report-at-exit;^the_report_is_written_before"
    "20 frees after the report work;late-frees;^frees_after_the_report_work_and_are_told.pool$"
    "21 a child after fork keeps out;fork;^a_child_writes_no_report"
    "22 out of memory: synchronise, trim, try again;relief;^an_allocation_waits_rather_than_fails$"
    "22 what pools hold is there for others;relief-of-others;^what_pools_hold_is_there_for_others$"
    "23 no lock is held across a call of the driver;no-lock;^no_lock_is_held_while"
    "24 first calls at once start once;one-start;^first_calls_at_once_start_once"
    "24 a second library beside ours;chain;^a_second_library_beside_ours_works$"
    "a cancelled thread ends at a point of its own;cancellation;^a_cancellation_waits_for_the_programs_own_point.pool$"
    "24 the kill switch;kill-switch;^app.linked.legacy.off$"
    "a refused free leaves the block known;refused-free;^a_refused_free_leaves_the_block_known.pool$"
    "what is wrong besides the address is told;refusals;^a_refusal_is_the_drivers.pool$"
    "captures keep the legacy stream from ours;barred;^a_refusal_is_the_drivers.pool$"
    "an address where a pool maps memory is its own;mapped;^a_refusal_is_the_drivers.pool$"
    "an export that is not wanted is the driver's;unwanted-exports;^a_linked_program_is_replaced_what_is_wanted$"
    "the legacy stream's order is seen;legacy-order;^the_legacy_streams_order_is_seen$"
    "a free waits for another context's stream;other-contexts;^a_free_is_ordered_after_another"
    "a double free does not give a page away;double-free;^app.dlsym.legacy.pool$"
)

log=$root/build/pitfalls.log
mkdir -p "$tree"
scripts/preload.sh -LE "clients" >"$log" 2>&1 || { tail -n 40 "$log"; die "red with every protection in"; }

# Protection 7 is the link itself: the same check on a library that needs the driver.
gcc -shared -o "$tree/needy.so" -Wl,--no-as-needed "$tree/tests/driver/libcuda.so.1"

printf '%-62s %-18s %4s  %s\n' pitfall "taken out" red "tests"
green=()
for row in "${table[@]}"; do
    IFS=';' read -r pitfall name pattern <<<"$row"
    [ $# = 0 ] || [[ " $* " == *" $name "* ]] || continue
    if [ "$name" = needs-nothing ]; then
        red=0
        SMP_TEST_PRELOAD=$tree/needy.so SMP_TEST_DRIVER='' SMP_TEST_OUT=$tree python3 preload/c_tests/check.py \
            nothing_of_cuda_is_needed_and_no_smp_symbol_shown >/dev/null || red=1
        failed=nothing_of_cuda_is_needed_and_no_smp_symbol_shown
    else
        out=$(cd "$TREE" && SMP_PRELOAD_BREAK=$name ctest --no-tests=error -R "$pattern" 2>&1) || true
        red=$(grep -c '\*\*\*' <<<"$out" || true)
        failed=$(sed -n 's/^[[:space:]]*[0-9]* - \([^ ]*\) .*/\1/p' <<<"$out" | sed -n 1p)
    fi
    printf '%-62s %-18s %4s  %s\n' "$pitfall" "$name" "$red" "$failed"
    [ "$red" != 0 ] || green+=("$name")
done
[ ${#green[@]} = 0 ] || die "no test notices without: ${green[*]}"
say "each protection that is taken out turns a test red"
