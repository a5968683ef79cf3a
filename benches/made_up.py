#!/usr/bin/env python3
"""Made-up traces: what programs of many kinds allocate and free, drawn with a fixed seed, packed as benches/harness.hpp reads
them. run.py --made-up replays them; alone: made_up.py DIR [NAME]... [--seed N] writes them. Only the standard library is used.

Those of several streams say when work runs and what the host waits for, as version-2 traces do.
"""

import argparse
import math
import os
import random
import struct

KiB, MiB, GiB = 1 << 10, 1 << 20, 1 << 30
PACK = struct.Struct("<QIHH").pack
FREE, ALLOC, RECORD, WAIT, SYNC, SYNC_DEVICE, SYNC_EVENT, SUBMIT, ADVANCE, USER = range(10)


class Trace:
    """A trace in the making. `lag` keeps count of what the model device has run, which it does not tell."""

    def __init__(self):
        self.out, self.n, self.streams = bytearray(), 0, 1
        self.free_slots, self.slots = [], 0
        self.size, self.home = {}, {}  # of live blocks, by slot
        self.live = self.peak = 0
        self.events = 0
        self.submitted, self.ran = [0] * 16, [0] * 16  # operations of each stream
        self.waits = [[] for _ in range(16)]  # a stream's: (operation, stream, point it waits for)
        self.recorded = {}  # an event's (stream, point)

    def a(self, size, stream=0):
        """Allocates; the answer names the block."""
        size = max(1, int(size))
        slot = self.free_slots.pop() if self.free_slots else self.slots
        self.slots = max(self.slots, slot + 1)
        self.size[slot], self.home[slot] = size, stream
        self.live += size
        self.peak = max(self.peak, self.live)
        self.put(size, slot, stream, ALLOC)
        self.submitted[stream] += 1
        self.n += 1
        return slot

    def f(self, slot, stream=None):
        """Frees, on the block's stream if no other is said."""
        stream = self.home[slot] if stream is None else stream
        size = self.size.pop(slot)
        self.live -= size
        self.put(size, slot, stream, FREE)
        self.free_slots.append(slot)
        self.submitted[stream] += 1
        self.n += 1

    def temp(self, *sizes):
        """Blocks that are allocated one after another and then freed."""
        for slot in [self.a(size) for size in sizes]:
            self.f(slot)

    def put(self, size, slot, stream, op):
        self.streams = max(self.streams, stream + 1)
        self.out += PACK(size, slot, stream, op)

    def submit(self, stream, count):
        self.put(count, 0, stream, SUBMIT)
        self.submitted[stream] += count

    def user(self, slot, stream):
        self.put(0, slot, stream, USER)

    def record(self, stream, event):
        self.put(0, event, stream, RECORD)
        self.submitted[stream] += 1
        self.recorded[event] = (stream, self.submitted[stream])

    def ordered(self, first, then):
        """What comes on `then` is ordered after what is on `first`, by one of 64 events."""
        event = self.events
        self.events = (event + 1) % 64
        self.record(first, event)
        self.put(0, event, then, WAIT)
        self.submitted[then] += 1
        self.waits[then].append((self.submitted[then], *self.recorded[event]))

    def sync(self, stream):
        self.put(0, 0, stream, SYNC)
        self.run_to(stream, self.submitted[stream])

    def sync_event(self, event):
        self.put(0, event, 0, SYNC_EVENT)
        self.run_to(*self.recorded[event])

    def sync_device(self):
        self.put(0, 0, 0, SYNC_DEVICE)
        for stream in range(self.streams):
            self.run_to(stream, self.submitted[stream])

    def run_to(self, stream, end):
        waits = self.waits[stream]
        while waits and waits[0][0] <= end:
            _, other, point = waits.pop(0)
            self.run_to(other, point)
        self.ran[stream] = max(self.ran[stream], end)

    def lag(self, stream, operations):
        """Work of the stream runs until so many operations are left, or it waits for another stream."""
        count = self.submitted[stream] - self.ran[stream] - operations
        if count <= 0:
            return
        self.put(count, 0, stream, ADVANCE)
        end, waits = self.ran[stream] + count, self.waits[stream]
        while waits and waits[0][0] <= end:
            operation, other, point = waits[0]
            if self.ran[other] < point:
                end = operation - 1
                break
            waits.pop(0)
        self.ran[stream] = max(self.ran[stream], end)


def free_one(t, r, live):
    """One of the live blocks goes."""
    i = r.randrange(len(live))
    live[i], live[-1] = live[-1], live[i]
    t.f(live.pop())


