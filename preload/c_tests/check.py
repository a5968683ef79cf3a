"""Runs one program without and with libsmp_preload.so and compares: what it prints, how it ends, and what the report says.

check.py COMMAND ARGUMENTS...; the library, the folder of the stand-in driver and a folder for files come as SMP_TEST_PRELOAD,
SMP_TEST_DRIVER and SMP_TEST_OUT. Exits with 0 if all is as it must be, else says what is not.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys

PRELOAD = os.environ["SMP_TEST_PRELOAD"]
DRIVER = os.environ["SMP_TEST_DRIVER"]
OUT = os.environ["SMP_TEST_OUT"]

# The functions that are replaced in every mode but off: symbol -> the name, version and flags that mean it.
MEMORY = """cuMemAlloc_v2 cuMemFree_v2 cuMemAllocPitch_v2 cuMemAllocManaged cuMemGetInfo_v2 cuMemAllocAsync
cuMemAllocFromPoolAsync cuMemFreeAsync cuMemAllocHost_v2 cuMemHostAlloc cuMemFreeHost cuMemCreate cuMemRelease
cuCtxDestroy cuCtxDestroy_v2 cuCtxDetach cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRelease
cuDevicePrimaryCtxRelease_v2 cuGetProcAddress cuGetProcAddress_v2""".split()
TWINS = [name + "_ptsz" for name in ("cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync")]
# What only pool mode replaces besides.
POOL = """cuMemGetAddressRange_v2 cuPointerGetAttribute cuPointerGetAttributes cuIpcGetMemHandle
cuMemGetHandleForAddressRange cuCtxSynchronize cuCtxSynchronize_v2 cuCtxSetCurrent cuCtxPushCurrent cuCtxPushCurrent_v2
cuCtxPopCurrent cuCtxPopCurrent_v2 cuCtxCreate cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxAttach
cuGetExportTable cuStreamBeginCapture cuStreamBeginCapture_ptsz cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz
cuStreamBeginCaptureToGraph cuStreamBeginCaptureToGraph_ptsz cuStreamEndCapture cuStreamEndCapture_ptsz
cuStreamDestroy_v2 cuMemRetainAllocationHandle cuMemGetAccess cuMemSetAccess cuMemUnmap""".split()


def fail(text):
    print(text)
    sys.exit(1)


def run(command, settings=None, preload=True, check=True, driver=True, **more):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SMP_") or "TEST" in key or key == "SMP_PRELOAD_BREAK"}
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
        none = os.path.join(OUT, f"none.{os.getpid()}")
        with_it = run([program], {"SMP_MODE": "off", "SMP_REPORT": none})
        same("output", with_it.stdout, plain.stdout)
        same("standard error", with_it.stderr, plain.stderr)
        same("a report in off mode", os.path.exists(none), False)
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
    same("blocks of pools", report["served_by_pools"], did["device"]["allocs"] if mode == "pool" else 0)
    streams = report["streams"]
    same("allocations by stream", sum(stream["allocs"] for stream in streams), did["async"]["allocs"])
    # Built for per-thread default streams, the program means that stream by 0.
    named = {stream["stream"] for stream in streams}
    same("default stream used", "default" in named, "per_thread" not in os.path.basename(program))


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
    same("with a limit", limited, plain.stdout.splitlines()[0] + "\n1048576 1048576\n")


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
    if result.stderr.count("CUDA memory of") != 1:
        fail(f"not one report:\n{result.stdout}{result.stderr}")


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


def memory_goes_with_its_context(program, mode):
    plain = run([program, "contexts"], preload=False)
    result, report = report_of([program, "contexts"], mode)
    same("answers", result.stdout, plain.stdout)
    same("blocks left", report["devices"][0]["blocks"], 1)
    same("bytes left", report["devices"][0]["current"], 300)


def a_context_is_another_when_its_handle_comes_back(program, mode):
    """What was known of a context is struck out before another thread can make one by its handle."""
    for settings in ({}, {"SMP_FREE": "deferred"}, {"SMP_POOLS": "mapped(range_size=256MiB)"}) if mode == "pool" else ({},):
        _, report = report_of([program, "contexts_of_threads"], mode, SIMCUDA_CONTEXTS_AGAIN="1", **settings)
        same(f"blocks left with {settings}", report["devices"][0]["blocks"], 0)
        same(f"bytes left with {settings}", report["devices"][0]["current"], 0)
        same(f"frees of what was not known with {settings}", report["foreign_frees"], 0)


def each_context_finds_the_memory_that_the_last_one_left(program):
    """Whatever pools are made of, pages or mapped memory, they go with their context."""
    for pools in ("", "mapped(range_size=256MiB)", "direct()"):
        settings = {"SMP_MODE": "pool", "SMP_POOLS": pools, "SMP_LIMIT": "20MiB"}
        lines = run([program, "contexts_with_memory"], settings).stdout.splitlines()
        same(f"turns with {pools}", len(lines), 8)
        same(f"what there is with {pools}", set(lines), {lines[0]})


def a_refused_free_leaves_the_block_known(program, mode):
    """A free that is refused, by whatever call and for whatever reason, changes nothing: the right call finds the block."""
    os.environ["SIMCUDA_MEMORY"] = "256MiB"
    plain = run([program, "refused_frees"], preload=False)
    same("the end", plain.stdout.splitlines()[-1], "all there 1")
    pools = ({"SMP_FREE": "deferred"}, {"SMP_ASYNC": "pool"}, {"SMP_ASYNC": "pool", "SMP_FREE": "deferred"})
    for settings in ({}, *pools) if mode == "pool" else ({},):
        result, report = report_of([program, "refused_frees"], mode, **settings)
        same(f"answers with {settings}", result.stdout, plain.stdout)
        same(f"blocks left with {settings}", report["devices"][0]["blocks"], 0)


def a_free_is_ordered_after_another_contexts_stream(program):
    """A device's memory is freed on any of its contexts' streams, and used again only after that stream's work."""
    os.environ["SIMCUDA_MEMORY"] = "64MiB"
    for driver, seed in (("eager", 1), ("lazy", 1), *(("adversarial", seed) for seed in range(1, 4))):
        os.environ.update(SIMCUDA_MODE=driver, SIMCUDA_SEED=str(seed))
        plain = run([program, "other_contexts_streams"], preload=False)
        # In the last, what orders contexts is not seen, and nothing is said against it.
        for settings in ({}, {"SMP_FREE": "deferred"}, {"SMP_ASYNC": "pool"}, {"SMP_ASYNC": "pool", "SMP_FREE": "deferred"},
                         {"SMP_ASYNC": "pool", "SMP_POOLS": "direct()", "SMP_LIMIT": "24MiB"}, {"SMP_CHECK": "1"}):
            result, report = report_of([program, "other_contexts_streams"], "pool", **settings)
            same(f"answers with {settings}", result.stdout, plain.stdout)
            same(f"standard error with {settings}", result.stderr, plain.stderr)
            same(f"blocks left with {settings}", report["devices"][0]["blocks"], 0)


