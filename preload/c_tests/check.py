"""Runs one program without and with libsmp_preload.so and compares: what it prints, how it ends, and what the report says.

check.py COMMAND ARGUMENTS...; the library, the folder of the stand-in driver and a folder for files come as SMP_TEST_PRELOAD,
SMP_TEST_DRIVER and SMP_TEST_OUT. Exits with 0 if all is as it must be, else says what is not.
"""

import csv
import json
import os
import subprocess
import sys

PRELOAD = os.environ["SMP_TEST_PRELOAD"]
DRIVER = os.environ["SMP_TEST_DRIVER"]
OUT = os.environ["SMP_TEST_OUT"]

# The functions that are replaced in every mode but off: symbol -> the name, version and flags that mean it.
MEMORY = """cuMemAlloc_v2 cuMemFree_v2 cuMemAllocPitch_v2 cuMemAllocManaged cuMemGetInfo_v2 cuMemAllocAsync
cuMemAllocFromPoolAsync cuMemFreeAsync cuMemAllocHost_v2 cuMemHostAlloc cuMemFreeHost cuMemCreate cuMemRelease
cuCtxDestroy_v2 cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRelease
cuDevicePrimaryCtxRelease_v2 cuGetProcAddress cuGetProcAddress_v2""".split()
TWINS = [name + "_ptsz" for name in ("cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync")]
# What only pool mode replaces besides.
POOL = []


def fail(text):
    print(text)
    sys.exit(1)


