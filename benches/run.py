#!/usr/bin/env python3
"""Runs every workload on every allocator that scripts/bench.sh could build, and writes one table and one JSON file.

Each measurement is a process of its own. The allocators take turns within a workload, so that a noisy minute falls on
all of them; with several repetitions the medians over them are reported. Only the standard library is used.
"""

import argparse
import csv
import datetime
import gzip
import json
import math
import os
import platform
import re
import shutil
import statistics
import struct
import subprocess
import sys
import time

import made_up

DEVICE_CALL_NS = 20_000
VERDICTS = {True: "met", False: "missed", None: "undecided: the cores were busy"}
QUIET = 1.7  # the least speed-up of two unshared threads in a run whose other thread figures count

# Peer: (program, what it is). The order is that of the table's columns.
PEERS = {
    "libsmp": ("smp", "libsmp through its C interface, default preset"),
    "libsmp-exclusive": ("smp", "libsmp, preset of exclusive pages (only where said)"),
    "rmm-pool": ("rmm", "RMM 24.12 pool_memory_resource"),
    "rmm-arena": ("rmm", "RMM 24.12 arena_memory_resource (takes all it may use at its creation)"),
    "cub": ("cub", "CUB 12.6 CachingDeviceAllocator as constructed by default (caches at most 6 MiB)"),
    "cub-cache-all": ("cub", "CUB 12.6 CachingDeviceAllocator, powers of two, everything cached"),
    "cubecl-sliced": ("peers", "cubecl-runtime 0.10, sliced pools, storage that only counts"),
    "cubecl-exclusive": ("peers", "cubecl-runtime 0.10, exclusive pages, storage that only counts"),
    "oxicuda": ("peers", "oxicuda-driver, CPU pool"),
    "offset-allocator": ("peers", "offset-allocator over one range (a bare sub-allocator: no streams, no growth)"),
    "rlsf": ("peers", "rlsf over one range (a bare sub-allocator: no streams, no growth)"),
    "pytorch": ("pytorch", "PyTorch's native policy, simulated: for peak reserved only"),
    "mimalloc": ("peers", "mimalloc, real memory"),
    "glibc": ("host", "glibc malloc, real memory"),
}
SHOWN = [p for p in PEERS if p != "libsmp-exclusive"]
NO_TIME = {"pytorch"}  # simulated: its time means nothing


def say(text):
    print(text, file=sys.stderr, flush=True)


# --- traces ---------------------------------------------------------------------------------------------------------


def pack_trace(source, target):
    """Writes a version-1 trace as the programs read it; returns what is to know of it.

    Raises ValueError for anything that is not version 1.
    """
    opener = gzip.open if source.endswith(".gz") else open
    slot_of, free_slots, streams = {}, [], {}
    size_of = {}
    live = peak = 0
    slots = 0
    out = bytearray()
    pack = struct.Struct("<QIHH").pack
    with opener(source, "rt", newline="") as text:
        rows = csv.reader(line for line in text if not line.startswith("#"))
        header = next(rows, [])
        if header[:4] != ["op", "id", "size", "stream"]:
            raise ValueError("not a version-1 trace")
        events = 0
        for row in rows:
            op, key, size = row[0], row[1], int(row[2])
            stream = streams.setdefault(row[3], len(streams))
            if op == "a":
                slot = free_slots.pop() if free_slots else slots
                slots = max(slots, slot + 1)
                slot_of[key], size_of[key] = slot, size
                live += size
                peak = max(peak, live)
                out += pack(size, slot, stream, 1)
            elif op == "f":
                slot = slot_of.pop(key)
                live -= size_of.pop(key)
                free_slots.append(slot)
                out += pack(size, slot, stream, 0)
            else:
                raise ValueError(f"unknown operation {op!r}")
            events += 1
    with open(target, "wb") as binary:
        binary.write(out)
    return {"events": events, "streams": len(streams), "live_peak": peak}


OPS = {"record": 2, "wait": 3, "sync": 4, "sync-device": 5, "sync-event": 6, "submit": 7, "advance": 8, "user": 9}


