#!/bin/sh
# Runs a C test program with many seeds of the stand-in's adversarial order: seeds.sh COUNT PROGRAM [WORD].
#
# The first seed runs every test, the others those whose rule holds whatever runs when: a test that says itself what runs
# when does the same with each seed. Ends at the first seed that fails, with its output and how to run it again.
count=$1
program=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
seed=1
while [ "$seed" -le "$count" ]; do
    if ! SIMCUDA_MODE=adversarial SIMCUDA_SEED=$seed SMP_TEST_ANY_PACE_ONLY=$((seed > 1)) "$program" ${3:+"$3"} >"$log" 2>&1
    then
        cat "$log"
        echo "seed $seed of $count failed: SIMCUDA_MODE=adversarial SIMCUDA_SEED=$seed $program"
        exit 1
    fi
    [ "$seed" -gt 1 ] || cat "$log"
    seed=$((seed + 1))
done
echo "$count seeds; the last: $(tail -n 1 "$log")"