def memory_is_the_context_of_its_stream(program):
    """Pages belong to the context of the stream that memory came on, and go with it, whichever context was current."""
    for pools in ("", "mapped(range_size=256MiB)", "direct()"):
        settings = {"SMP_MODE": "pool", "SMP_ASYNC": "pool", "SMP_POOLS": pools, "SMP_LIMIT": "40MiB"}
        lines = run([program, "another_context_current"], settings).stdout.splitlines()
        same(f"turns with {pools}", len(lines), 16)
        same(f"what there is with {pools}", set(lines), {lines[0]})


def a_cancellation_waits_for_the_programs_own_point(program, mode):
    """Whatever our part of a call does: no thread is cancelled inside one, and each is at its own next point."""
    path = os.path.join(OUT, f"cancelled.{os.getpid()}.%p")
    reports = {"SMP_REPORT": f"{path}.json", "SMP_REPORT_SIGNAL": "1"}
    traced = {"SMP_TRACE": f"{path}.gz", "SMP_ASYNC": "pool"}
    for settings in ({}, reports, {"SMP_ASYNC": "pool", "SMP_FREE": "deferred"}, traced) if mode == "pool" else ({}, reports):
        run([program, "cancellation"], {"SMP_MODE": mode, **settings})
    path = os.path.join(OUT, f"ended.{os.getpid()}.json")
    ended = run([program, "cancelled_exit"], {"SMP_MODE": mode, "SMP_REPORT": path}, check=False)
    same("exit status", ended.returncode, 7)
    with open(path) as file:
        same("blocks in the report", json.load(file)["devices"][0]["blocks"], 1)