def answer(t, running, left, blocks):
    """Each running request has one token fewer `left`; those that are done go, with their `blocks`."""
    for q in running[:]:
        q[left] -= 1
        if q[left] <= 0:
            for s in q[blocks]:
                t.f(s)
            running.remove(q)


# --- one stream -----------------------------------------------------------------------------------------------------


def llm_paged(seed):
    """Serving an 8B model with continuous batching; keys and values in pages of 2 MiB (16 tokens), allocated one by one."""
    t, r = Trace(), random.Random(seed)
    for _ in range(32):
        for s in (4096 * 4096 * 2, 4096 * 1024 * 4, 4096 * 4096 * 2, 4096 * 14336 * 4, 14336 * 4096 * 2, 8192, 8192):
            t.a(s)
    t.a(128256 * 4096 * 2), t.a(128256 * 4096 * 2)
    running = []
    for step in range(260):
        for _ in range(min(6, sum(r.random() < .35 for _ in range(4)))):
            if len(running) < 48:
                prompt = int(min(3000, r.lognormvariate(5.6, 1)) + 8)
                running.append([prompt, int(min(160, r.lognormvariate(3.6, .8)) + 4), [], prompt])
        tokens = sum(q[3] for q in running)
        for q in running:
            q[0] += q[3] if q[3] == 1 else 0
            q[3] = 1
            while len(q[2]) * 16 < q[0]:
                q[2].append(t.a(2 * MiB))
        if not tokens:
            continue
        h = t.a(tokens * 4096 * 2)
        ids = t.a(tokens * 8)
        for layer in range(6):
            n = t.a(tokens * 4096 * 2)
            qkv = t.a(tokens * 6144 * 2)
            o = t.a(tokens * 4096 * 2)
            t.temp(len(running) * 8 * 128 * 4 * 16)
            t.f(qkv), t.f(n)
            up = t.a(tokens * 28672 * 2)
            act = t.a(tokens * 14336 * 2)
            t.f(up), t.f(o)
            h2 = t.a(tokens * 4096 * 2)
            t.f(act), t.f(h)
            h = h2
        logits = t.a(len(running) * 128256 * 4)
        probs = t.a(len(running) * 128256 * 4)
        t.temp(len(running) * 8)
        t.f(logits), t.f(probs), t.f(ids), t.f(h)
        answer(t, running, 1, 2)
    return t


def llm_growing(seed):
    """Serving with contiguous keys and values for each request and layer, which double when they are full."""
    t, r = Trace(), random.Random(seed)
    for _ in range(16):
        for s in (2048 * 2048 * 2, 2048 * 512 * 4, 2048 * 2048 * 2, 2048 * 8192 * 4, 8192 * 2048 * 2):
            t.a(s)
    layers, running = 16, []
    for step in range(420):
        if len(running) < 24 and r.random() < .3:
            prompt = int(min(4000, r.lognormvariate(5.5, 1)) + 8)
            cap = 1 << (prompt + 1).bit_length()
            tokens = int(min(600, r.lognormvariate(4.6, .9)) + 4)
            running.append([prompt, tokens, cap, [t.a(cap * 2048) for _ in range(layers)]])
            t.temp(prompt * 2048 * 2, prompt * 8192 * 4, prompt * 2048 * 2)
        if not running:
            continue
        b = len(running)
        for q in running:
            q[0] += 1
            if q[0] > q[2]:
                q[2] *= 2
                for i in range(layers):
                    bigger = t.a(q[2] * 2048)
                    t.f(q[3][i])
                    q[3][i] = bigger
        h = t.a(b * 4096)
        for _ in range(4):
            x, y = t.a(b * 6144), t.a(b * 32768)
            t.f(x)
            z = t.a(b * 4096)
            t.f(y), t.f(h)
            h = z
        t.f(h)
        t.temp(b * 32000 * 4, b * 32000 * 4)
        answer(t, running, 1, 3)
    return t