def pack_recording(source, target):
    """Writes the calls of a version-2 trace as the programs read them: they are made again, on a pool of the program's
    own and without the recorded device's capacity. Stream flags other than the order of work are not kept.
    """
    opener = gzip.open if source.endswith(".gz") else open
    streams, events_of = {}, {}
    slot_of, size_of, free_slots, free_events = {}, {}, [], []
    slots = event_slots = live = peak = events = asked = 0
    out = bytearray()
    pack = struct.Struct("<QIHH").pack

    def stream(word):
        return streams.setdefault(word, len(streams))

    with opener(source, "rt") as text:
        if next(text, "").split() != ["smp-trace", "2"]:
            raise ValueError("not a version-2 trace")
        for line in text:
            words = line.split()
            what, rest = words[0], words[1:]
            if what == "alloc":
                if rest[3] == "host":
                    raise ValueError("host-ordered allocations are not replayed here")
                asked, asking = int(rest[1]), rest[3]
            elif what == "got":
                slot = free_slots.pop() if free_slots else slots
                slots = max(slots, slot + 1)
                slot_of[rest[0]], size_of[rest[0]] = slot, asked
                live += asked
                peak = max(peak, live)
                events += 1
                out += pack(asked, slot, stream(asking), 1)
            elif what == "free":
                slot, size = slot_of.pop(rest[0]), size_of.pop(rest[0])
                live -= size
                free_slots.append(slot)
                events += 1
                out += pack(size, slot, stream(rest[1]), 0)
            elif what == "event":
                events_of[rest[0]] = free_events.pop() if free_events else event_slots
                event_slots = max(event_slots, events_of[rest[0]] + 1)
            elif what == "event-destroy":
                free_events.append(events_of.pop(rest[0]))
            elif what in ("record", "wait"):
                out += pack(0, events_of[rest[0]], stream(rest[1]), OPS[what])
            elif what == "sync":
                out += pack(0, 0, stream(rest[0]), OPS[what])
            elif what == "sync-device":
                out += pack(0, 0, 0, OPS[what])
            elif what == "sync-event":
                out += pack(0, events_of[rest[0]], 0, OPS[what])
            elif what in ("submit", "advance"):
                out += pack(int(rest[1]), 0, stream(rest[0]), OPS[what])
            elif what == "user":
                out += pack(0, slot_of[rest[0]], stream(rest[1]), OPS[what])
    with open(target, "wb") as binary:
        binary.write(out)
    return {"events": events, "streams": len(streams), "live_peak": peak}