def nothing_is_left_rather_than_less(program, mode):
    """What is charged may pass the limit by the padding of rows: then 0 bytes are free."""
    result = run([program, "padded"], {"SMP_MODE": mode, "SMP_LIMIT": "400000"})
    same("output", result.stdout, "0 of 400000\n")


def an_allocation_waits_rather_than_fails(program):
    """With all memory behind work that has not run, an allocation synchronises before it would fail."""
    os.environ["SIMCUDA_MODE"] = "lazy"
    run([program, "relief"], {"SMP_MODE": "pool", "SMP_LIMIT": "10MiB", "SMP_FREE": "deferred"})


def a_steady_state_calls_the_driver_for_synchronises_only(program):
    for mode, expected in (("sync", {"cuCtxSynchronize": 1000}), ("deferred", None)):
        path = os.path.join(OUT, f"steady.{os.getpid()}")
        run([program, "steady"], {"SMP_MODE": "pool", "SMP_FREE": mode, "SIMCUDA_LOG": path})
        with open(path) as file:
            calls = [line.split("[")[0] for line in file]
        first, last = [n for n, call in enumerate(calls) if call == "cuDriverGetVersion"][-2:]
        counts = {}
        for call in calls[first + 1:last]:
            counts[call] = counts.get(call, 0) + 1
        print(f"driver calls per 1,000 allocations and frees, {mode}: {counts}")
        if expected is not None:
            same("driver calls", counts, expected)
        elif not counts or set(counts) - {"cuEventQuery", "cuCtxRecordEvent"}:
            fail(f"a deferred free made {counts}")


def an_address_tells_of_its_block_and_not_of_the_page(program, mode):
    plain = run([program, "addresses"], preload=False)
    same("of freed memory", run([program, "addresses"], {"SMP_MODE": mode}).stdout, plain.stdout)


def only_a_block_with_a_page_of_its_own_is_exported(program):
    path = os.path.join(OUT, f"export.{os.getpid()}")
    result = run([program, "export"], {"SMP_MODE": "pool", "SIMCUDA_LOG": path})
    with open(path) as file:
        asked = [line for line in file if line.startswith("cuIpcGetMemHandle")]
    same("handles asked of the driver", len(asked), 1)
    same("refused", result.stdout.split()[:2], ["small", "801"])
    if "cuIpcGetMemHandle refused" not in result.stderr or "SMP_EXPORT_THRESHOLD" not in result.stderr:
        fail(f"the refusal was not told: {result.stderr!r}")
    # With a lower threshold the small block can be exported as well.
    run([program, "export"], {"SMP_MODE": "pool", "SIMCUDA_LOG": path, "SMP_EXPORT_THRESHOLD": "4096"})
    with open(path) as file:
        same("with a threshold", len([line for line in file if line.startswith("cuIpcGetMemHandle")]), 2)


def captures_are_the_drivers(program, served):
    plain = run([program, "capture"], preload=False)
    settings = {"SMP_ASYNC": "pool"} if served == "pool" else {}
    result, report = report_of([program, "capture"], "pool", **settings)
    same("answers", result.stdout, plain.stdout)
    # The graph's own allocation is not ours: the pool served the two plain blocks outside of captures.
    same("blocks of pools", report["served_by_pools"], 2)


def what_pools_hold_is_there_for_others(program):
    os.environ["SIMCUDA_MEMORY"] = "64MiB"
    for settings in ({}, {"SMP_FREE": "deferred"}, {"SMP_LIMIT": "60MiB"}, {"SMP_ASYNC": "pool"}):
        run([program, "others"], {"SMP_MODE": "pool", **settings})


