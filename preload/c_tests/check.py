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


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