def make_streams_trace(target, streams=4, steps=60):
    """A made-up pipeline: each stream runs layers and frees in reverse, and hands some buffers on to the next stream,
    which frees them. The same at every run.
    """
    state = 12345

    def draw(n):
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % n

    out, free_slots, slots, live, peak = bytearray(), [], 0, 0, 0
    size_of = {}
    pack = struct.Struct("<QIHH").pack

    def alloc(size, stream):
        nonlocal slots, live, peak, out
        slot = free_slots.pop() if free_slots else slots
        slots = max(slots, slot + 1)
        size_of[slot] = size
        live += size
        peak = max(peak, live)
        out += pack(size, slot, stream, 1)
        return slot

    def free(slot, stream):
        nonlocal live, out
        live -= size_of[slot]
        out += pack(size_of[slot], slot, stream, 0)
        free_slots.append(slot)

    for stream in range(streams):
        for _ in range(40):
            alloc((1 + draw(64)) << 16, stream)
    handed = [[] for _ in range(streams)]
    for _ in range(steps):
        kept = [[] for _ in range(streams)]
        for layer in range(24):
            for stream in range(streams):
                for slot in handed[stream]:
                    free(slot, stream)
                handed[stream] = []
                scratch = [alloc(512 << draw(14), stream) for _ in range(3)]
                kept[stream].append(alloc((1 << 20) * (1 + draw(12)), stream))
                handed[(stream + 1) % streams].append(alloc((1 << 18) * (1 + draw(8)), stream))
                for slot in scratch:
                    free(slot, stream)
        for stream in range(streams):
            for slot in reversed(kept[stream]):
                free(slot, stream)
    with open(target, "wb") as binary:
        binary.write(out)
    return {"events": len(out) // 16, "streams": streams, "live_peak": peak}


def find_traces(directories, work, further):
    """{name: (packed file, facts)} of every trace in the directories, of one made up here, and if asked of made_up.py's."""
    os.makedirs(work, exist_ok=True)
    found = {}
    for directory in directories:
        for file in sorted(os.listdir(directory)):
            kind = re.search(r"\.(csv|smp)(\.gz)?$", file)
            if not kind:
                continue
            name = file[:kind.start()]
            target = os.path.join(work, name + ".bin")
            read = pack_trace if kind.group(1) == "csv" else pack_recording
            try:
                found[name] = (target, read(os.path.join(directory, file), target))
            except (ValueError, IndexError, KeyError) as error:
                say(f"bench: {file} is left out: {error}")
    target = os.path.join(work, "made-up-pipeline.bin")
    found["made-up-pipeline"] = (target, make_streams_trace(target))
    if further:
        found.update((f"made-up {name}", one) for name, one in made_up.write(os.path.join(work, "made-up")).items())
    return found


# --- running --------------------------------------------------------------------------------------------------------


class Runner:
    def __init__(self, programs, work, repetitions, limit_s):
        self.programs, self.work = programs, work
        self.repetitions, self.limit_s = repetitions, limit_s
        self.results = []  # everything that was measured, for the JSON
        self.slow = {}  # (peer, workload, other arguments): the size at which it did not finish in time

    def program(self, peer):
        path = os.path.join(self.programs, PEERS[peer][0] if peer in PEERS else "host")
        return path if os.access(path, os.X_OK) else None

    def call(self, argv, limit_s=None):
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=limit_s or self.limit_s)
        except subprocess.TimeoutExpired:
            return {"skipped": f"> {self.limit_s} s"}
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            return {"skipped": "failed: " + why[:200]}
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def measure(self, peers, workload, *arguments, batches=None):
        """{peer: the medians over the repetitions}; the peers take turns."""
        arguments = [str(a) for a in arguments]
        runs = {peer: [] for peer in peers}
        took = {}
        size = int(arguments[0]) if arguments and arguments[0].isdigit() else 0
        for _ in range(self.repetitions):
            for peer in peers:
                # Once is enough for what takes long, and what was too slow with fewer blocks needs no second proof.
                if runs[peer] and ("skipped" in runs[peer][0] or took[peer] > 2):
                    continue
                kind = (peer, workload, *arguments[1:])
                if workload != "trace" and size > self.slow.get(kind, size):
                    runs[peer].append({"skipped": f"> {self.limit_s} s"})
                    continue
                program = self.program(peer)
                if program is None:
                    runs[peer].append({"skipped": "not built"})
                    continue
                argv = [program, peer, workload, *arguments]
                if batches:
                    argv += ["--batches", str(batches)]
                start = time.time()
                answer = self.call(argv)
                took[peer] = time.time() - start
                runs[peer].append(answer if isinstance(answer, dict) else answer[0])
                if runs[peer][-1].get("skipped", "").startswith(">"):
                    self.slow.setdefault(kind, size)
        merged = {peer: merge(many) for peer, many in runs.items() if many}
        for peer, one in merged.items():
            self.results.append({"peer": peer, "workload": workload, "arguments": shown(arguments), **one})
        return merged

    def instructions(self, peers, workload, *arguments, batches=100):
        """{peer: instructions an event, less those of the harness}, by callgrind."""
        if not shutil.which("valgrind"):
            return {}
        arguments = [str(a) for a in arguments]
        counted = {}
        for peer in ["null", *peers]:
            program = self.program(peer)
            if program is None:
                continue
            out = os.path.join(self.work, "callgrind.out")
            if os.path.exists(out):
                os.remove(out)
            argv = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", program, peer]
            argv += [workload, *arguments, "--batches", str(batches), "--count"]
            answer = self.call(argv, 4 * self.limit_s)
            if isinstance(answer, dict) or "skipped" in answer[0]:
                continue
            total = total_instructions(out)
            events = answer[0]["rounds"][-1]["events"] if "rounds" in answer[0] else answer[0]["events"]
            counted[peer] = total / events
        harness = counted.pop("null", 0)
        net = {peer: round(count - harness, 1) for peer, count in counted.items()}
        self.results.append({"workload": workload, "arguments": shown(arguments), "instructions": net,
                             "harness_instructions": round(harness, 1)})
        return net

    def futex_calls(self, threads):
        """Futex calls of libsmp per million events in steady state, or None: a long run's less a short one's."""
        program = self.program("libsmp")
        if not shutil.which("strace") or program is None:
            return None
        counts = []
        for batches in (500, 1500):
            out = os.path.join(self.work, "strace.out")
            argv = ["strace", "-f", "-c", "-e", "trace=futex", "-o", out, program, "libsmp", "threads", str(threads)]
            answer = self.call(argv + ["--batches", str(batches)], 4 * self.limit_s)
            if isinstance(answer, dict):
                return None
            with open(out) as text:
                calls = [int(line.split()[3]) for line in text if line.rstrip().endswith("futex")]
            counts.append((sum(calls), answer[0]["events"]))
        (few, short), (many, long) = counts
        figure = round((many - few) / (long - short) * 1e6, 2)
        self.results.append({"peer": "libsmp", "workload": "futex", "threads": threads, "per_million_events": figure})
        return figure