def the_drivers_pool_keeps_what_it_is_told_to(program, mode):
    same("without", run([program, "keeps"], {"SMP_MODE": mode}).stdout, "0\n")
    same("with", run([program, "keeps"], {"SMP_MODE": mode, "SMP_RELEASE_THRESHOLD": "none"}).stdout, "1\n")
    same("too little", run([program, "keeps"], {"SMP_MODE": mode, "SMP_RELEASE_THRESHOLD": "1KiB"}).stdout, "0\n")


def a_capture_of_the_threads_stream_ends(program):
    _, report = report_of([program, "capture_per_thread"], "pool")
    same("blocks of pools", report["served_by_pools"], 2)


def a_capture_goes_on_when_it_is_ended_elsewhere(program):
    plain = run([program, "capture_ended_elsewhere"], preload=False)
    same("answers", run([program, "capture_ended_elsewhere"], {"SMP_MODE": "pool"}).stdout, plain.stdout)


def a_capture_ends_with_the_stream_that_it_began_on(program):
    plain = run([program, "capture_of_a_destroyed_stream"], preload=False)
    for settings in ({}, {"SMP_FREE": "deferred"}, {"SMP_ASYNC": "pool"}):
        result, report = report_of([program, "capture_of_a_destroyed_stream"], "pool", **settings)
        same(f"answers with {settings}", result.stdout, plain.stdout)
        same(f"blocks of pools with {settings}", report["served_by_pools"], 33)


def an_empty_driver_name_is_none(program):
    """As for every other setting; the program is not taken for the driver."""
    for name in ("", "/nowhere/libcuda.so.1"):
        _, report = report_of([program, "keeps"], "pool", SMP_CUDA_LIBRARY=name)
        same("allocations seen", report["devices"][0]["allocs"], 1)


def each_contexts_trace_is_complete(program, replay):
    """A context that goes completes its trace, and the next one does not write over it."""
    path = os.path.join(OUT, f"contexts.{os.getpid()}")
    run([program, "contexts_in_turn"], {"SMP_MODE": "pool", "SMP_TRACE": f"{path}.gz"})
    for turn, name in ((1, f"{path}.gz"), (2, f"{path}.1.gz"), (3, f"{path}.2.gz")):
        played = run([replay, "--format", "kv", name], preload=False, driver=False)
        # An allocation, the wait of its free, and the free.
        same(name, played.stdout.split()[1], f"events={3 * turn}")


def the_pools_figures_are_those_of_the_pool_that_serves(program):
    run([program, "pool_figures"], preload=False)
    run([program, "pool_figures"], {"SMP_MODE": "pool"})
    _, report = report_of([program, "pool_figures"], "pool", SMP_ASYNC="pool")
    same("blocks of pools", report["served_by_pools"], 1)


def same_by_our_pools(program, case, served):
    """Each way of the library answers what the driver does; with `SMP_ASYNC=pool` our pools serve as many blocks as they must."""
    plain = run([program, case], preload=False)
    same("forwarded", run([program, case], {"SMP_MODE": "pool"}).stdout, plain.stdout)
    for frees in ("sync", "deferred"):
        result, report = report_of([program, case], "pool", SMP_ASYNC="pool", SMP_FREE=frees)
        same("answers", result.stdout, plain.stdout)
        same("blocks of pools", report["served_by_pools"], served)
    return result, report


def a_pool_that_the_program_chooses_serves(program):
    """From the first allocation on, in every context, and until it is chosen no more: then ours serve again."""
    same_by_our_pools(program, "chosen_pool", 4)


def a_pool_that_is_open_to_other_devices_is_the_drivers(program):
    """From the first allocation on, in every context, and until it is closed: then ours serve again."""
    os.environ["SIMCUDA_DEVICES"] = "2"
    result, _ = same_by_our_pools(program, "opened_pool", 2)
    same("lines on standard error", len(result.stderr.splitlines()), 1)
    same("what is told", "open to other devices" in result.stderr, True)


def what_a_program_sets_of_the_default_pool_stays(program):
    """Before there is a context, through all contexts, and while another pool serves."""
    same_by_our_pools(program, "kept_settings", 4)