def diffusion(seed):
    """A latent diffusion model; each job has another resolution and batch, with skips, attention, and a decoder at the end."""
    t, r = Trace(), random.Random(seed)
    for _ in range(120):
        t.a(r.choice([320, 640, 1280]) * r.choice([320, 640, 1280]) * r.choice([1, 9]) * 2)
    for job in range(7):
        w, h, b = 8 * r.randint(48, 128), 8 * r.randint(48, 128), 2 * r.randint(1, 3)
        lat = t.a(b * 4 * w * h // 64 * 4)
        text = t.a(b * 77 * 2048 * 2)
        for step in range(r.randint(8, 14)):
            skips, x = [], t.a(b * 320 * (w // 8) * (h // 8) * 2)
            for level, ch in enumerate((320, 640, 1280, 1280)):
                n = (w // (8 << level)) * (h // (8 << level))
                for _ in range(2):
                    y, z = t.a(b * ch * n * 2), t.a(b * ch * n * 2)
                    t.f(y)
                    if level in (1, 2):
                        q, k, v = (t.a(b * ch * n * 2) for _ in range(3))
                        o = t.a(b * ch * n * 2)
                        t.f(q), t.f(k), t.f(v)
                        ff = t.a(b * ch * 8 * n * 2)
                        gg = t.a(b * ch * 4 * n * 2)
                        t.f(ff), t.f(o), t.f(gg)
                    skips.append(x)
                    x = z
            for level, ch in reversed(list(enumerate((320, 640, 1280, 1280)))):
                n = (w // (8 << level)) * (h // (8 << level))
                for _ in range(2):
                    s = skips.pop()
                    cat = t.a(t.size[s] + t.size[x])
                    t.f(s), t.f(x)
                    y, x = t.a(b * ch * n * 2), t.a(b * ch * n * 2)
                    t.temp(b * ch * n * 4)
                    t.f(cat), t.f(y)
            eps = t.a(b * 4 * w * h // 64 * 4)
            t.f(x)
            new = t.a(b * 4 * w * h // 64 * 4)
            t.f(eps), t.f(lat)
            lat = new
        x = lat
        for up, ch in ((8, 512), (4, 512), (2, 256), (1, 128)):
            for _ in range(3):
                y = t.a(b // 2 * ch * (w // up) * (h // up) * 2)
                t.temp(t.size[y])
                t.f(x)
                x = y
        t.f(x), t.f(text)
    return t


def train_checkpointing(seed):
    """A 24-layer transformer, bf16, activations recomputed, four micro-batches a step; AdamW makes its states in step one."""
    t, r = Trace(), random.Random(seed)
    d, layers = 1536, 24
    shapes = [d * d * 3, d * d, d * d * 4, d * d * 4, d, d]
    params = [t.a(n * 2) for _ in range(layers) for n in shapes] + [t.a(50304 * d * 2)]
    numbers = [t.size[p] // 2 for p in params]
    grads, states = [None] * len(params), []

    def forward(b, keep):
        n = b * 1024
        kept = []
        for s in (n * d * 2, n * d * 6, n * d * 2, n * d * 2, n * d * 8, n * d * 8, n * d * 2):
            x = t.a(s)
            kept.append(x)
            if not keep and len(kept) > 2:
                t.f(kept.pop(0))
        if not keep:
            while len(kept) > 1:
                t.f(kept.pop(0))
        return kept

    for step in range(5):
        for micro in range(4):
            b = 8
            outs = [t.a(b * 1024 * d * 2)]
            for _ in range(layers):
                outs += forward(b, False)
            logits = t.a(b * 1024 * 50304 * 2)
            soft = t.a(b * 1024 * 50304 * 4)
            t.f(logits)
            g = t.a(b * 1024 * 50304 * 2)
            t.f(soft)
            if grads[-1] is None:
                grads[-1] = t.a(numbers[-1] * 2)
            else:
                t.temp(numbers[-1] * 2)
            back = t.a(b * 1024 * d * 2)
            t.f(g)
            for layer in reversed(range(layers)):
                kept = forward(b, True)
                t.f(outs.pop())
                for i in range(6):
                    k = layer * 6 + i
                    if grads[k] is None:
                        grads[k] = t.a(numbers[k] * 2)
                    else:
                        t.temp(numbers[k] * 2)
                    nb = t.a(b * 1024 * d * 2)
                    t.f(back)
                    back = nb
                    t.f(kept.pop())
                for k in kept:
                    t.f(k)
            t.f(back)
            t.f(outs.pop())
        norms = [t.a(4) for _ in params]
        for x in norms:
            t.f(x)
        if not states:
            states = [(t.a(n * 4), t.a(n * 4), t.a(n * 4)) for n in numbers]
        temps = [t.a(n * 4) for n in numbers]
        for x in temps:
            t.f(x)
        for k, g in enumerate(grads):
            t.f(g)
            grads[k] = None
    return t


def moe(seed):
    """Mixture of experts, training: 32 experts whose loads drift and jump."""
    t, r = Trace(), random.Random(seed)
    d, experts, layers = 1024, 32, 4
    for _ in range(layers):
        for _ in range(experts):
            t.a(d * 2816 * 2), t.a(d * 2816 * 2)
        t.a(d * d * 8)
    for step in range(10):
        saved = []
        for layer in range(layers):
            weight = [r.expovariate(1) ** 2 for _ in range(experts)]
            tokens = [int(16384 * w / sum(weight)) for w in weight]
            router = t.a(8192 * experts * 4)
            t.temp(8192 * 2 * 8, 8192 * 2 * 4)
            x = t.a(8192 * d * 2)
            keep = [router, x]
            out = t.a(16384 * d * 2)
            for n in tokens:
                if n:
                    g, u, h = t.a(n * d * 2), t.a(n * 2816 * 2), t.a(n * 2816 * 2)
                    o = t.a(n * d * 2)
                    t.f(o)
                    keep += [g, u, h]
            t.f(out)
            saved.append((tokens, keep))
        for tokens, keep in reversed(saved):
            for n in reversed(tokens):
                if n:
                    h, u, g = keep.pop(), keep.pop(), keep.pop()
                    dh, du = t.a(n * 2816 * 2), t.a(n * 2816 * 2)
                    t.f(h), t.f(u)
                    dw = t.a(d * 2816 * 2)
                    dg = t.a(n * d * 2)
                    t.f(dh), t.f(du), t.f(g), t.f(dg), t.f(dw)
            for k in keep:
                t.f(k)
    return t


def gnn(seed):
    """A graph network on sampled neighbourhoods: every step has other sizes."""
    t, r = Trace(), random.Random(seed)
    t.a(2_000_000 * 100 * 4)
    for s in (100 * 256, 256 * 256, 256 * 47, 100 * 256, 256 * 256, 256 * 47):
        for _ in range(4):
            t.a(s * 4)
    for step in range(220):
        n0 = r.randint(700, 1024)
        n1 = int(n0 * r.uniform(6, 15))
        n2 = int(n1 * r.uniform(4, 9))
        n3 = int(n2 * r.uniform(2, 5))
        idx = [t.a(n * 8) for n in (n0, n1, n2, n3)]
        edges = [t.a(n * 16) for n in (n1 * 2, n2 * 2, n3 * 2)]
        x, saved = t.a(n3 * 400), []
        for n, m, f in ((n2, n3, 100), (n1, n2, 256), (n0, n1, 256)):
            msg = t.a(m * 2 * f * 4)
            agg = t.a(n * f * 4)
            t.temp(m * 8, m * 4)
            t.f(msg)
            lin, own = t.a(n * 256 * 4), t.a(n * 256 * 4)
            y = t.a(n * 256 * 4)
            t.f(own)
            mask = t.a(n * 256)
            saved.append((x, agg, lin, mask, n, m, f))
            x = y
        t.temp(n0 * 47 * 4, n0 * 47 * 4)
        g = t.a(n0 * 256 * 4)
        t.f(x)
        for x, agg, lin, mask, n, m, f in reversed(saved):
            gl = t.a(n * 256 * 4)
            t.f(g), t.f(mask), t.f(lin)
            ga = t.a(n * f * 4)
            t.f(gl), t.f(agg)
            gm = t.a(m * 2 * f * 4)
            g = t.a(m * f * 4)
            t.f(gm), t.f(ga), t.f(x)
        t.f(g)
        for s in edges + idx:
            t.f(s)
    return t


def detection(seed):
    """A detector: images of any size, features on five levels, proposals by hundreds."""
    t, r = Trace(), random.Random(seed)
    for i in range(160):
        t.a(r.choice([64, 128, 256, 512, 1024]) * r.choice([64, 256, 512]) * r.choice([1, 9]) * 4)
    for image in range(90):
        w, h = r.randint(480, 1333), r.randint(480, 1000)
        x, levels = t.a(w * h * 3 * 4), []
        for level, ch, blocks in ((2, 256, 3), (3, 512, 4), (4, 1024, 6), (5, 2048, 3)):
            n = math.ceil(w / 2 ** level) * math.ceil(h / 2 ** level)
            for _ in range(blocks):
                a = t.a(n * ch)
                b = t.a(n * ch)
                t.f(a)
                c = t.a(n * ch * 4)
                t.f(b)
                if x not in levels:
                    t.f(x)
                x = c
            levels.append(x)
        pyramid = []
        for i, s in enumerate(levels):
            n = math.ceil(w / 4 / 2 ** i) * math.ceil(h / 4 / 2 ** i)
            pyramid.append(t.a(n * 256 * 4))
            t.temp(n * 256 * 4)
        for s in levels:
            t.f(s)
        for i in range(4):
            n = math.ceil(w / 4 / 2 ** i) * math.ceil(h / 4 / 2 ** i)
            t.temp(n * 256 * 4, n * 3 * 4, n * 12 * 4, n * 3 * 8)
        k = r.randint(20, 1000)
        boxes = t.a(k * 16)
        t.temp(k * k // 8 + 8, k * 8)
        roi = t.a(k * 256 * 49 * 4)
        fc = t.a(k * 1024 * 4)
        t.f(roi)
        for _ in range(r.randint(5, 60)):
            t.temp(r.randint(1, k) * 16, r.randint(1, k) * 8)
        t.f(fc), t.f(boxes)
        for s in pyramid:
            t.f(s)
    return t


def log_uniform(seed, limit=6 * GiB, n=24000):
    """Sizes evenly spread over the logarithm from 512 B to 512 MiB, in random order, below a limit."""
    t, r, live = Trace(), random.Random(seed), []
    for _ in range(n):
        size = int(512 * 2 ** r.uniform(0, 20))
        if live and (r.random() < .48 or t.live + size > limit):
            free_one(t, r, live)
        else:
            live.append(t.a(size))
    return t


def hash_joins(seed):
    """Queries on columns: scans in chunks, hash tables, gathers of unknown selectivity, sorts with as much scratch."""
    t, r = Trace(), random.Random(seed)
    dims = [t.a(r.randint(10_000, 3_000_000) * r.choice([4, 8])) for _ in range(60)]
    for query in range(26):
        rows = r.randint(500_000, 40_000_000)
        cols = [t.a(rows * r.choice([1, 2, 4, 8])) for _ in range(r.randint(3, 9))]
        cols += [t.a(rows // 8 + 64) for _ in cols]
        for join in range(r.randint(1, 4)):
            build = r.randint(10_000, 6_000_000)
            table = t.a(2 ** (2 * build - 1).bit_length() * 8)
            t.temp(build * 4, 1024, 4)
            left = t.a(rows * 4)
            right = t.a(rows * 4)
            t.temp(rows * 4, 767, 8, 4)
            out = max(1, int(rows * r.uniform(.02, 1.2)))
            li, ri = t.a(out * 4), t.a(out * 4)
            t.f(left), t.f(right), t.f(table)
            new = []
            for c in cols:
                new.append(t.a(max(1, t.size[c] * out // rows)))
                if r.random() < .5:
                    t.temp(out // 8 + 64, 4)
            for c in cols:
                t.f(c)
            t.f(li), t.f(ri)
            cols, rows = new, out
        order = t.a(rows * 4)
        t.temp(rows * 8, rows * 8, r.randint(1000, 100000))
        groups = max(1, rows // r.randint(2, 500))
        aggs = [t.a(groups * 8) for _ in range(r.randint(2, 8))]
        for _ in range(40):
            t.temp(r.randint(1, 4096), r.randint(1, 65536))
        t.f(order)
        for c in cols + aggs:
            t.f(c)
    for s in dims:
        t.f(s)
    return t


def stencil(seed):
    """Two large fields, halos, reductions; a step allocates little."""
    t, r = Trace(), random.Random(seed)
    a, b = t.a(3 * GiB + 12345), t.a(3 * GiB + 12345)
    for step in range(900):
        halos = [t.a(s) for s in (1024 * 1024 * 8, 1024 * 1024 * 8, 1024 * 512 * 8, 1024 * 512 * 8, 8192, 8192)]
        t.temp(4 * MiB, 8)
        for h in halos:
            t.f(h)
        if step % 100 == 99:
            t.temp(3 * GiB + 12345)
    t.f(a), t.f(b)
    return t


def stacks(seed):
    """Workspaces as a stack of random depth, sizes from 256 B to 256 MiB."""
    t, r, stack = Trace(), random.Random(seed), []
    depth = 0
    for _ in range(12000):
        if len(stack) < depth:
            stack.append(t.a(int(256 * 2 ** (20 * r.random() ** 1.5))))
        elif stack and len(stack) > depth:
            t.f(stack.pop())
        else:
            depth = r.randint(0, 40)
    while stack:
        t.f(stack.pop())
    return t


def fragmenter(seed):
    """Many of a size, every second freed, then larger ones: again and again, the size growing."""
    t, r, kept = Trace(), random.Random(seed), []
    size = 48 * KiB
    for wave in range(14):
        blocks = [t.a(size) for _ in range(max(16, int(1.2 * GiB / size / (wave + 2)) if size > 4 * MiB else 600))]
        for s in blocks[::2]:
            t.f(s)
        kept += blocks[1::2]
        size = int(size * 1.6)
        if wave % 4 == 3:
            for s in kept[::2]:
                t.f(s)
            kept = kept[1::2]
    return t


def tiny(seed):
    """A small program: less than 16 MiB live, many small sizes and a few of a megabyte or three."""
    t, r, live = Trace(), random.Random(seed), []
    for _ in range(20000):
        size = r.choice([r.randint(1, 4096), r.randint(1, 65536), r.randint(1, 262144), r.randint(1, 3 * MiB)])
        if live and (r.random() < .5 or t.live + size > 14 * MiB):
            free_one(t, r, live)
        else:
            live.append(t.a(size))
    for s in live:
        t.f(s)
    return t


def huge(seed):
    """60 GiB of weights and caches in few large blocks; prompts of varying length beside them."""
    t, r = Trace(), random.Random(seed)
    for _ in range(80):
        t.a(8192 * 8192 * 2), t.a(8192 * 28672 * 2), t.a(8192 * 2048 * 2)
    for _ in range(300):
        n = r.randint(100, 8000)
        x = t.a(n * 8192 * 2)
        for _ in range(5):
            q, o = t.a(n * 10240 * 2), t.a(n * 8192 * 2)
            t.f(q)
            up = t.a(n * 28672 * 2)
            act = t.a(n * 28672 * 2)
            t.f(up), t.f(x)
            x = t.a(n * 8192 * 2)
            t.f(act), t.f(o)
        t.f(x)
    return t


def just_over(seed):
    """Sizes just over powers of two and over multiples of 2 MiB, in waves with random frees."""
    t, r, live = Trace(), random.Random(seed), []
    for _ in range(16000):
        over_power = (1 << r.randint(9, 26)) + r.choice([1, 512, 4096])
        size = r.choice([over_power, r.randint(1, 24) * 2 * MiB + r.choice([1, 512, 65536])])
        if live and (r.random() < .49 or t.live + size > 3 * GiB):
            free_one(t, r, live)
        else:
            live.append(t.a(size))
    return t


def mesh_refinement(seed):
    """Adaptive mesh: patches of many sizes come and go as the mesh is refined; a regrid makes all of a level anew."""
    t, r = Trace(), random.Random(seed)
    levels = [[], [], [], []]
    for step in range(160):
        for l, level in enumerate(levels):
            if step % (4 >> min(l, 2)) == 0:
                old, n = level[:], r.randint(8 << l, 20 << l)
                level.clear()
                for _ in range(n):
                    cells = r.randint(8, 48) * r.randint(8, 48) * r.randint(8, 40)
                    level.append(t.a(cells * 5 * 8))
                    if old:
                        t.f(old.pop(r.randrange(len(old))))
                for o in old:
                    t.f(o)
            for _ in range(4):
                t.temp(t.size[r.choice(level)] // 5, t.size[r.choice(level)])
    return t


def frames(seed):
    """A video decoder: a ring of reference frames, scalers and a batch of crops; always first in, first out."""
    t, r, ring = Trace(), random.Random(seed), []
    for frame in range(1800):
        ring.append(t.a(3840 * 2160 * 3 // 2))
        if len(ring) > 17:
            t.f(ring.pop(0))
        rgb, small = t.a(3840 * 2160 * 3), t.a(1280 * 720 * 3 * 4)
        crops = [t.a(r.randint(20, 400) * r.randint(20, 400) * 12) for _ in range(r.randint(0, 12))]
        t.f(rgb), t.f(small)
        for c in crops:
            t.f(c)
    return t


def arrays(seed):
    """Array programming: chains of temporaries of a few shapes, reductions, a result kept now and then (drifts)."""
    t, r, kept = Trace(), random.Random(seed), []
    shapes = [r.randint(1000, 9_000_000) * 8 for _ in range(12)]
    for line in range(3000):
        s = r.choice(shapes)
        a = t.a(s)
        for _ in range(r.randint(0, 4)):
            b = t.a(s)
            t.f(a)
            a = b
        t.temp(8, 4096)
        if r.random() < .2:
            kept.append(a)
            if len(kept) > 25:
                t.f(kept.pop(r.randrange(len(kept))))
        else:
            t.f(a)
    return t


def search_trials(seed):
    """Hyper-parameter trials in one process: each builds another model, trains a few steps and goes; nothing stays."""
    t, r = Trace(), random.Random(seed)
    for trial in range(16):
        d, layers, b = 64 * r.randint(2, 24), r.randint(2, 14), r.randint(4, 96)
        params = [t.a(d * d * 4 * k) for _ in range(layers) for k in (3, 1, 4, 4)]
        states = []
        for step in range(4):
            acts = [t.a(b * 256 * d * 4 * k) for _ in range(layers) for k in (1, 3, 1, 4)]
            grads, g = [], t.a(b * 256 * d * 4)
            for p in reversed(params):
                grads.append(t.a(t.size[p]))
                n = t.a(b * 256 * d * 4)
                t.f(g)
                g = n
                t.f(acts.pop())
            t.f(g)
            if not states:
                states = [t.a(t.size[p]) for p in params for _ in (0, 1)]
            for x in grads:
                t.temp(t.size[x])
                t.f(x)
        for x in params + states:
            t.f(x)
    return t


# --- several streams ------------------------------------------------------------------------------------------------


def copies(seed, pace="stream"):
    """Copies in on stream 1, work on 0, copies out on 2; what one allocates the next frees, after an event.

    The host waits for the last copy out at every fourth request ("stream"), for the event of the third request before
    ("event"), or not at all while work runs some way behind ("none").
    """
    t, r = Trace(), random.Random(seed)
    for _ in range(30):
        t.a(r.randint(1, 64) * MiB)
    done = []
    for request in range(700):
        if pace == "event" and len(done) == 3:
            t.sync_event(done.pop(0))
        n = r.randint(1, 32)
        x = y = t.a(n * 3 * 224 * 224 * 4, 1)
        t.submit(1, 1)
        t.ordered(1, 0)
        for layer in range(6):
            z = t.a(n * r.choice([64, 128, 256]) * 56 * 56 * 4 >> layer // 2, 0)
            w = t.a(r.randint(1, 8) * MiB, 0)
            t.submit(0, 2)
            t.f(w, 0)
            if y != x:
                t.f(y, 0)
            y = z
        t.f(x, 0)
        out = t.a(n * 4000, 0)
        t.submit(0, 1)
        t.f(y, 0)
        t.ordered(0, 2)
        t.submit(2, 1)
        t.f(out, 2)
        if pace == "event":
            done.append(100 + request % 8)
            t.record(2, done[-1])
            continue
        for s in (1, 0, 2):
            t.lag(s, r.randint(0, 120))
        if pace == "stream" and request % 4 == 3:
            t.sync(2)
    if pace != "none":
        t.sync_device()
    return t


def copies_by_event(seed):
    return copies(seed, "event")


def copies_unobserved(seed):
    return copies(seed, "none")


def weights(t, r):
    """Those of a model, its gradients and its optimizer's state."""
    for _ in range(60):
        s = r.randint(1, 12) * MiB
        t.a(s), t.a(s), t.a(2 * s)


def next_batch(t, step):
    batch = t.a(96 * MiB + (step % 3) * 8 * MiB, 1)
    t.submit(1, 1)
    return batch


def train_on(t, batch, step):
    """A step on stream 0, which frees the batch at its end. The event that is recorded then."""
    t.ordered(1, 0)
    acts = [t.a((i % 5 + 1) * 3 * MiB, 0) for i in range(20)]
    for a in reversed(acts):
        t.f(t.a(8 * MiB))
        t.submit(0, 2)
        t.f(a)
    t.f(batch, 0)
    event = 100 + step % 8
    t.record(0, event)
    return event


def prefetch(seed):
    """Training: batches are allocated and copied in on stream 1 and freed by the step on stream 0; two steps in flight."""
    t, r = Trace(), random.Random(seed)
    weights(t, r)
    done, batches = [], []
    for step in range(150):
        if len(done) >= 2:
            t.sync_event(done.pop(0))
        batches.append(next_batch(t, step))
        if len(batches) == 3:
            done.append(train_on(t, batches.pop(0), step))
    for batch in batches:
        t.ordered(1, 0)
        t.f(batch, 0)
    t.sync_device()
    return t


def prefetch_behind(seed):
    """As prefetch, one batch at a time: the host waits for the third step before, and for nothing at the end."""
    t, r = Trace(), random.Random(seed)
    weights(t, r)
    events = []
    for step in range(150):
        events.append(train_on(t, next_batch(t, step), step))
        if len(events) > 2:
            t.sync_event(events.pop(0))
    return t


def producers(seed):
    """Two producers and two consumers: what one allocates another frees, ordered by an event; hardly any synchronise."""
    t, r = Trace(), random.Random(seed)
    queue = [[], []]
    for i in range(7000):
        p = r.randrange(2)
        if len(queue[p]) < 12 and r.random() < .55:
            s = t.a(int(4 * KiB * 2 ** r.uniform(0, 13)), p)
            t.submit(p, 1)
            queue[p].append(s)
            if r.random() < .5:
                t.f(t.a(r.randint(1, 4) * MiB, p), p)
        elif queue[p]:
            t.ordered(p, 2 + p)
            s = queue[p].pop(0)
            w = t.a(t.size[s], 2 + p)
            t.submit(2 + p, 1)
            t.f(s, 2 + p), t.f(w, 2 + p)
        for s in range(4):
            if r.random() < .3:
                t.lag(s, r.randint(0, 30))
        if i % 1500 == 1499:
            t.sync_device()
    t.sync_device()
    return t


def ring(seed, synchronise=True):
    """Eight streams in a ring: each takes what its neighbour made, makes its own, and frees the other's."""
    t, r = Trace(), random.Random(seed)
    for s in range(8):
        for _ in range(6):
            t.a(r.randint(1, 40) * MiB, s)
    hand = [t.a(r.randint(1, 16) * 512 * KiB, s) for s in range(8)]
    for turn in range(180):
        new = []
        for s in range(8):
            t.ordered((s - 1) % 8, s)
            temps = [t.a(int(16 * KiB * 2 ** r.uniform(0, 10)), s) for _ in range(r.randint(1, 6))]
            new.append(t.a(r.randint(1, 24) * 512 * KiB, s))
            t.submit(s, 1)
            for x in temps:
                t.f(x, s)
            t.f(hand[(s - 1) % 8], s)
            t.lag(s, r.randint(0, 40))
        hand = new
        if synchronise and turn % 20 == 19:
            t.sync_device()
    return t


def ddp(seed):
    """Training with gradients exchanged in buckets on another stream, noted as a user of the gradients."""
    t, r = Trace(), random.Random(seed)
    sizes = [int(2 ** r.uniform(12, 25)) for _ in range(120)]
    for s in sizes:
        t.a(s), t.a(s * 2)
    for step in range(12):
        acts = [t.a(s) for s in [int(2 ** random.Random(i).uniform(20, 26)) for i in range(60)]]
        t.submit(0, 60)
        grads, bucket = [], []
        for i, s in enumerate(reversed(sizes)):
            g = t.a(s)
            t.f(t.a(s + 4096))
            t.submit(0, 2)
            bucket.append(g)
            if i % 2:
                t.f(acts.pop())
            if len(bucket) == 10:
                t.ordered(0, 1)
                flat = t.a(sum(t.size[b] for b in bucket), 0)
                t.user(flat, 1)
                for b in bucket:
                    t.user(b, 1)
                t.submit(1, 2)
                grads += bucket + [flat]
                bucket = []
                t.lag(0, 40), t.lag(1, 4)
        t.ordered(1, 0)
        t.submit(0, 5)
        for g in grads + bucket:
            t.f(g)
        t.sync(0)
    t.sync_device()
    return t


def tenants(seed):
    """Four models on four streams that know nothing of each other, interleaved at random; each its own sizes."""
    t, r = Trace(), random.Random(seed)
    state = []
    for s in range(4):
        for _ in range(20):
            t.a(r.randint(1, 20) * MiB, s)
        state.append([])
    for _ in range(12000):
        s = r.randrange(4)
        mine = state[s]
        if len(mine) < 14 and r.random() < .55:
            mine.append(t.a((s + 1) * int(8 * KiB * 2 ** r.uniform(0, 10)), s))
        elif mine:
            t.f(mine.pop(r.randrange(len(mine))), s)
        if r.random() < .02:
            for x in mine:
                t.f(x, s)
            mine.clear()
    return t


def ring_unobserved(seed):
    return ring(seed, False)


def tenants_waiting(seed):
    t = tenants(seed)
    t.sync_device()
    return t


MAKERS = [llm_paged, llm_growing, diffusion, train_checkpointing, moe, gnn, detection, log_uniform, hash_joins, stencil, stacks,
          fragmenter, tiny, huge, just_over, mesh_refinement, frames, arrays, search_trials, copies, copies_by_event,
          copies_unobserved, prefetch, prefetch_behind, producers, ring, ring_unobserved, ddp, tenants, tenants_waiting]


def write(directory, names=(), seed=1):
    """{name: (packed file, facts)} of the traces, as run.find_traces has it."""
    os.makedirs(directory, exist_ok=True)
    made = {}
    for maker in MAKERS:
        if names and maker.__name__ not in names:
            continue
        trace = maker(seed)
        target = os.path.join(directory, f"{maker.__name__}.{seed}.bin")
        with open(target, "wb") as binary:
            binary.write(trace.out)
        made[maker.__name__] = (target, {"events": trace.n, "streams": trace.streams, "live_peak": trace.peak})
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; all if none is named")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name, (target, facts) in write(options.directory, options.names, options.seed).items():
        print(f"{target}: {facts['events']:,} events, {facts['streams']} streams, peak {facts['live_peak'] / GiB:.3f} GiB")


if __name__ == "__main__":
    main()