def total_instructions(path):
    """Instructions in a callgrind file: its largest total (the summary is of what was counted before a reset)."""
    with open(path) as text:
        return max((int(line.split()[1]) for line in text if line.startswith(("summary:", "totals:"))), default=0)


def shown(arguments):
    return [os.path.basename(a) for a in arguments]


def merge(runs):
    """One object of many: the median of every number, position by position in lists."""
    first = runs[0]
    if isinstance(first, dict):
        return {key: merge([run[key] for run in runs if key in run]) for key in first}
    if isinstance(first, list):
        return [merge(list(column)) for column in zip(*runs)]
    if isinstance(first, (int, float)) and not isinstance(first, bool):
        return statistics.median(runs)
    return first


# --- the table ------------------------------------------------------------------------------------------------------


class Table:
    def __init__(self, peers):
        self.peers, self.rows = peers, []

    def heading(self, text):
        say(f"{time.strftime('%H:%M:%S')} {text}")
        self.rows.append((text, None))

    def row(self, text, values):
        """values: {peer: number, text or None}"""
        self.rows.append((text, values))

    def markdown(self):
        head = ["", *self.peers]
        lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * len(self.peers)]
        for text, values in self.rows:
            if values is None:
                lines.append(f"| **{text}** |" + " |" * len(self.peers))
            else:
                lines.append("| " + " | ".join([text, *[cell(values.get(p)) for p in self.peers]]) + " |")
        return "\n".join(lines)


def cell(value):
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}" if value < 1 else f"{value:.2f}"


def pick(merged, get):
    """{peer: get(result)}; what a peer could not do is told instead."""
    out = {}
    for peer, one in merged.items():
        if "skipped" in one:
            why = one["skipped"]
            out[peer] = why if why.startswith((">", "not built")) else "failed" if why.startswith("failed") else "–"
        else:
            try:
                out[peer] = get(one)
            except (KeyError, IndexError, ZeroDivisionError):
                out[peer] = None
    return out


def ns(one, key="ns"):
    return None if one.get("peer") in NO_TIME else float(one[key])


def waste(one):
    return round(one["reserved_peak"] / one["live_peak"], 3)


def size_name(n):
    return f"{n // 1000000}M" if n >= 1000000 and n % 1000000 == 0 else f"{n // 1000}k" if n >= 1000 and n % 1000 == 0 else str(n)


def geometric(values):
    values = [v for v in values if v]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


# --- the suite ------------------------------------------------------------------------------------------------------