def the_default_pool_is_one(program):
    """Whether it is named or not, its memory comes from ours, counts in its figures and tells that it is its."""
    # Four stream-ordered blocks and a plain one; of the five by name one is another pool's, and one the graph's.
    _, report = same_by_our_pools(program, "default_pool", 5)
    same("by name", kinds_of(report)["from_pool"]["allocs"], 5)
    same("blocks left", report["devices"][0]["blocks"], 0)


def accesses_without_order_are_reported(program, runner):
    os.environ["SIMCUDA_MODE"] = "lazy"
    path = os.path.join(OUT, f"accesses.{os.getpid()}.json")
    for unordered in ("", "1"):
        command = [runner, "--stand-in", "--check", "--report", path, "--", program, "accesses"]
        settings = {"UNORDERED": unordered} if unordered else {}
        result = run(command, settings, preload=False)
        with open(path) as file:
            report = json.load(file)
        same("checked", report["accesses_checked"], 3 if unordered else 2)
        same("faulty", report["accesses_faulty"], 1 if unordered else 0)
        same("told", bool(result.stderr), bool(unordered))


def the_legacy_streams_order_is_seen(program):
    """It orders blocking streams, and a copy to the host returns when it is over: neither is a race, and none of the two is."""
    for unordered in ("", "1"):
        settings = {"SMP_CHECK": "1", **({"UNORDERED": unordered} if unordered else {})}
        result, report = report_of([program, "legacy_order"], "pool", **settings)
        same("checked", report["accesses_checked"], 7 if unordered else 6)
        same("faulty", report["accesses_faulty"], 1 if unordered else 0)
        same("told", bool(result.stderr), bool(unordered))


def smp_run_sets_what_it_is_told(program, runner):
    path = os.path.join(OUT, f"run.{os.getpid()}.json")
    command = [runner, "--stand-in", "--limit", "10MiB", f"--report={path}", "--", program, "limit"]
    result = run(command, preload=False, driver=False)
    same("limit", result.stdout.splitlines()[1], "blocks 10, then 2")
    with open(path) as file:
        same("limit in the report", json.load(file)["limit"], 10 << 20)
    same("exit status", run([runner, "sh", "-c", "exit 7"], preload=False, check=False).returncode, 7)
    same("no program", run([runner, "--limit", "1MiB"], preload=False, check=False).returncode, 2)
    for option in ("--report", "--trace", "--limit", "--mode"):
        none = run([runner, option, "--", "sh", "-c", "echo ran"], preload=False, check=False)
        same(f"{option} without a value", (none.returncode, none.stdout), (2, ""))
        same("what is said", none.stderr.startswith(f"smp-run: {option} needs a value"), True)
    bad = run([runner, "--limit", "10MB", "sh", "-c", "echo ran"], preload=False, check=False)
    same("a bad setting", (bad.returncode, bad.stdout), (2, ""))
    same("a bad setting is named", "SMP_LIMIT" in bad.stderr, True)
    same("not found", run([runner, "/nowhere/to/be/found"], preload=False, check=False).returncode, 127)
    empty = run([runner, "--limit", "", "--", "sh", "-c", "echo ran"], preload=False, check=False)
    same("an empty value", (empty.returncode, empty.stdout), (2, ""))


def smp_run_takes_any_file_name(program, runner):
    """Names are bytes to the system; both ways to give one, and %p within it."""
    for name in (b"odd \xff%p.json", b"odd=\xfe.json"):
        path = os.path.join(os.fsencode(OUT), b"%d." % os.getpid() + name)
        for option in ([b"--report=" + path], [b"--report", path]):
            run([runner, "--stand-in", "--limit", "10MiB", *option, "--", program, "limit"], preload=False, driver=False)
            folder = os.fsencode(OUT)
            (written,) = [file for file in os.listdir(folder) if file.startswith(b"%d.odd" % os.getpid())]
            same("what follows the number", written.endswith(name[name.index(b"."):]), True)
            same("not as text", b"\xef\xbf\xbd" in written, False)
            with open(os.path.join(folder, written)) as file:
                same("a report", json.load(file)["moment"], "exit")
            os.remove(os.path.join(folder, written))