def run(command, settings=None, preload=True, check=True, driver=True, **more):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SMP_") or "TEST" in key}
    if driver:
        environment["LD_LIBRARY_PATH"] = DRIVER
    if preload:
        environment["LD_PRELOAD"] = PRELOAD
    environment.update(settings or {})
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, **more)
    if check and result.returncode:
        fail(f"{command} with {settings} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return result


def report_of(command, mode, **settings):
    path = os.path.join(OUT, f"report.{os.getpid()}.json")
    result = run(command, {"SMP_MODE": mode, "SMP_REPORT": path, **settings})
    if not os.path.exists(path):
        fail(f"{command} in mode {mode} left no report\n{result.stdout}{result.stderr}")
    with open(path) as file:
        report = json.load(file)
    os.remove(path)
    return result, report


def same(what, got, expected):
    if got != expected:
        fail(f"{what}: got {got!r}, expected {expected!r}")


def app(program, mode):
    """The program does the same; the report tells what it did."""
    plain = run([program], preload=False)
    if mode == "off":
        with_it = run([program], {"SMP_MODE": "off", "SMP_REPORT": os.path.join(OUT, "none")})
        same("output", with_it.stdout, plain.stdout)
        same("standard error", with_it.stderr, plain.stderr)
        same("a report in off mode", os.path.exists(os.path.join(OUT, "none")), False)
        return
    with_it, report = report_of([program], mode)
    same("output", with_it.stdout, plain.stdout)
    same("standard error", with_it.stderr, plain.stderr)
    did = json.loads(plain.stdout)
    kinds = report["devices"][0]["kinds"]
    for kind, figures in did.items():
        same(kind, {name: kinds[kind][name] for name in figures}, figures)
    total = report["devices"][0]
    same("current", total["current"], sum(did[kind]["current"] for kind in did))
    same("allocs", total["allocs"], sum(did[kind]["allocs"] for kind in did))
    alive = [(group["module"], group["kind"], group["bytes"], group["blocks"]) for group in report["alive"]]
    same("alive", alive, [(os.path.basename(program), "device", 12345, 1)])
    same("sizes", sum(size["allocs"] for size in report["sizes"]), total["allocs"])
    streams = report["streams"]
    same("allocations by stream", sum(stream["allocs"] for stream in streams), did["async"]["allocs"])


def lookups(program, path, mode):
    """The same look-ups are answered with the same codes; what is replaced is what must be, under the same name."""
    replaced = set() if mode == "off" else set(MEMORY + TWINS + (POOL if mode == "pool" else []))
    names = sorted(set(MEMORY + TWINS + POOL + ["cuMemAlloc", "cuMemFree", "cuInit", "cuDNNGetVersion", "cuLaunchKernel"]))
    plain = run([program, path, *names], preload=False).stdout.splitlines()
    with_it = run([program, path, *names], {"SMP_MODE": mode}).stdout.splitlines()
    same("number of answers", len(with_it), len(plain))
    seen = set()
    for before, after in zip(plain, with_it):
        symbol = before.rsplit(" ", 1)[1]
        if symbol.startswith("libcuda.so.1:") and symbol.split(":")[1] in replaced:
            seen.add(symbol.split(":")[1])
            before = before.replace("libcuda.so.1:", "libsmp_preload.so:")
        same("look-up", after, before)
    with open(path) as file:
        asked = sum(1 for _ in csv.reader(file)) - 1
    if len(plain) < asked:
        fail(f"{len(plain)} answers to {asked} look-ups")
    # A stand-in that lacks most of the names would prove nothing.
    if mode != "off" and len(seen) < 15:
        fail(f"only {sorted(seen)} were replaced")


def unchanged(*command):
    """A program that uses no CUDA runs as without the library: same output, same end, no word of ours."""
    plain = run(command, preload=False, driver=False, check=False)
    settings = {"SMP_REPORT": os.path.join(OUT, "nothing.json")}
    with_it = run(command, settings, driver=False, check=False)
    for what in ("returncode", "stdout", "stderr"):
        same(what, getattr(with_it, what), getattr(plain, what))
    same("a report of nothing", os.path.exists(settings["SMP_REPORT"]), False)


def bad_settings(program):
    """A setting that cannot be read is told in one line, and everything is off."""
    plain = run([program], preload=False)
    for name, value in (("SMP_MODE", "on"), ("SMP_LIMIT", "8GB"), ("SMP_POOLS", "sliced("), ("SMP_FREE", "later")):
        with_it = run([program], {name: value, "SMP_REPORT": os.path.join(OUT, "bad.json")})
        same("output", with_it.stdout, plain.stdout)
        lines = with_it.stderr.splitlines()
        if len(lines) != 1 or name not in lines[0] or "switched off" not in lines[0]:
            fail(f"{name}={value} said {with_it.stderr!r}")
        same("a report while off", os.path.exists(os.path.join(OUT, "bad.json")), False)


# --- single cases: the program is cases.c. Each is named for the rule it checks.


def kinds_of(report, device=0):
    return report["devices"][device]["kinds"]


def null_pointers_are_answered_as_by_the_driver(program, mode):
    """Null for one figure or both: within a limit each figure asked for is given, and nothing crashes."""
    plain = run([program, "null_info"], preload=False)
    same("without a limit", run([program, "null_info"], {"SMP_MODE": mode}).stdout, plain.stdout)
    limited = run([program, "null_info"], {"SMP_MODE": mode, "SMP_LIMIT": "1MiB"}).stdout
    same("with a limit", limited, "free 0 total 0 none 1\n1048576 1048576\n")


def a_limit_is_exact(program, mode):
    """Of 10 MiB, ten blocks of 1 MiB can be had and no more; the figures stay within the limit."""
    result = run([program, "limit"], {"SMP_MODE": mode, "SMP_LIMIT": "10MiB"})
    mib = 1 << 20
    expected = f"""before {10 * mib} of {10 * mib}
blocks 10, then 2
async 2, pointer 0
full 0 of {10 * mib}
after a free {mib} of {10 * mib}
"""
    same("output", result.stdout, expected)


def a_block_counts_on_its_own_device(program, mode):
    os.environ["SIMCUDA_DEVICES"] = "2"
    _, report = report_of([program, "devices"], mode)
    same("device 0", kinds_of(report, 0)["device"]["current"], 0)
    same("device 1", kinds_of(report, 1)["device"]["current"], 70)
    same("peak of device 0", report["devices"][0]["peak"], 1000)


def first_calls_at_once_start_once(program, mode):
    """However many threads make the first call, the library starts once: one report."""
    for _ in range(10):
        result = run([program, "at_once"], {"SMP_MODE": mode, "SMP_REPORT": "stderr"})
        same("reports", result.stderr.count("CUDA memory of"), 1)
        if "8 allocs" not in result.stderr:
            fail(result.stderr)


def frees_after_the_report_work_and_are_told(program, mode):
    plain = run([program, "late_frees"], preload=False)
    result, report = report_of([program, "late_frees"], mode)
    same("output", result.stdout, plain.stdout)
    same("codes", sorted(result.stdout.splitlines()), ["destructor 0", "handler 0"])
    same("freed late", report["freed_late"], {"blocks": 2, "bytes": 3000})
    same("alive", [group["bytes"] for group in report["alive"]], [3000])


def the_report_is_written_before_destructors_can_end_the_process(program, mode):
    _, report = report_of([program, "abrupt_end"], mode)
    same("alive", [group["bytes"] for group in report["alive"]], [5000])


def a_child_writes_no_report_and_does_not_hang(program, mode):
    result = run([program, "forked"], {"SMP_MODE": mode, "SMP_REPORT": "stderr"})
    same("reports", result.stderr.count("CUDA memory of"), 1)


def no_lock_is_held_while_the_driver_runs(program, mode):
    os.environ["SIMCUDA_MODE"] = "lazy"
    run([program, "callback"], {"SMP_MODE": mode})


def a_signal_asks_for_a_report_at_the_next_call(program, mode):
    path = os.path.join(OUT, f"signal.{os.getpid()}")
    settings = {"SMP_MODE": mode, "SMP_REPORT": "stderr", "SMP_REPORT_SIGNAL": "1"}
    lines = run([program, "signalled"], settings).stderr.splitlines()
    first = [n for n, line in enumerate(lines) if "CUDA memory of" in line]
    same("reports", len(first), 1)
    if not lines.index("raised") < first[0] < lines.index("called"):
        fail("the report did not come at the next call:\n" + "\n".join(lines))


def nothing_is_called_before_the_program_calls(program, mode):
    """Before cuInit the driver gets the program's calls and no others, and answers them as without the library."""
    logs = []
    outputs = []
    for preload in (False, True):
        path = os.path.join(OUT, f"calls.{os.getpid()}.{preload}")
        outputs.append(run([program, "before_init"], {"SMP_MODE": mode, "SIMCUDA_LOG": path}, preload=preload).stdout)
        with open(path) as file:
            logs.append([line.split("[")[0] for line in file if "GetProcAddress" not in line])
    same("answers", outputs[1], outputs[0])
    same("calls", [c for c in logs[1] if c != "cuCtxGetCurrent"], [c for c in logs[0] if c != "cuCtxGetCurrent"])


def odd_answers_are_kept(program, odd, other):
    """Of a driver with odd answers, only what is certainly meant is replaced; of other libraries nothing is."""
    def with_driver(folder, preload):
        environment = {"LD_LIBRARY_PATH": folder, "SMP_MODE": "count"}
        return run([program, other], environment, preload=preload, driver=False).stdout

    plain, got = with_driver(odd, False), with_driver(odd, True)
    # What is asked for by an exact name and version and answered by the function of that name is ours. So is cuMemFree:
    # its address has no name, but lies in the driver, and the name has one form only.
    replaced = {
        "driver cuMemAlloc_v2": "cuMemAlloc_v2",
        "driver cuMemAlloc_v2 again": "cuMemAlloc_v2",
        "lookup cuMemAlloc 3020 0: 0 0": "cuMemAlloc_v2",
        "lookup cuMemAlloc 12000 0: 0 0": "cuMemAlloc_v2",
        "lookup cuMemAllocAsync 11020 0: 0 0": "cuMemAllocAsync",
        "lookup cuMemAllocAsync 11020 2: 0 0": "cuMemAllocAsync",
        "lookup cuMemFree 3020 0: 0 0": "cuMemFree_v2",
        "lookup cuGetProcAddress 12000 0: 0 0": "cuGetProcAddress_v2",
    }
    for before, after in zip(plain.splitlines(), got.splitlines(), strict=True):
        asked = before.rsplit(" ", 1)[0]
        expected = f"{asked} libsmp_preload.so:{replaced[asked]}" if asked in replaced else before
        same("look-up", after, expected)
    # Where there is no driver, none of its functions is found.
    same("without a driver", with_driver("", True), with_driver("", False))


def a_second_library_beside_ours_works(program, second):
    """Both orders; the other library sees the calls that it sees without ours, and the program does the same. It asks for
    libc's `dlsym` by version, and so passes over ours where it comes first; then it sees everything and we nothing."""
    alone = run([program], {"LD_PRELOAD": second, "SECOND_SAYS": "1"}, preload=False)
    for order in (f"{second}:{PRELOAD}", f"{PRELOAD}:{second}"):
        path = os.path.join(OUT, f"second.{os.getpid()}.json")
        both = run([program], {"LD_PRELOAD": order, "SECOND_SAYS": "1", "SMP_MODE": "count", "SMP_REPORT": path})
        same("output", both.stdout, alone.stdout)
        same("what the other saw", both.stderr, alone.stderr)
        if order.startswith(second):
            continue
        with open(path) as file:
            report = json.load(file)
        did = json.loads(alone.stdout)
        same("allocations", kinds_of(report)["device"]["allocs"], did["device"]["allocs"])


def nothing_of_cuda_is_needed_and_no_smp_symbol_shown(library=PRELOAD):
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    if not needed or any("cuda" in name for name in needed):
        fail(f"it needs {needed}")
    symbols = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in symbols.splitlines()]
    if not names or any(not (name.startswith("cu") or name == "dlsym") for name in names):
        fail(f"it shows {names}")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