def suite(runner, traces, quick):
    peers = [p for p in SHOWN if p != "pytorch"]
    table = Table(SHOWN)
    checks = []
    lives = [10, 1000, 100_000] if quick else [10, 1000, 100_000, 1_000_000]
    batches = 500 if quick else 1000

    floor = {}
    host = runner.program("glibc")
    for _ in range(3):
        for one in runner.call([host, "floor"]):
            floor.setdefault(one["peer"], []).append(one["ns"])
    floor = {name: min(many) for name, many in floor.items()}
    runner.results.append({"workload": "floor", **floor})
    say(f"floor: {floor}")

    def floor_now():
        again = {one["peer"]: one["ns"] for one in runner.call([host, "floor"])}
        return again["mutex"]

    table.heading("One size, allocated and freed at once, beside N live blocks: ns an event")
    pair_ns = {}
    for live in lives:
        got = runner.measure(peers, "pair", live, batches=batches)
        pair_ns[live] = got
        table.row(f"{size_name(live)} live", pick(got, ns))
    table.row("p99 of 100 events, 1k live", pick(pair_ns[1000], lambda one: ns(one, "ns_p99")))

    table.heading("Steady reuse, 256 B to 128 KiB, bursts of ten: ns an event")
    steady = {}
    for order in ("lifo", "fifo", "random"):
        for live in lives:
            got = runner.measure(peers, "steady", live, order, batches=batches)
            steady[order, live] = got
            table.row(f"{order}, {size_name(live)} live", pick(got, ns))
    big = 100_000
    table.row(f"p99 of 100 events, random, {size_name(big)}", pick(steady["random", big], lambda one: ns(one, "ns_p99")))
    table.row(f"p99.9 of 100 events, random, {size_name(big)}", pick(steady["random", big], lambda one: ns(one, "ns_p999")))
    for live in lives[1:]:
        got = steady["random", live]
        table.row(f"peak reserved ÷ peak live, random, {size_name(live)}", pick(got, waste))
    table.row(f"heap bytes per live block, {size_name(big)}", pick(steady["lifo", big], lambda one: one["heap_for_live"] / big))
    table.row(f"own count of record bytes per live block, {size_name(big)}",
              pick(steady["lifo", big], lambda one: one["metadata_for_live"] / big))
    table.row(f"process memory per live block, {size_name(big)}, bytes",
              pick(steady["lifo", big], lambda one: one["rss_for_live"] / big))
    table.row(f"peak process memory, {size_name(lives[-1])} live, MiB",
              pick(steady["lifo", lives[-1]], lambda one: one["rss_peak"] / 2**20))

    table.heading("Instructions an event (callgrind; the harness's own are taken off)")
    counted_lives = [10, 1000] if quick else lives
    few = ["libsmp", "rmm-pool", "cub-cache-all"]
    pair_count, steady_count = {}, {}
    for live in counted_lives:
        pair_count[live] = runner.instructions(peers if live == 1000 and not quick else few, "pair", live)
        table.row(f"one size, {size_name(live)} live", pair_count[live])
    for order in ("random",) if quick else ("lifo", "fifo", "random"):
        for live in counted_lives:
            some = peers if live == 1000 and order == "random" and not quick else few if order == "random" else ["libsmp"]
            steady_count[order, live] = runner.instructions(some, "steady", live, order)
            table.row(f"steady {order}, {size_name(live)} live", steady_count[order, live])

    table.heading("Random sizes up to 4 MiB, 73 % allocations below a limit of 4 GiB")
    got = runner.measure(peers, "random", batches=batches)
    table.row("ns an event", pick(got, ns))
    table.row("peak reserved ÷ peak live", pick(got, waste))
    table.row("device calls", pick(got, lambda one: int(one["device_calls"])))

    table.heading("One stream at work while other streams' frees have not executed: ns an event")
    pendings = [0, 1000] if quick else [0, 1000, 10_000, 100_000]
    for streams in (4,) if quick else (1, 4, 64):
        for n in pendings:
            got = runner.measure(peers, "pending", n, streams, batches=batches)
            table.row(f"{size_name(n)} pending on {streams} streams", pick(got, ns))

    table.heading("Eight streams, every block freed on the next stream after an event")
    got = runner.measure(peers, "cross", batches=batches)
    table.row("ns an event, the events' cost included", pick(got, ns))
    table.row("peak reserved ÷ peak live", pick(got, waste))

    table.heading("70k live blocks of 2 to 4 MiB")
    got = runner.measure([*peers, "libsmp-exclusive"], "pages", 70_000, batches=batches // 2)
    table.row("ns an event", pick(got, ns))
    table.row("peak reserved ÷ peak live", pick(got, waste))
    table.row("pages held", pick(got, lambda one: int(one["pages"])))
    alone = {"libsmp": pick(got, ns).get("libsmp-exclusive")}
    table.row("ns an event, libsmp's preset of a page a block", alone)
    table.row("pages held by it", {"libsmp": pick(got, lambda one: int(one["pages"])).get("libsmp-exclusive")})

    table.heading("Threads on one pool, 100 live blocks each: million events a second, all threads together")
    thread_peers = ["libsmp", "rmm-pool", "rmm-arena", "cub-cache-all", "mimalloc", "glibc"]
    rate = {}
    counts = [1, 2] if quick else [1, 2, 4, 8]
    for n in counts:
        got = runner.measure([*thread_peers, "unshared"], "threads", n, batches=batches)
        rate[n] = pick(got, lambda one: float(one["events_per_us"]))
        table.row(f"{n} threads, a stream each", rate[n])
    for n in counts[1:]:
        got = runner.measure(thread_peers, "threads-one-stream", n, batches=batches)
        table.row(f"{n} threads, all on one stream", pick(got, lambda one: float(one["events_per_us"])))
    unshared = {n: rate[n].get("unshared") for n in counts}
    # Without two idle cores no figure of several threads says anything.
    best = unshared[2] / unshared[1] if number(unshared[1]) and number(unshared[2]) else 0
    table.row("speed-up, 2 threads with a stream each",
              {p: rate[2][p] / rate[1][p] for p in thread_peers if number(rate[1].get(p)) and number(rate[2].get(p))})
    if best:
        table.row(f"the same of a loop with nothing shared: {best:.2f}", {})
        if number(rate[1].get("libsmp")) and number(rate[2].get("libsmp")):
            checks.append(("two threads on two streams, speed-up ÷ that of a loop with nothing shared, at least 0.9",
                           rate[2]["libsmp"] / rate[1]["libsmp"] / best, lambda v: v >= 0.9 if best >= QUIET else None))
    # More threads than cores: what preemption and colder caches cost by themselves is what the loop that shares nothing loses.
    for n in counts[2:]:
        over = {p: rate[n][p] / rate[2][p] for p in [*thread_peers, "unshared"]
                if number(rate[2].get(p)) and number(rate[n].get(p))}
        table.row(f"{n} threads' throughput ÷ that of 2", over)
        if "unshared" in over:
            table.row(f"the same of a loop with nothing shared: {over['unshared']:.2f}", {})
        if n == 8 and "libsmp" in over:
            checks.append(("eight threads' throughput ÷ that of two, at least 0.95",
                           over["libsmp"], lambda v: v >= 0.95 if best >= QUIET else None))
            if "unshared" in over:
                checks.append(("eight threads' throughput ÷ that of two, ÷ the same of a loop with nothing shared, "
                               "at least 0.95", over["libsmp"] / over["unshared"],
                               lambda v: v >= 0.95 if best >= QUIET else None))
    if not quick:
        futex = runner.futex_calls(8)
        table.row("futex calls in a million events, 8 threads", {"libsmp": futex})
        if futex is not None:
            # What the longer run adds; below 0 it made fewer than the shorter one, so none of its events needed one.
            checks.append(("futex calls in a million events, 8 threads on 8 streams, at most 0", futex, lambda v: v <= 0))

    if traces:
        trace_rows(runner, table, checks, traces, quick)

    mutex = min(floor["mutex"], floor_now())
    libsmp_pair = pair_ns[1000]["libsmp"].get("ns")
    if libsmp_pair:
        checks.insert(0, ("allocation and free ÷ two uncontended mutex pairs, at most 1.2",
                          2 * libsmp_pair / (2 * mutex), lambda v: v <= 1.2))
    for text, counts in (("one size", pair_count), ("steady random", {l: c for (o, l), c in steady_count.items() if o == "random"})):
        got = {live: c["libsmp"] for live, c in counts.items() if "libsmp" in c}
        if got:
            checks.append((f"instructions of allocation and free, {text}, at most 200", 2 * max(got.values()), lambda v: v <= 200))
            checks.append((f"instructions, {text}, from {size_name(min(got))} to {size_name(max(got))} live blocks, within 1.3 times",
                           max(got.values()) / min(got.values()), lambda v: v <= 1.3))
    for live, least in ((1000, 10), (10, 1)):
        for peer in ("cubecl-sliced", "cubecl-exclusive", "oxicuda"):
            theirs, ours = steady["random", live].get(peer, {}).get("ns"), steady["random", live]["libsmp"].get("ns")
            if theirs and ours:
                checks.append((f"{peer} ÷ libsmp, steady random at {size_name(live)} live, at least {least}", theirs / ours,
                               lambda v, least=least: v >= least))
    per_block = steady["random", big]["libsmp"].get("metadata_for_live")
    if per_block:
        checks.append(("record bytes per live block (its own count, all records), at most 64", per_block / big, lambda v: v <= 64))
    return table, checks, floor


def number(value):
    return isinstance(value, (int, float))


def trace_rows(runner, table, checks, traces, quick):
    # What hands out real memory would be measured by the pages that it touches.
    peers = [p for p in SHOWN if p not in ("mimalloc", "glibc") and not (quick and p == "oxicuda")]
    repetitions, runner.repetitions = runner.repetitions, 1 if quick else runner.repetitions
    rounds = 3
    got, counts = {}, {}
    say(f"{len(traces)} traces")
    for name, (path, facts) in traces.items():
        got[name] = runner.measure(peers, "trace", path, rounds)
        say(f"{time.strftime('%H:%M:%S')} {name}")
        if not quick and facts["events"] < 300_000:
            counts[name] = runner.instructions(["libsmp", "rmm-pool", "cub-cache-all"], "trace", path, rounds)
    runner.repetitions = repetitions
    single = [name for name in traces if traces[name][1]["streams"] == 1]

    def title(name):
        streams = traces[name][1]["streams"]
        return name if streams == 1 else f"{name} ({streams} streams)"

    def last(one):
        return None if one["peer"] in NO_TIME else float(one["rounds"][-1]["ns"])

    def first_charged(one):
        if one["peer"] in NO_TIME:
            return None
        round_one = one["rounds"][0]
        return round_one["ns_mean"] + round_one["device_calls"] * DEVICE_CALL_NS / round_one["events"]

    table.heading("Traces, third round on one pool: ns an event (median over batches of 100)")
    later = {name: pick(got[name], last) for name in traces}
    for name in traces:
        table.row(title(name), later[name])
    table.heading("The same: p99 over batches of 100 events")
    for name in traces:
        table.row(title(name), pick(got[name], lambda one: None if one["peer"] in NO_TIME else float(one["rounds"][-1]["ns_p99"])))
    if counts:
        table.heading("The same: instructions an event")
        for name in counts:
            table.row(title(name), counts[name])
    table.heading("Traces, first round, growth included: mean ns an event, each device call charged 20 µs")
    growth = {name: pick(got[name], first_charged) for name in traces}
    for name in traces:
        table.row(title(name), growth[name])
    table.heading("Traces: peak reserved ÷ peak live, three rounds")
    ratio = {name: pick(got[name], waste) for name in traces}
    for name in traces:
        table.row(title(name), ratio[name])
    table.row("geometric mean over the traces that it ran", {p: geometric([ratio[n].get(p) for n in traces if number(ratio[n].get(p))]) for p in peers})
    for text, index in (("first", 0), ("third", -1)):
        table.heading(f"Traces: device calls in the {text} round")
        for name in traces:
            table.row(title(name), pick(got[name], lambda one: int(one["rounds"][index]["device_calls"])))

    table.heading("Traces of several streams: queries of a stream's progress, third round")
    for name in traces:
        if name not in single:
            table.row(title(name), pick({"libsmp": got[name]["libsmp"]}, lambda one: int(one["rounds"][-1]["queries"])))

    def over(peer, table_of):
        return {n: table_of[n][peer] / table_of[n]["libsmp"] for n in single
                if number(table_of[n].get(peer)) and number(table_of[n].get("libsmp"))}

    for peer, least in (("rmm-pool", 2), ("cub-cache-all", 5)):
        ratios = over(peer, later)
        if ratios:
            worst = min(ratios, key=ratios.get)
            checks.append((f"third round, {peer} ÷ libsmp, worst ({worst}), at least {least}", ratios[worst],
                           lambda v, least=least: v >= least))
            if peer == "rmm-pool":
                checks.append((f"third round, {peer} ÷ libsmp, geometric mean, at least 3", geometric(ratios.values()), lambda v: v >= 3))
    ratios = over("rmm-pool", growth)
    if ratios:
        worst = min(ratios, key=ratios.get)
        checks.append((f"first round charged, libsmp ÷ rmm-pool, worst ({worst}), at most 2", 1 / ratios[worst], lambda v: v <= 2))
    big = {n: ratio[n]["libsmp"] for n in single if traces[n][1]["live_peak"] > 2**30 and number(ratio[n].get("libsmp"))}
    small = {n: ratio[n]["libsmp"] for n in single if traces[n][1]["live_peak"] <= 2**30 and number(ratio[n].get("libsmp"))}
    if big:
        worst = max(big, key=big.get)
        checks.append((f"peak reserved ÷ peak live above 1 GiB, worst ({worst}), at most 1.05", big[worst], lambda v: v <= 1.05))
        checks.append(("the same, geometric mean, at most 1.02", geometric(big.values()), lambda v: v <= 1.02))
    if small:
        worst = max(small, key=small.get)
        checks.append((f"peak reserved ÷ peak live up to 1 GiB, worst ({worst}), at most 1.10", small[worst], lambda v: v <= 1.10))
    many = {n: got[n]["libsmp"]["reserved_peak"] / got[n]["libsmp"]["held_peak"] for n in traces
            if "held_peak" in got[n].get("libsmp", {})}
    if many:
        worst = max(many, key=many.get)
        checks.append((f"several streams, peak reserved ÷ peak of live plus pending (its own count), worst ({worst}), at most 1.15",
                       many[worst], lambda v: v <= 1.15))
    third = {n: got[n]["libsmp"]["rounds"][-1]["device_calls"] for n in traces if "rounds" in got[n].get("libsmp", {})}
    if third:
        worst = max(third, key=third.get)
        checks.append((f"device calls in the third round, most ({worst}), 0", third[worst], lambda v: v == 0))
        density = {n: got[n]["libsmp"]["rounds"][0]["device_calls"] / (got[n]["libsmp"]["rounds"][0]["reserved_peak"] / 2**24)
                   for n in third}
        worst = max(density, key=density.get)
        checks.append((f"device calls in the first round per 16 MiB of peak reserved, most ({worst}), at most 1 (moves not taken off)",
                       density[worst], lambda v: v <= 1))


def machine():
    model = "unknown processor"
    try:
        with open("/proc/cpuinfo") as text:
            model = next((line.split(":", 1)[1].strip() for line in text if line.startswith("model name")), model)
    except OSError:
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"processor": model, "cores": os.cpu_count(), "memory_gib": round(memory / 2**30, 1),
            "system": platform.system() + " " + platform.release(), "libc": " ".join(platform.libc_ver()),
            "load_before": os.getloadavg()[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True, help="the folder with the programs under test")
    parser.add_argument("--work", required=True, help="a folder for intermediate files")
    parser.add_argument("--out", required=True, help="where the JSON goes; the table goes beside it, .md")
    parser.add_argument("--traces", action="append", default=[], metavar="DIR", help="traces of either version; may be repeated")
    parser.add_argument("--made-up", action="store_true", help="the traces of made_up.py, too")
    parser.add_argument("--quick", action="store_true", help="fewer cases, one repetition")
    parser.add_argument("--missing", action="append", default=[], help="a peer that could not be built, and why")
    options = parser.parse_args()

    start = time.time()
    about = machine()
    traces = find_traces(options.traces, os.path.join(options.work, "traces"), options.made_up)
    runner = Runner(options.programs, options.work, 1 if options.quick else 3, 3 if options.quick else 8)
    table, checks, floor = suite(runner, traces, options.quick)
    about["load_after"] = os.getloadavg()[0]

    verdicts = [{"target": text, "value": round(value, 3), "met": test(value)} for text, value, test in checks]
    lines = [table.markdown(), "", "| target | this run | |", "|---|---:|---|"]
    lines += [f"| {v['target']} | {cell(float(v['value']))} | {VERDICTS[v['met']]} |" for v in verdicts]
    lines += ["", f"Floor of this run: a lock and unlock of an uncontended std::mutex {floor['mutex']:.1f} ns, an exchange and a "
              f"store {floor['exchange']:.1f} ns.", "",
              "– : the allocator has no such thing. > N s: it, or the same with fewer blocks, did not finish within N seconds."]
    lines += [f"Not built: {why}" for why in options.missing]
    text = "\n".join(lines) + "\n"
    with open(os.path.splitext(options.out)[0] + ".md", "w") as out:
        out.write(text)
    with open(options.out, "w") as out:
        json.dump({"date": datetime.datetime.now().isoformat(timespec="seconds"), "seconds": round(time.time() - start),
                   "quick": options.quick, "machine": about, "floor_ns": floor,
                   "peers": {name: what for name, (_, what) in PEERS.items()}, "missing": options.missing,
                   "traces": {name: facts for name, (_, facts) in traces.items()},
                   "rows": [{"row": row, "values": values} for row, values in table.rows],
                   "targets": verdicts, "results": runner.results}, out, indent=1)
        out.write("\n")
    print(text)
    say(f"{time.time() - start:.0f} s; {options.out}")


if __name__ == "__main__":
    main()