def what_cannot_be_written_is_told(runner, replay, trace):
    """A full disk under standard output is a failure, and said so in one line."""
    for command in ([runner, "--help"], [runner, "--version"], [runner, "--print", "true"], [replay, "--help"], [replay, trace],
                    [replay, "--format", "kv", trace]):
        with open("/dev/full", "w") as full:
            environment = {key: value for key, value in os.environ.items() if not key.startswith("SMP_")}
            result = subprocess.run(command, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
        same(f"exit status of {command}", result.returncode, 1)
        name = "smp-run" if command[0] == runner else "replay"
        same("lines", len(result.stderr.splitlines()), 1)
        same("what is said", result.stderr.startswith(f"{name}: standard output: "), True)


def smp_run_refuses_a_folder_that_the_loader_cannot_be_told(runner):
    """A space or a colon ends a name in LD_PRELOAD; the loader would only warn, and the program run without the library."""
    folder = os.path.join(OUT, f"with space {os.getpid()}")
    os.makedirs(folder)
    for file in (runner, PRELOAD):
        shutil.copy(file, folder)
    result = run([os.path.join(folder, os.path.basename(runner)), "sh", "-c", "echo ran"], preload=False, check=False)
    shutil.rmtree(folder)
    same("exit status and output", (result.returncode, result.stdout), (127, ""))
    same("the reason", "LD_PRELOAD" in result.stderr, True)


def a_trace_replays_to_the_same_peaks(program, replay):
    path = os.path.join(OUT, f"trace.{os.getpid()}.gz")
    for served in ("forward", "pool"):
        for mode in ("eager", "adversarial"):
            os.environ["SIMCUDA_MODE"] = mode
            _, report = report_of([program, "400", "3"], "pool", SMP_TRACE=path, SMP_ASYNC=served)
            played = run([replay, "--format", "kv", path], preload=False)
            figures = dict(pair.split("=", 1) for pair in played.stdout.split() if "=" in pair)
            device = report["devices"][0]
            same("peak reserved", int(figures["reserved_peak"]), device["pages"]["peak"])
            live = device if served == "pool" else device["kinds"]["device"]
            same("peak live", int(figures["live_peak"]), live["peak"])
            same("failures", int(figures["failures"]), 0)


def overhead(program):
    """What a call costs without the library and in each mode, over the stand-in, in one run. Gates nothing."""
    settings = {
        "none": None,
        "off": {"SMP_MODE": "off"},
        "count": {"SMP_MODE": "count"},
        "pool": {"SMP_MODE": "pool"},
        "pool, deferred frees": {"SMP_MODE": "pool", "SMP_FREE": "deferred"},
        "pool, async too": {"SMP_MODE": "pool", "SMP_ASYNC": "pool"},
    }
    print(f"{'mode':<22}{'cuMemAlloc':>12}{'cuMemFree':>12}{'AllocAsync':>12}{'FreeAsync':>12}{'cuMemGetInfo':>14}   ns a call")
    for name, chosen in settings.items():
        result = run([program], chosen or {"SMP_MODE": "off"}, preload=chosen is not None)
        figures = [float(word) for word in result.stdout.split()]
        print(f"{name:<22}" + "".join(f"{figure:>{width}.0f}" for figure, width in zip(figures, (12, 12, 12, 12, 14))))


def torch_allocator(program, library):
    """libsmp serves PyTorch's pluggable allocator; within SMP_LIMIT; and with the preload library under it."""
    for mode in ("eager", "lazy"):
        same("output", run([program, library], {"SIMCUDA_MODE": mode}, preload=False).stdout, "ok\n")
    over = run([program, library], {"SMP_LIMIT": "4MiB"}, preload=False, check=False)
    if "p = alloc(8 << 20, 0, s)" not in over.stderr:
        fail(f"8 MiB came within a limit of 4 MiB: {over.stderr!r}")
    for name, value in (("SMP_LIMIT", "4MB"), ("SMP_LIMIT", "0"), ("SMP_LIMIT", "4MiB); direct("), ("SMP_POOLS", "sliced(")):
        bad = run([program, library], {name: value}, preload=False, check=False)
        if f"smp: {name}: " not in bad.stderr or "p = alloc(1000, 0, s)" not in bad.stderr:
            fail(f"{name}={value} was taken for none: {bad.stderr!r}")
    same("output", run([program, library], {"SMP_MODE": "pool"}).stdout, "ok\n")


def bytes_stay_right(program, settings, seeds):
    """A program that relies on frees that wait finds every byte right, whatever the order in which streams run."""
    chosen = dict(pair.split("=", 1) for pair in settings.split(",") if pair)
    for seed in range(1, int(seeds) + 1):
        run([program, "80", str(seed)], {"SIMCUDA_MODE": "adversarial", "SIMCUDA_SEED": str(seed), **chosen})
    print(f"{seeds} seeds")


def as_without_the_library(*command):
    """A program with a CUDA runtime of its own: without a driver and over the stand-in, which the runtime refuses, the same
    answers, and the same look-ups made of the driver."""
    same("without a driver", run(command, driver=False).stdout, run(command, preload=False, driver=False).stdout)
    logs, outputs = [], []
    for preload in (False, True):
        path = os.path.join(OUT, f"runtime.{os.getpid()}.{preload}")
        outputs.append(run(command, {"SIMCUDA_LOG": path}, preload=preload).stdout)
        with open(path) as file:
            logs.append([line.split("[")[0] for line in file])
    same("answers over the stand-in", outputs[1], outputs[0])
    same("calls of the driver", logs[1], logs[0])
    if logs[0].count("cuGetProcAddress_v2") < 300:
        fail(f"the runtime made only {len(logs[0])} look-ups")


# What the library may be told to do; and where a stream-ordered block that outlives its context may be had.
WAYS = {
    "off": {"SMP_MODE": "off"},
    "count": {"SMP_MODE": "count"},
    "pool": {},
    "report": {"SMP_REPORT": os.path.join(OUT, "random.%p.json")},
    "deferred": {"SMP_FREE": "deferred"},
    "async": {"SMP_ASYNC": "pool"},
    "async deferred": {"SMP_ASYNC": "pool", "SMP_FREE": "deferred"},
    "check": {"SMP_CHECK": "1"},
    "trace": {"SMP_ASYNC": "pool", "SMP_TRACE": os.path.join(OUT, f"random.{os.getpid()}.gz")},
    "mapped": {"SMP_POOLS": "preset(mapped)"},
    "mapped async": {"SMP_POOLS": "preset(mapped)", "SMP_ASYNC": "pool", "SMP_FREE": "deferred"},
    "direct": {"SMP_POOLS": "direct()", "SMP_ASYNC": "pool"},
    "cuda": {"SMP_POOLS": "preset(cuda)", "SMP_ASYNC": "pool"},
    "exported": {"SMP_EXPORT_THRESHOLD": "1"},
    "threshold": {"SMP_RELEASE_THRESHOLD": "none"},
}
# What may be said of such programs on standard error, by design.
SAID = ("is open to other devices: the driver serves", "refused: the block of")


def to_compare(text, way, threads):
    """What must be the same: free memory, figures of pools and what has run by when are not, where docs/preload.md says so."""
    settings = WAYS[way]
    drivers = settings.get("SMP_MODE") in ("off", "count")
    dropped = "MPS" if threads > 1 or os.environ["SIMCUDA_MODE"] != "lazy" else "" if drivers else "MP"
    if "SMP_FREE" in settings or "SMP_ASYNC" in settings or "SMP_CHECK" in settings:
        dropped += "S"
    lines = text.splitlines()
    for mark in dropped:
        lines = [re.sub(rf" ?\|{mark}.*", "", line) for line in lines]
    # The mapping behind a block is told where there is one.
    return [line for line in lines if not re.search(" attribute 1[89] ", line)]


def random_programs(program, first, last, steps, threads):
    """Programs of calls that a seed chooses answer the same without and with the library, whatever it is told to do."""
    threads = int(threads)
    os.environ.update(SIMCUDA_DEVICES="2", SIMCUDA_MEMORY="8GiB")
    unsteady = 0
    for seed in range(int(first), int(last) + 1):
        command = [program, str(seed), steps, str(threads)]
        for mode in ("eager", "lazy", "adversarial"):
            os.environ.update(SIMCUDA_MODE=mode, SIMCUDA_SEED=str(seed))
            plain = run(command, preload=False, check=False)
            if "BAD" in plain.stdout:
                fail(f"{command} reads wrong bytes without the library ({mode})")
            again = run(command, preload=False, check=False)
            if (plain.stdout, plain.returncode) != (again.stdout, again.returncode):
                # Host functions run when they please, and something depended on it.
                unsteady += 1
                continue
            for way, settings in WAYS.items():
                # Memory goes with its context, stream-ordered or not, where it is ours; half of the programs rely on neither.
                if seed % 2 == 0 and ("SMP_ASYNC" in settings or "SMP_CHECK" in settings):
                    continue
                # What orders streams by way of another context is not seen; a quarter of the programs do without.
                if seed % 4 != 1 and "SMP_CHECK" in settings:
                    continue
                got = run(command, settings, check=False)
                what = f"{' '.join(command)} with {settings}, SIMCUDA_MODE={mode}: "
                before, after = to_compare(plain.stdout, way, threads), to_compare(got.stdout, way, threads)
                for one, other in zip(before, after):
                    same(what, other, one)
                same(what + "lines", len(after), len(before))
                same(what + "exit status", got.returncode, plain.returncode)
                said = [line for line in got.stderr.splitlines() if not any(known in line for known in SAID)]
                same(what + "standard error", said, plain.stderr.splitlines())
    print(f"{last} seeds, {unsteady} runs left out")


def a_linked_program_is_replaced_what_is_wanted(program):
    """Its calls come to the library's exports, whatever is switched on; what is not wanted there is the driver's."""
    _, report = report_of([program], "pool")
    same("accesses checked", report["accesses_checked"], 0)
    _, report = report_of([program], "pool", SMP_CHECK="1")
    same("accesses are checked where asked", report["accesses_checked"] > 0, True)


def a_refusal_is_the_drivers(program, mode):
    """What is wrong besides the address, and what a refused call does to a capture: as without the library."""
    os.environ["SIMCUDA_MEMORY"] = "256MiB"
    plain = run([program, "refusals"], preload=False)
    ways = ({}, {"SMP_FREE": "deferred"}, {"SMP_ASYNC": "pool"}, {"SMP_ASYNC": "pool", "SMP_FREE": "deferred"},
            {"SMP_POOLS": "mapped(range_size=256MiB)", "SMP_ASYNC": "pool"})
    for settings in ways if mode == "pool" else ({},):
        result, report = report_of([program, "refusals"], mode, **settings)
        same(f"answers with {settings}", result.stdout, plain.stdout)
        same(f"blocks left with {settings}", report["devices"][0]["blocks"], 0)


def addresses_of_an_ended_context_are_whoevers_gets_them(program, mode):
    """Between the end of a context in the driver and our note of it, its addresses may be another block's."""
    ways = ({}, {"SMP_POOLS": "preset(cuda)"}, {"SMP_POOLS": "preset(cuda)", "SMP_ASYNC": "pool"},
            {"SMP_POOLS": "mapped(range_size=256MiB)"})
    for settings in ways if mode == "pool" else ({},):
        result, _ = report_of([program, "addresses_of_ended_contexts"], mode, **settings)
        same(f"answers with {settings}", result.stdout, "0 wrong\n")


def clients(script, mode):
    """NVIDIA's Python packages over the stand-in: right data; the report tells of their allocations."""
    folder = os.path.join(OUT, f"clients.{os.getpid()}")
    os.makedirs(folder)
    for name in ("bindings", "core", "numba_arrays"):
        report = os.path.join(folder, f"{name}.%p.json")
        wrapper = ["env", f"LD_PRELOAD={PRELOAD}", f"SMP_MODE={mode}", f"SMP_REPORT={report}"]
        run([script, "--only", name, *wrapper], preload=False, driver=False)
    found = os.listdir(folder)
    for name in ("bindings", "core", "numba_arrays"):
        reports = []
        for file in (file for file in found if file.startswith(name)):
            with open(os.path.join(folder, file)) as opened:
                reports.append(json.load(opened))
        if not reports or any(not any(d["allocs"] for d in report["devices"]) for report in reports):
            fail(f"no report tells of {name}'s allocations: {found}")


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
