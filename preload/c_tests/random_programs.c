/* A program of calls of the driver, chosen by a seed: random_programs SEED STEPS [THREADS]. It prints a line a call: what was
   asked, the code, and all answers, with handles and addresses named so that two runs can be compared. Sections of a line:
   |S how many host functions have run where all must have, |M what memory is free, |P a pool's figures. It keeps to what is
   defined: memory is touched in order only, and each byte that is read back is known. What it asks of handles and addresses
   may be as wrong as can be. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define FUNCTIONS(F)                                                                                                   \
    F(cuInit) F(cuDeviceGetCount) F(cuDevicePrimaryCtxRetain) F(cuDevicePrimaryCtxRelease) F(cuDevicePrimaryCtxReset)  \
    F(cuDevicePrimaryCtxGetState) F(cuCtxCreate) F(cuCtxDestroy) F(cuCtxSetCurrent) F(cuCtxGetCurrent)                 \
    F(cuCtxPushCurrent) F(cuCtxPopCurrent) F(cuCtxGetDevice) F(cuCtxSynchronize) F(cuCtxRecordEvent) F(cuCtxWaitEvent) \
    F(cuStreamCreate) F(cuStreamCreateWithPriority) F(cuStreamDestroy) F(cuStreamSynchronize) F(cuStreamQuery)         \
    F(cuStreamWaitEvent) F(cuStreamGetCtx) F(cuStreamGetFlags) F(cuStreamGetPriority) F(cuStreamIsCapturing)           \
    F(cuStreamBeginCapture) F(cuStreamEndCapture) F(cuThreadExchangeStreamCaptureMode) F(cuStreamAddCallback)          \
    F(cuGraphInstantiateWithFlags) F(cuGraphLaunch) F(cuGraphExecDestroy) F(cuGraphDestroy) F(cuLaunchHostFunc)        \
    F(cuEventCreate) F(cuEventRecord) F(cuEventRecordWithFlags) F(cuEventSynchronize) F(cuEventQuery)                  \
    F(cuEventDestroy) F(cuMemAlloc) F(cuMemFree) F(cuMemAllocPitch) F(cuMemAllocManaged) F(cuMemGetInfo)               \
    F(cuMemGetAddressRange) F(cuPointerGetAttribute) F(cuPointerGetAttributes) F(cuPointerSetAttribute)                \
    F(cuMemAllocAsync) F(cuMemFreeAsync) F(cuMemAllocFromPoolAsync) F(cuDeviceGetDefaultMemPool) F(cuDeviceGetMemPool) \
    F(cuDeviceSetMemPool) F(cuMemPoolCreate) F(cuMemPoolDestroy) F(cuMemPoolTrimTo) F(cuMemPoolGetAttribute)           \
    F(cuMemPoolSetAttribute) F(cuMemPoolSetAccess) F(cuMemPoolGetAccess) F(cuMemSetMemPool) F(cuMemGetMemPool)         \
    F(cuMemPoolExportToShareableHandle) F(cuMemPoolExportPointer) F(cuMemGetDefaultMemPool)                            \
    F(cuMemAllocHost) F(cuMemHostAlloc) F(cuMemFreeHost) F(cuMemHostGetDevicePointer) F(cuMemCreate) F(cuMemRelease)   \
    F(cuMemcpyHtoD) F(cuMemcpyDtoH) F(cuMemcpyDtoD) F(cuMemcpy) F(cuMemcpyHtoDAsync) F(cuMemcpyDtoHAsync)              \
    F(cuMemcpyDtoDAsync) F(cuMemcpyAsync) F(cuMemsetD8) F(cuMemsetD16) F(cuMemsetD32) F(cuMemsetD8Async)               \
    F(cuMemsetD16Async) F(cuMemsetD32Async) F(cuMemsetD2D8Async) F(cuMemcpyPeerAsync) F(cuIpcGetMemHandle)             \
    F(cuMemGetHandleForAddressRange) F(cuGetErrorName) F(cuDeviceGraphMemTrim) F(cuDeviceGetGraphMemAttribute)

#define NAME_(x) #x
#define NAME(x) NAME_(x)
#define ENUM(f) AT_##f,
enum at { FUNCTIONS(ENUM) AT_END };
static void *table[AT_END];
#define CALL(f) (*(__typeof__(&f) *)(void *)&table[AT_##f])

static uint64_t mix(uint64_t *s)
{
    uint64_t z = (*s += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

enum { CTX = 4, STREAM = 12, EVENT = 10, POOL = 6, BLOCK = 40, GRAPH = 4, PHYS = 6, READ = 64, SHADOW = 2048 };
enum kind { NONE, PLAIN, PITCH, MANAGED, ASYNC, FROMPOOL, HOST, GRAPHMEM };
static const char *const kinds[] = {"none", "plain", "pitch", "managed", "async", "frompool", "host", "graph"};

struct context { CUcontext h; int device, primary, alive; };
struct stream { CUstream h; int ctx, alive, blocking; };
struct block {
    CUdeviceptr p;
    size_t size, shadow;
    enum kind kind;
    int live, ctx, device, known, broken, touched; /* touched: the fence holds */
    CUevent fence;
    int fence_ctx;
    int by; /* the last access was on: 1 a blocking stream, 2 the legacy one, 0 neither */
    unsigned char bytes[SHADOW];
    int id;
};
struct reading { unsigned char got[SHADOW], expected[SHADOW]; size_t size; int used, step, ctx; };

struct program {
    uint64_t random;
    int steps, shared, thread, step, primaries[2], ids, twin, stale_stream;
    struct context ctx[CTX];
    struct stream stream[STREAM];
    struct { CUevent h; int ctx, alive; } event[EVENT];
    struct { CUmemoryPool h; int alive, device; } pool[POOL];
    struct block block[BLOCK];
    struct { CUgraph g; CUgraphExec e; int alive; } graph[GRAPH];
    struct { CUmemGenericAllocationHandle h; int alive; } phys[PHYS];
    struct reading reading[READ];
    CUdeviceptr scratch; /* captured sets write here; nobody reads it */
    FILE *out;
    char *text;
    size_t length;
    volatile int ran[CTX + 1];
    int own; /* memory is touched in its own context only */
    int tidy; /* tidy: stream-ordered memory goes before its context */
    pthread_t self;
};

static uint64_t rnd(struct program *g, uint64_t n) { return mix(&g->random) % n; }
static int one_in(struct program *g, int n) { return rnd(g, (uint64_t)n) == 0; }

/* How many functions of a context have run, where all of them must have. */
static void tell_ran(struct program *g, int ctx)
{
    if (ctx >= 0) fprintf(g->out, "|S ran=%d\n", g->ran[ctx]);
}

static void say(struct program *g, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vfprintf(g->out, format, list);
    va_end(list);
    fprintf(g->out, "\n");
}

static void *find(const char *name, const char *symbol, uint64_t *random, int twin, void *library)
{
    typedef CUresult (*lookup_fn)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    char suffixed[100];
    void *found = 0;
    int way = (int)(mix(random) % 3);
    if (!strcmp(name, "cuCtxCreate")) way = 0;
    if (way == 2) {
        CUdriverProcAddressQueryResult status;
        lookup_fn lookup;
        void *at = dlsym(library, "cuGetProcAddress_v2");
        memcpy(&lookup, &at, sizeof at);
        if (mix(random) % 2 && !lookup("cuGetProcAddress", &at, 12000, 0, &status)) memcpy(&lookup, &at, sizeof at);
        if (!lookup(name, &found, 12050, twin ? 2 : mix(random) % 2, &status) && found) return found;
    }
    if (twin) {
        snprintf(suffixed, sizeof suffixed, "%s_ptsz", symbol);
        if ((found = dlsym(library, suffixed))) return found;
        snprintf(suffixed, sizeof suffixed, "%s_ptds", symbol);
        if ((found = dlsym(library, suffixed))) return found;
    }
    return dlsym(way ? library : RTLD_DEFAULT, symbol);
}

/* --- naming */

static int ctx_of(struct program *g, CUcontext h)
{
    int i;
    if (!h) return -1;
    for (i = 0; i < CTX; i++) if (g->ctx[i].alive && g->ctx[i].h == h) return i;
    return -2;
}
static int pool_of(struct program *g, CUmemoryPool h)
{
    int i;
    if (!h) return -1;
    for (i = 0; i < POOL; i++) if (g->pool[i].alive && g->pool[i].h == h) return i;
    return -2;
}
static int current(struct program *g)
{
    CUcontext h = 0;
    if (CALL(cuCtxGetCurrent)(&h)) return -3;
    return ctx_of(g, h);
}

/* --- picking */

struct picked { CUstream h; int ctx, slot; };

/* A stream: one of ours, or a default one; now and then one that is none. */
static struct picked a_stream(struct program *g, int may_be_bad)
{
    struct picked p;
    int i = (int)rnd(g, STREAM + 6);
    p.slot = i;
    if (i >= STREAM || !g->stream[i].alive) {
        static const uintptr_t defaults[] = {0, 0, 1, 2};
        if (may_be_bad && g->stale_stream && one_in(g, 12)) {
            p.h = (CUstream)0x7777000;
            p.ctx = -9;
            p.slot = 99;
            return p;
        }
        p.h = (CUstream)defaults[rnd(g, 4)];
        p.ctx = current(g);
        p.slot = 100 + (int)(uintptr_t)p.h;
        return p;
    }
    p.h = g->stream[i].h;
    p.ctx = g->stream[i].ctx;
    return p;
}

static int capturing(struct picked s)
{
    CUstreamCaptureStatus status = 0;
    CUresult code = CALL(cuStreamIsCapturing)(s.h, &status);
    return code ? -1 : (int)status;
}

static size_t a_size(struct program *g)
{
    switch (rnd(g, 12)) {
    case 0: return 1 + rnd(g, 16);
    case 1: return 512 * (1 + rnd(g, 8));
    case 2: case 3: case 4: return 1 + rnd(g, 5000);
    case 5: case 6: return 1 + rnd(g, 100000);
    case 7: return (1u << 20) + rnd(g, 3) - 1;
    case 8: return (2u << 20) + rnd(g, 3) - 1;
    case 9: return 1 + rnd(g, 6u << 20);
    default: return 4096;
    }
}
/* Rarely nothing, or more than there is. */
static size_t any_size(struct program *g)
{
    static const size_t odd[] = {0, SIZE_MAX, SIZE_MAX - 510, (size_t)1 << 62, (size_t)1 << 45};
    return one_in(g, 25) ? odd[rnd(g, 5)] : a_size(g);
}

static int free_slot(struct program *g)
{
    int i, at = (int)rnd(g, BLOCK);
    for (i = 0; i < BLOCK; i++, at = (at + 1) % BLOCK) if (!g->block[at].live) return at;
    return -1;
}
static int live_slot(struct program *g)
{
    int i, at = (int)rnd(g, BLOCK);
    for (i = 0; i < BLOCK; i++, at = (at + 1) % BLOCK) if (g->block[at].live) return at;
    return -1;
}

/* --- order of accesses: each block has an event after its last access */

/* 1: a blocking stream, 2: the legacy one, 0: neither. */
static int order_of(struct program *g, struct picked s)
{
    if (s.slot < STREAM) return g->stream[s.slot].blocking;
    if (s.slot == 101 || (s.slot == 100 && !g->twin)) return 2;
    return s.slot == 102 || s.slot == 100;
}

/* The legacy stream orders the one after the other without an event. */
static int by_legacy(struct program *g, struct block *b, struct picked s)
{
    int to = order_of(g, s);
    return b->touched && !b->broken && b->fence_ctx == s.ctx && b->by && to && (b->by == 2 || to == 2);
}

/* Orders what `s` does next after the last access of the block. 0: it cannot. */
static int after_last(struct program *g, struct block *b, struct picked s)
{
    (void)g;
    if (b->broken) return 0;
    if (!b->touched) return 1;
    return !CALL(cuStreamWaitEvent)(s.h, b->fence, 0);
}
static void accessed(struct program *g, struct block *b, struct picked s)
{
    CUcontext popped;
    if (b->fence) CALL(cuEventDestroy)(b->fence);
    b->fence = 0;
    b->touched = 1;
    b->by = order_of(g, s);
    b->broken = 1;
    if (s.ctx < 0 || CALL(cuCtxPushCurrent)(g->ctx[s.ctx].h)) return;
    if (!CALL(cuEventCreate)(&b->fence, CU_EVENT_DISABLE_TIMING)) {
        /* The default streams are the current context's, which is that of `s` by now. */
        b->fence_ctx = s.ctx;
        b->broken = !!CALL(cuEventRecord)(b->fence, s.h);
    } else {
        b->fence = 0;
    }
    CALL(cuCtxPopCurrent)(&popped);
}
/* The host waits for the last access. */
static int over(struct program *g, struct block *b)
{
    (void)g;
    if (b->broken) return 0;
    return !b->touched || !CALL(cuEventSynchronize)(b->fence);
}
static void forget_graph_memory(struct program *g);
static void drop(struct block *b)
{
    if (b->fence) CALL(cuEventDestroy)(b->fence);
    memset(b, 0, sizeof *b);
}

static void check_readings(struct program *g, int ctx)
{
    int i;
    for (i = 0; i < READ; i++) {
        struct reading *r = &g->reading[i];
        if (!r->used || (ctx >= 0 && r->ctx != ctx)) continue;
        if (memcmp(r->got, r->expected, r->size)) {
            size_t at;
            for (at = 0; at < r->size && r->got[at] == r->expected[at]; at++) {}
            say(g, "BAD bytes read at step %d: byte %zu of %zu is %02x, not %02x", r->step, at, r->size, r->got[at],
                r->expected[at]);
        }
        r->used = 0;
    }
}

static void born(struct program *g, int slot, CUdeviceptr p, size_t size, enum kind kind, int ctx, struct picked s)
{
    struct block *b = &g->block[slot];
    memset(b, 0, sizeof *b);
    b->p = p;
    b->size = size;
    b->shadow = size < SHADOW ? size : SHADOW;
    b->kind = kind;
    b->live = 1;
    b->ctx = ctx;
    b->id = ++g->ids;
    b->device = ctx >= 0 ? g->ctx[ctx].device : -1;
    if (kind == ASYNC || kind == FROMPOOL) accessed(g, b, s);
    /* What a pool serves is no barrier. */
    if (b->by == 2) b->by = 0;
}

/* --- calls */

static void op_alloc(struct program *g)
{
    int slot = free_slot(g), ctx = current(g);
    size_t size = any_size(g), pitch = 0;
    CUdeviceptr p = 0x1234;
    CUresult code;
    int how = (int)rnd(g, 10);
    unsigned flags = one_in(g, 10) ? 7 : 1;
    struct picked none = {0, ctx, 0};
    if (slot < 0) return;
    if (how < 7) {
        if (one_in(g, 40)) { say(g, "alloc null %d", (int)CALL(cuMemAlloc)(0, size)); return; }
        code = CALL(cuMemAlloc)(&p, size);
        say(g, "alloc %zu = %d aligned %d left %d", size, (int)code, code ? 0 : (int)(p % 256), code ? p == 0x1234 : 0);
        if (!code) born(g, slot, p, size, PLAIN, ctx, none);
    } else if (how < 8) {
        size_t width = one_in(g, 20) ? SIZE_MAX - rnd(g, 2000) : 1 + rnd(g, 3000), height = one_in(g, 15) ? 0 : 1 + rnd(g, 20);
        unsigned element = one_in(g, 20) ? 3 : 4u << rnd(g, 3);
        code = CALL(cuMemAllocPitch)(&p, &pitch, width, height, element);
        say(g, "pitch %zu x %zu e%u = %d pitch %zu", width, height, element, (int)code, code ? 0 : pitch);
        if (!code) born(g, slot, p, pitch * height, PITCH, ctx, none);
    } else if (how < 9) {
        if (size > ((size_t)1 << 40) && size < SIZE_MAX / 2) size = 4096;
        code = CALL(cuMemAllocManaged)(&p, size, flags);
        say(g, "managed %zu f%u = %d", size, flags, (int)code);
        if (!code) born(g, slot, p, size, MANAGED, ctx, none);
    } else {
        void *q = 0;
        if (size > ((size_t)1 << 40)) size = 0;
        code = one_in(g, 2) ? CALL(cuMemAllocHost)(&q, size) : CALL(cuMemHostAlloc)(&q, size, one_in(g, 10) ? 99 : (unsigned)rnd(g, 8));
        say(g, "host %zu = %d", size, (int)code);
        if (!code) born(g, slot, (CUdeviceptr)(uintptr_t)q, size, HOST, ctx, none);
    }
}

static void op_alloc_async(struct program *g)
{
    int slot = free_slot(g), pool = (int)rnd(g, POOL), from = one_in(g, 2), status;
    size_t size = any_size(g);
    struct picked s = a_stream(g, 1);
    CUdeviceptr p = 0x1234;
    CUresult code;
    if (slot < 0) return;
    status = capturing(s);
    if (from && !g->pool[pool].alive && !one_in(g, 5)) pool = 0;
    if (g->shared) pool = 0;
    if (one_in(g, 40)) {
        say(g, "async null = %d", (int)CALL(cuMemAllocAsync)(0, size, s.h));
        return;
    }
    code = from ? CALL(cuMemAllocFromPoolAsync)(&p, size, g->pool[pool].alive ? g->pool[pool].h : 0, s.h)
                : CALL(cuMemAllocAsync)(&p, size, s.h);
    say(g, "async %zu from %d stream %d cap %d = %d null %d", size, from ? pool : -1, s.slot, status, (int)code, code ? p == 0 : 0);
    if (!code) {
        born(g, slot, p, size, status == 1 ? GRAPHMEM : from ? FROMPOOL : ASYNC, s.ctx, s);
        if (from && status != 1) g->block[slot].device = g->pool[pool].device;
        if (size == 0) g->block[slot].shadow = 0;
    }
}

static void after_free(struct program *g, CUdeviceptr p, int how, struct picked s)
{
    /* Nothing has been allocated since: the address is nobody's. */
    CUdeviceptr base = 0;
    size_t size = 0;
    int value = 0;
    if (g->shared) return; /* by now it may be another thread's */
    if (one_in(g, 4)) say(g, "freed again = %d", (int)(how ? CALL(cuMemFreeAsync)(p, s.h) : CALL(cuMemFree)(p)));
    if (one_in(g, 4)) say(g, "freed is = %d %d", (int)CALL(cuMemGetAddressRange)(&base, &size, p),
        (int)CALL(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
}

static void op_free(struct program *g)
{
    int slot = live_slot(g), status, how = (int)rnd(g, 20);
    struct block *b;
    struct picked s = a_stream(g, 1);
    CUdeviceptr p;
    CUresult code;
    if (how == 0) { /* not what may be freed */
        static const CUdeviceptr odd[] = {0, 8, 4096, 0x7fffffffff000, (CUdeviceptr)-1};
        p = odd[rnd(g, 5)];
        say(g, "free odd %llx = %d", p, (int)CALL(cuMemFree)(p));
        return;
    }
    if (how == 1) {
        static const CUdeviceptr odd[] = {8, 4096, 0x7fffffffff000, (CUdeviceptr)-1};
        p = odd[rnd(g, 4)];
        status = capturing(s);
        say(g, "freeasync odd %llx stream %d cap %d = %d", p, s.slot, status, (int)CALL(cuMemFreeAsync)(p, s.h));
        return;
    }
    if (slot < 0) return;
    b = &g->block[slot];
    p = b->p;
    if (how == 2) { /* inside */
        size_t off = 1 + rnd(g, b->size + 1);
        if (off >= b->size) off = g->shared || !b->size ? 0 : off;
        if (!off) return;
        int i;
        for (i = 0; i < BLOCK; i++) if (g->block[i].live && g->block[i].p == p + off) return;
        say(g, "free inside #%d +%zu = %d", b->id, off, (int)CALL(cuMemFree)(p + off));
        return;
    }
    if (how == 3) {
        size_t off = 1 + rnd(g, b->size + 1);
        if (off >= b->size) off = g->shared || !b->size ? 0 : off;
        if (!off) return;
        int i;
        for (i = 0; i < BLOCK; i++) if (g->block[i].live && g->block[i].p == p + off) return;
        status = capturing(s);
        say(g, "freeasync inside #%d +%zu stream %d cap %d = %d", b->id, off, s.slot, status, (int)CALL(cuMemFreeAsync)(p + off, s.h));
        return;
    }
    if (how == 4) {
        say(g, "freehost #%d %s = %d", b->id, kinds[b->kind], (int)(code = CALL(cuMemFreeHost)((void *)(uintptr_t)p)));
        if (!code) drop(b);
        return;
    }
    if (b->kind == HOST) {
        if (one_in(g, 2)) say(g, "free host #%d = %d", b->id, (int)(code = CALL(cuMemFree)(p)));
        else say(g, "freehost #%d = %d", b->id, (int)(code = CALL(cuMemFreeHost)((void *)(uintptr_t)p)));
        if (!code) drop(b);
        return;
    }
    if (how < 13) {
        /* Of stream-ordered memory the caller says that nothing uses it; other contexts' work is not waited for. */
        if (!over(g, b) && !(b->kind == PLAIN && b->fence_ctx == b->ctx)) {
            say(g, "free #%d not over", b->id);
            return;
        }
        code = CALL(cuMemFree)(p);
        say(g, "free #%d %s = %d", b->id, kinds[b->kind], (int)code);
        if (code) return;
        if (b->kind == PLAIN && !g->shared) tell_ran(g, b->ctx);
        drop(b);
        after_free(g, p, 0, s);
    } else {
        status = capturing(s);
        if (status == 0 && b->kind != GRAPHMEM && !after_last(g, b, s)) {
            say(g, "freeasync #%d stream %d cannot be ordered", b->id, s.slot);
            if (s.slot != 99) return;
        }
        code = CALL(cuMemFreeAsync)(p, s.h);
        say(g, "freeasync #%d %s stream %d cap %d = %d", b->id, kinds[b->kind], s.slot, status, (int)code);
        if (code) return;
        {
            int kind = b->kind;
            drop(b);
            if (kind == ASYNC || kind == FROMPOOL) after_free(g, p, 1, s);
        }
    }
}

static void op_query(struct program *g)
{
    int slot = live_slot(g), attribute = (int)rnd(g, 23), i, cur = current(g);
    struct block *b;
    CUdeviceptr base = 1, p;
    size_t size = 1, off;
    union { uint64_t v; unsigned char c[8]; } value = {0}, other;
    CUresult code;
    if (one_in(g, 12)) {
        static const CUdeviceptr odd[] = {0, 8, 4096, 0x7fffffffff000, (CUdeviceptr)-1};
        p = odd[rnd(g, 5)];
        code = CALL(cuMemGetAddressRange)(&base, &size, p);
        say(g, "range of %llx = %d", p, (int)code);
        code = CALL(cuPointerGetAttribute)(&value, (CUpointer_attribute)attribute, p);
        say(g, "attribute %d of %llx = %d", attribute, p, (int)code);
        return;
    }
    if (slot < 0) return;
    b = &g->block[slot];
    off = one_in(g, 2) ? 0 : rnd(g, b->size + (b->size == 0));
    p = b->p + off;
    switch (rnd(g, 4)) {
    case 0: {
        int which = (int)rnd(g, 4);
        code = CALL(cuMemGetAddressRange)(which & 1 ? 0 : &base, which & 2 ? 0 : &size, p);
        say(g, "range #%d %s +%zu w%d cur %d = %d %lld %zu", b->id, kinds[b->kind], off, which, cur, (int)code,
            code || which & 1 ? 0 : (long long)(base - b->p), code || which & 2 ? 0 : (size + 511) / 512 * 512);
        break;
    }
    case 1: case 2: {
        long long shown = 0;
        code = CALL(cuPointerGetAttribute)(one_in(g, 40) ? 0 : &value, (CUpointer_attribute)attribute, p);
        if (!code) switch (attribute) {
        case 1: shown = ctx_of(g, (CUcontext)(uintptr_t)value.v); break;
        case 3: case 4: case 11: case 19: shown = (long long)(value.v - b->p); break;
        case 7: case 20: /* its own, and no other's */
            for (i = 0; i < BLOCK; i++) {
                other.v = 0;
                if (!g->block[i].live || CALL(cuPointerGetAttribute)(&other, (CUpointer_attribute)attribute, g->block[i].p)) continue;
                if ((b->kind == ASYNC || b->kind == FROMPOOL) && (g->block[i].kind == ASYNC || g->block[i].kind == FROMPOOL)) continue;
                if (other.v == value.v) shown += i == slot ? 1 : 100;
            }
            break;
        case 17: shown = pool_of(g, (CUmemoryPool)(uintptr_t)value.v); break;
        case 12: shown = (long long)(value.v + 511) / 512 * 512; break;
        default: shown = (long long)value.v;
        }
        say(g, "attribute %d #%d %s +%zu cur %d = %d %lld", attribute, b->id, kinds[b->kind], off, cur, (int)code, shown);
        break;
    }
    default: {
        CUpointer_attribute list[5] = {CU_POINTER_ATTRIBUTE_CONTEXT, CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
        uint64_t v[5] = {0};
        void *to[5];
        int count = (int)rnd(g, 6);
        for (i = 0; i < 5; i++) to[i] = &v[i];
        if (one_in(g, 20)) list[rnd(g, 5)] = (CUpointer_attribute)77;
        code = CALL(cuPointerGetAttributes)((unsigned)count, list, to, p);
        if (code) memset(v, 0, sizeof v);
        say(g, "attributes n%d #%d %s +%zu cur %d = %d %d %llu %lld %d %d", count, b->id, kinds[b->kind], off, cur, (int)code,
            ctx_of(g, (CUcontext)(uintptr_t)v[0]), (unsigned long long)(v[1] + 511) / 512 * 512, v[2] ? (long long)(v[2] - b->p) : -1, (int)v[3],
            pool_of(g, (CUmemoryPool)(uintptr_t)v[4]));
    }
    }
}

static void op_info(struct program *g)
{
    size_t available = 0, total = 0;
    int which = (int)rnd(g, 6);
    CUresult code = CALL(cuMemGetInfo)(which == 1 ? 0 : &available, which == 2 ? 0 : &total);
    fprintf(g->out, "info w%d = %d total %zu |M %zu", which, (int)code, total, available);
    say(g, "");
}

/* Sets, copies, and what is read back. */
static void op_access(struct program *g)
{
    int slot = live_slot(g), status, how = (int)rnd(g, 9);
    struct block *b, *c;
    struct picked s = a_stream(g, 0);
    CUresult code;
    size_t at, count;
    unsigned value;
    if (slot < 0) return;
    b = &g->block[slot];
    if (b->kind == HOST || b->kind == GRAPHMEM || b->broken || b->shadow == 0) return;
    /* Between devices only what is made for it. */
    if (s.ctx < 0 || g->ctx[s.ctx].device != b->device || (g->own && s.ctx != b->ctx)) return;
    status = capturing(s);
    if (status != 0) {
        if (!g->scratch || s.ctx < 0 || g->ctx[s.ctx].device) return;
        say(g, "captured set stream %d cap %d = %d", s.slot, status, (int)CALL(cuMemsetD8Async)(g->scratch, 5, 64, s.h));
        return;
    }
    value = (unsigned)rnd(g, 256);
    at = rnd(g, b->shadow);
    count = 1 + rnd(g, b->shadow - at);
    if (!b->known) how = 0;
    if (!(one_in(g, 2) && by_legacy(g, b, s)) && !after_last(g, b, s)) {
        say(g, "access #%d stream %d cannot be ordered", b->id, s.slot);
        return;
    }
    switch (how) {
    case 0: case 1:
        code = CALL(cuMemsetD8Async)(b->p, (unsigned char)value, b->size, s.h);
        say(g, "set #%d all %u stream %d = %d", b->id, value, s.slot, (int)code);
        if (!code) memset(b->bytes, (int)value, b->shadow);
        if (!code) b->known = 1;
        break;
    case 2:
        at &= ~(size_t)3;
        count = (b->shadow - at) / 4;
        if (!count) return;
        code = CALL(cuMemsetD32Async)(b->p + at, value * 0x01020304u, count, s.h);
        say(g, "set32 #%d stream %d = %d", b->id, s.slot, (int)code);
        if (!code) {
            size_t i;
            uint32_t v = value * 0x01020304u;
            for (i = 0; i < count; i++) memcpy(b->bytes + at + 4 * i, &v, 4);
        }
        break;
    case 3: { /* between two blocks */
        int other = live_slot(g);
        c = &g->block[other];
        if (c == b || c->kind == HOST || c->kind == GRAPHMEM || c->broken || !c->known || c->device != b->device || (g->own && c->ctx != b->ctx)) return;
        at = 0;
        count = b->shadow < c->shadow ? b->shadow : c->shadow;
        if (!after_last(g, c, s)) return;
        code = one_in(g, 2) ? CALL(cuMemcpyDtoDAsync)(b->p, c->p, count, s.h) : CALL(cuMemcpyAsync)(b->p, c->p, count, s.h);
        say(g, "copy #%d #%d %zu stream %d = %d", b->id, c->id, count, s.slot, (int)code);
        if (!code) memcpy(b->bytes, c->bytes, count);
        accessed(g, c, s);
        break;
    }
    case 4: { /* from the host, at once */
        unsigned char bytes[SHADOW];
        memset(bytes, (int)value, sizeof bytes);
        if (!over(g, b) || current(g) < 0 || g->ctx[current(g)].device != b->device || (g->own && current(g) != b->ctx)) return;
        code = one_in(g, 2) ? CALL(cuMemcpyHtoD)(b->p + at, bytes, count) : CALL(cuMemsetD8)(b->p + at, (unsigned char)value, count);
        say(g, "now #%d = %d", b->id, (int)code);
        if (!code) memset(b->bytes + at, (int)value, count);
        if (!code && CALL(cuStreamSynchronize)(0)) b->broken = 1;
        return;
    }
    case 5: {
        unsigned char bytes[SHADOW];
        if (!over(g, b) || current(g) < 0 || g->ctx[current(g)].device != b->device || (g->own && current(g) != b->ctx)) return;
        code = CALL(cuMemcpyDtoH)(bytes, b->p, b->shadow);
        say(g, "read #%d = %d right %d", b->id, (int)code, code ? 0 : !memcmp(bytes, b->bytes, b->shadow));
        if (!code && one_in(g, 2)) b->touched = 0; /* it has waited */
        return;
    }
    case 6: { /* out of bounds by far, or no address at all */
        code = CALL(cuMemsetD8Async)(8, 1, 16, s.h);
        say(g, "set nothing = %d", (int)code);
        return;
    }
    default: {
        int i;
        for (i = 0; i < READ && g->reading[i].used; i++) {}
        if (i == READ || s.ctx < 0) return;
        code = CALL(cuMemcpyDtoHAsync)(g->reading[i].got, b->p, b->shadow, s.h);
        say(g, "read #%d stream %d = %d", b->id, s.slot, (int)code);
        if (code) break;
        g->reading[i].used = 1;
        g->reading[i].step = g->step;
        g->reading[i].size = b->shadow;
        g->reading[i].ctx = s.ctx;
        memcpy(g->reading[i].expected, b->bytes, b->shadow);
    }
    }
    accessed(g, b, s);
}

static void CUDA_CB host_function(void *data) { __atomic_add_fetch((int *)data, 1, __ATOMIC_SEQ_CST); }
static void CUDA_CB callback(CUstream stream, CUresult code, void *data)
{
    (void)stream;
    (void)code;
    host_function(data);
}

static void op_stream(struct program *g)
{
    struct picked s = a_stream(g, 1);
    int i = (int)rnd(g, STREAM), status, cur = current(g);
    unsigned flags;
    CUresult code;
    switch (rnd(g, 12)) {
    case 0: case 1:
        if (g->stream[i].alive) return;
        flags = one_in(g, 20) ? 9 : (unsigned)rnd(g, 2);
        code = one_in(g, 2) ? CALL(cuStreamCreate)(&g->stream[i].h, flags)
                            : CALL(cuStreamCreateWithPriority)(&g->stream[i].h, flags, (int)rnd(g, 8) - 6);
        say(g, "stream %d f%u = %d", i, flags, (int)code);
        g->stream[i].alive = !code;
        g->stream[i].ctx = cur;
        g->stream[i].blocking = !(flags & 1);
        break;
    case 2:
        if (!one_in(g, 3)) return;
        if (s.slot < STREAM && capturing(s) == 1 && one_in(g, 2)) return;
        forget_graph_memory(g);
        code = CALL(cuStreamDestroy)(s.h);
        say(g, "destroy stream %d = %d", s.slot, (int)code);
        if (s.slot < STREAM && !code) g->stream[s.slot].alive = 0;
        break;
    case 3: case 4:
        status = capturing(s);
        code = CALL(cuStreamSynchronize)(s.h);
        say(g, "sync stream %d cap %d = %d", s.slot, status, (int)code);
        break;
    case 5:
        status = capturing(s);
        code = CALL(cuStreamQuery)(s.h);
        if (code == CUDA_ERROR_NOT_READY) code = CUDA_SUCCESS; /* functions run when they please */
        say(g, "query stream %d cap %d = %d", s.slot, status, (int)code);
        break;
    case 6: {
        unsigned f = 9;
        int p = 9;
        CUcontext c = 0;
        code = CALL(cuStreamGetFlags)(s.h, &f);
        CALL(cuStreamGetPriority)(s.h, &p);
        CALL(cuStreamGetCtx)(s.h, &c);
        say(g, "stream %d is = %d %u %d %d", s.slot, (int)code, f, p, ctx_of(g, c));
        break;
    }
    case 7: case 8: case 9: {
        void *data = (void *)&g->ran[s.ctx >= 0 ? s.ctx : CTX];
        status = capturing(s);
        code = one_in(g, 4) ? CALL(cuStreamAddCallback)(s.h, callback, data, 0) : CALL(cuLaunchHostFunc)(s.h, host_function, data);
        say(g, "function stream %d cap %d = %d", s.slot, status, (int)code);
        break;
    }
    case 10:
        code = CALL(cuCtxSynchronize)();
        say(g, "sync ctx %d = %d", cur, (int)code);
        if (!code) tell_ran(g, cur);
        if (!code) check_readings(g, cur);
        break;
    default: {
        int e = (int)rnd(g, EVENT);
        if (!g->event[e].alive) return;
        code = CALL(cuStreamWaitEvent)(s.h, g->event[e].h, one_in(g, 20) ? 8 : 0);
        say(g, "stream %d waits %d = %d", s.slot, e, (int)code);
    }
    }
}

static void op_event(struct program *g)
{
    int e = (int)rnd(g, EVENT), cur = current(g);
    struct picked s = a_stream(g, 1);
    CUresult code;
    if (!g->event[e].alive) {
        code = CALL(cuEventCreate)(&g->event[e].h, one_in(g, 20) ? 64 : (unsigned)rnd(g, 4));
        say(g, "event %d = %d", e, (int)code);
        g->event[e].alive = !code;
        g->event[e].ctx = cur;
        return;
    }
    switch (rnd(g, 9)) {
    case 0:
        say(g, "destroy event %d = %d", e, (int)CALL(cuEventDestroy)(g->event[e].h));
        g->event[e].alive = 0;
        break;
    case 1: say(g, "sync event %d = %d", e, (int)CALL(cuEventSynchronize)(g->event[e].h)); break;
    case 2:
        code = CALL(cuEventQuery)(g->event[e].h);
        if (code == CUDA_ERROR_NOT_READY) code = CUDA_SUCCESS;
        say(g, "query event %d = %d", e, (int)code);
        break;
    case 3:
        if (g->ctx[g->event[e].ctx].alive)
            say(g, "ctx event %d = %d", e, (int)CALL(cuCtxRecordEvent)(g->ctx[g->event[e].ctx].h, g->event[e].h));
        break;
    case 4:
        if (cur >= 0) say(g, "ctx waits %d = %d", e, (int)CALL(cuCtxWaitEvent)(g->ctx[cur].h, g->event[e].h));
        break;
    default:
        code = one_in(g, 4) ? CALL(cuEventRecordWithFlags)(g->event[e].h, s.h, one_in(g, 10) ? 5 : 0)
                            : CALL(cuEventRecord)(g->event[e].h, s.h);
        say(g, "record %d stream %d = %d", e, s.slot, (int)code);
    }
}

static void op_pool(struct program *g)
{
    int i = (int)rnd(g, POOL), device = (int)rnd(g, 2), attribute;
    CUmemoryPool h = 0;
    uint64_t value = 0;
    CUresult code;
    CUmemLocation place = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
    switch (rnd(g, 12)) {
    case 0: case 1: {
        CUmemPoolProps props;
        if (g->pool[i].alive) return;
        memset(&props, 0, sizeof props);
        props.allocType = one_in(g, 20) ? (CUmemAllocationType)9 : CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location = place;
        props.maxSize = one_in(g, 4) ? 32u << 20 : 0;
        props.handleTypes = one_in(g, 4) ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
        code = CALL(cuMemPoolCreate)(&g->pool[i].h, &props);
        say(g, "pool %d dev %d = %d", i, device, (int)code);
        g->pool[i].alive = !code;
        g->pool[i].device = device;
        break;
    }
    case 2:
        if (!g->pool[i].alive || !one_in(g, 2)) return;
        code = CALL(cuMemPoolDestroy)(g->pool[i].h);
        say(g, "destroy pool %d = %d", i, (int)code);
        if (!code) g->pool[i].alive = 0;
        break;
    case 3:
        if (!g->pool[i].alive) return;
        code = one_in(g, 2) ? CALL(cuDeviceSetMemPool)(device, g->pool[i].h)
                            : CALL(cuMemSetMemPool)(&place, CU_MEM_ALLOCATION_TYPE_PINNED, g->pool[i].h);
        say(g, "set pool %d dev %d = %d", i, device, (int)code);
        break;
    case 4:
        if (one_in(g, 2)) {
            code = CALL(cuDeviceSetMemPool)(device, g->pool[device].h);
            say(g, "set default dev %d = %d", device, (int)code);
            break;
        }
        code = one_in(g, 2) ? CALL(cuDeviceGetMemPool)(&h, device) : CALL(cuMemGetMemPool)(&h, &place, CU_MEM_ALLOCATION_TYPE_PINNED);
        say(g, "pool of dev %d = %d %d", device, (int)code, pool_of(g, h));
        break;
    case 5:
        if (!g->pool[i].alive) return;
        code = CALL(cuMemPoolTrimTo)(g->pool[i].h, rnd(g, 2) ? 0 : rnd(g, 64u << 20));
        say(g, "trim %d = %d", i, (int)code);
        break;
    case 6: case 7: {
        int v;
        if (!g->pool[i].alive) return;
        attribute = (int)rnd(g, 18);
        v = (int)rnd(g, 3);
        if (attribute >= 4) value = one_in(g, 2) ? 0 : rnd(g, 3) ? rnd(g, 64u << 20) : UINT64_MAX;
        else memcpy(&value, &v, sizeof v);
        code = CALL(cuMemPoolSetAttribute)(g->pool[i].h, (CUmemPool_attribute)attribute, one_in(g, 40) ? 0 : (void *)&value);
        say(g, "set attribute %d of pool %d to %llu = %d", attribute, i, (unsigned long long)value, (int)code);
        break;
    }
    case 8: case 9:
        attribute = (int)rnd(g, 18);
        code = CALL(cuMemPoolGetAttribute)(g->pool[i].alive ? g->pool[i].h : 0, (CUmemPool_attribute)attribute, one_in(g, 40) ? 0 : (void *)&value);
        fprintf(g->out, "attribute %d of pool %d = %d", attribute, i, (int)code);
        if (attribute >= 4 && attribute <= 8) fprintf(g->out, " |P %llu", (unsigned long long)value);
        else fprintf(g->out, " %llu", (unsigned long long)value);
        say(g, "");
        break;
    case 10: {
        CUmemAccessDesc desc;
        if (!g->pool[i].alive || !one_in(g, 3)) return;
        desc.location = place;
        desc.flags = one_in(g, 2) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
        code = CALL(cuMemPoolSetAccess)(g->pool[i].h, &desc, 1);
        say(g, "access of pool %d for %d to %d = %d", i, device, (int)desc.flags, (int)code);
        break;
    }
    default: {
        CUmemAccess_flags flags = 0;
        if (!g->pool[i].alive) return;
        code = CALL(cuMemPoolGetAccess)(&flags, g->pool[i].h, &place);
        say(g, "access of pool %d for %d = %d %d", i, device, (int)code, (int)flags);
    }
    }
}

static void op_export(struct program *g)
{
    int slot = live_slot(g), pool = (int)rnd(g, POOL);
    CUipcMemHandle handle;
    CUmemPoolPtrExportData data;
    int fd = -1;
    struct block *b;
    if (slot < 0) return;
    b = &g->block[slot];
    switch (rnd(g, 4)) {
    case 0: say(g, "ipc #%d = %d", b->id, (int)CALL(cuIpcGetMemHandle)(&handle, b->p)); break;
    case 1:
        say(g, "range handle #%d = %d", b->id, (int)CALL(cuMemGetHandleForAddressRange)(&fd, b->p, b->size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
        break;
    case 2:
        if (!g->pool[pool].alive) return;
        say(g, "pool handle %d = %d", pool, (int)CALL(cuMemPoolExportToShareableHandle)(&fd, g->pool[pool].h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        break;
    default: say(g, "export #%d %s = %d", b->id, kinds[b->kind], (int)CALL(cuMemPoolExportPointer)(&data, b->p));
    }
}

static void op_physical(struct program *g)
{
    int i = (int)rnd(g, PHYS);
    CUmemAllocationProp prop;
    CUresult code;
    size_t size = one_in(g, 10) ? 4096 : (2u << 20) * (1 + rnd(g, 3));
    if (g->phys[i].alive) {
        code = CALL(cuMemRelease)(g->phys[i].h);
        say(g, "release %d = %d", i, (int)code);
        if (one_in(g, 4)) say(g, "release again = %d", (int)CALL(cuMemRelease)(g->phys[i].h));
        g->phys[i].alive = 0;
        return;
    }
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = one_in(g, 10) ? 7 : (int)rnd(g, 2);
    code = CALL(cuMemCreate)(&g->phys[i].h, size, &prop, 0);
    say(g, "create %zu dev %d = %d", size, prop.location.id, (int)code);
    g->phys[i].alive = !code;
}

/* Memory of graphs that may be gone: its addresses may be others' by now. */
static void forget_graph_memory(struct program *g)
{
    int i;
    for (i = 0; i < BLOCK; i++) if (g->block[i].live && g->block[i].kind == GRAPHMEM) drop(&g->block[i]);
}

static void op_capture(struct program *g)
{
    struct picked s = a_stream(g, 1);
    int i = (int)rnd(g, GRAPH), status = capturing(s), mode = one_in(g, 20) ? 9 : (int)rnd(g, 3);
    CUresult code;
    CUstreamCaptureMode exchanged;
    if (g->shared && mode == 0) mode = 1;
    switch (rnd(g, 8)) {
    case 0: case 1:
        code = CALL(cuStreamBeginCapture)(s.h, (CUstreamCaptureMode)mode);
        say(g, "capture stream %d mode %d cap %d = %d", s.slot, mode, status, (int)code);
        break;
    case 2: case 3: case 4: { /* end one that is going on */
        CUgraph graph = 0;
        int k, at = (int)rnd(g, STREAM);
        for (k = 0; k < STREAM && status != 1 && status != 2; k++) {
            int n = (at + k) % STREAM;
            struct picked t = {g->stream[n].h, g->stream[n].ctx, n};
            if (!g->stream[n].alive) continue;
            status = capturing(t);
            if (status == 1 || status == 2) s = t;
        }
        code = CALL(cuStreamEndCapture)(s.h, &graph);
        say(g, "end capture stream %d cap %d = %d graph %d", s.slot, status, (int)code, graph != 0);
        if (!graph || g->graph[i].alive) forget_graph_memory(g);
        if (graph && g->graph[i].alive) CALL(cuGraphDestroy)(graph);
        else if (graph) {
            g->graph[i].g = graph;
            g->graph[i].alive = 1;
            code = CALL(cuGraphInstantiateWithFlags)(&g->graph[i].e, graph, one_in(g, 3) ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0);
            say(g, "instantiate %d = %d", i, (int)code);
            if (code) g->graph[i].e = 0;
        }
        break;
    }
    case 5:
        if (!g->graph[i].alive || !g->graph[i].e) return;
        code = CALL(cuGraphLaunch)(g->graph[i].e, s.h);
        say(g, "launch %d stream %d cap %d = %d", i, s.slot, status, (int)code);
        break;
    case 6:
        if (!g->graph[i].alive) return;
        forget_graph_memory(g);
        say(g, "destroy graph %d = %d", i, (int)CALL(cuGraphDestroy)(g->graph[i].g));
        if (g->graph[i].e) say(g, "destroy exec %d = %d", i, (int)CALL(cuGraphExecDestroy)(g->graph[i].e));
        g->graph[i].e = 0;
        g->graph[i].alive = 0;
        break;
    default:
        exchanged = (CUstreamCaptureMode)mode;
        code = CALL(cuThreadExchangeStreamCaptureMode)(&exchanged);
        say(g, "exchange %d = %d %d", mode, (int)code, (int)exchanged);
    }
}

/* All that a context was given is over. */
static int quiet(struct program *g)
{
    int i, ok = 1;
    CUcontext popped;
    for (i = 0; i < CTX; i++) {
        if (!g->ctx[i].alive) continue;
        if (CALL(cuCtxPushCurrent)(g->ctx[i].h)) { ok = 0; continue; }
        CUresult code = CALL(cuCtxSynchronize)();
        if (code) { ok = 0; fprintf(g->out, "ctx %d = %d: ", i, (int)code); }
        else check_readings(g, i);
        CALL(cuCtxPopCurrent)(&popped);
    }
    return ok;
}

/* Before a context goes, in half of the programs. */
static void tidy(struct program *g, int c)
{
    int i;
    for (i = 0; g->tidy && i < BLOCK; i++) {
        struct block *b = &g->block[i];
        CUdeviceptr p = b->p;
        if (!b->live || b->ctx != c || (b->kind != ASYNC && b->kind != FROMPOOL)) continue;
        drop(b);
        say(g, "tidy = %d", (int)CALL(cuMemFree)(p));
    }
}

static void gone(struct program *g, int c)
{
    int i;
    forget_graph_memory(g);
    for (i = 0; i < STREAM; i++) if (g->stream[i].ctx == c) g->stream[i].alive = 0;
    for (i = 0; i < EVENT; i++) if (g->event[i].alive && g->event[i].ctx == c) g->event[i].alive = 0;
    for (i = 0; i < READ; i++) if (g->reading[i].ctx == c) g->reading[i].used = 0;
    for (i = 0; i < BLOCK; i++) {
        struct block *b = &g->block[i];
        if (!b->live) continue;
        if (b->touched && b->fence_ctx == c) { b->touched = 0; b->fence = 0; }
        if (b->ctx != c) continue;
        if (b->kind == ASYNC || b->kind == FROMPOOL) continue;
        memset(b, 0, sizeof *b);
    }
    if (c == 0) g->scratch = 0;
}

static void op_context(struct program *g)
{
    int i = (int)rnd(g, CTX), cur = current(g);
    CUcontext h = 0;
    CUresult code;
    if (g->shared) i = (int)rnd(g, 2) + 2;
    switch (rnd(g, 9)) {
    case 0: case 1:
        if (i < 2 || g->ctx[i].alive) return;
        {
            int device = (int)rnd(g, 2);
            code = CALL(cuCtxCreate)(&g->ctx[i].h, 0, 0, device);
            g->ctx[i].device = device;
        }
        g->ctx[i].alive = !code;
        say(g, "ctx %d dev %d = %d cur %d", i, g->ctx[i].device, (int)code, current(g));
        break;
    case 2:
        if (i < 2 || !g->ctx[i].alive || !one_in(g, 2)) return;
        if (!quiet(g)) say(g, "not quiet");
        tidy(g, i);
        code = CALL(cuCtxDestroy)(g->ctx[i].h);
        say(g, "destroy ctx %d = %d", i, (int)code);
        if (!code) { gone(g, i); g->ctx[i].alive = 0; }
        break;
    case 3: case 4:
        code = CALL(cuCtxSetCurrent)(g->ctx[i].alive ? g->ctx[i].h : 0);
        say(g, "set ctx %d = %d cur %d", i, (int)code, current(g));
        break;
    case 5:
        if (!g->ctx[i].alive) return;
        code = CALL(cuCtxPushCurrent)(g->ctx[i].h);
        say(g, "push ctx %d = %d cur %d", i, (int)code, current(g));
        break;
    case 6:
        code = CALL(cuCtxPopCurrent)(&h);
        say(g, "pop = %d %d cur %d", (int)code, ctx_of(g, h), current(g));
        break;
    case 7: {
        int device = (int)rnd(g, 2);
        unsigned flags = 9;
        int active = 9;
        if (g->shared) return;
        code = CALL(cuDevicePrimaryCtxGetState)(device, &flags, &active);
        say(g, "primary %d = %d %u %d", device, (int)code, flags, active);
        if (one_in(g, 4) && (!g->ctx[device].alive || g->primaries[device] < 3)) {
            code = CALL(cuDevicePrimaryCtxRetain)(&h, device);
            say(g, "retain %d = %d", device, (int)code);
            if (!code) { g->ctx[device].h = h; g->ctx[device].alive = 1; g->ctx[device].device = device; g->primaries[device]++; }
        } else if (one_in(g, 6) && g->ctx[device].alive) {
            if (!quiet(g)) say(g, "not quiet");
            tidy(g, device);
            code = CALL(cuDevicePrimaryCtxRelease)(device);
            say(g, "release primary %d = %d", device, (int)code);
            if (!code && --g->primaries[device] == 0) { gone(g, device); g->ctx[device].alive = 0; }
        } else if (one_in(g, 15) && g->ctx[device].alive) {
            if (!quiet(g)) say(g, "not quiet");
            tidy(g, device);
            code = CALL(cuDevicePrimaryCtxReset)(device);
            say(g, "reset %d = %d", device, (int)code);
            if (!code) { gone(g, device); g->ctx[device].alive = 0; g->primaries[device] = 0; }
        }
        break;
    }
    default: {
        int d = 9;
        code = CALL(cuCtxGetDevice)(&d);
        say(g, "cur %d device = %d %d", cur, (int)code, d);
    }
    }
}

static void run(struct program *g)
{
    /* How often each kind of call comes is the program's own choice. */
    void (*const ops[])(struct program *) = {op_alloc, op_free, op_access, op_alloc_async, op_query, op_stream, op_event, op_pool,
        op_context, op_capture, op_info, op_export, op_physical};
    int weight[13], total = 0, i;
    static const int base[13] = {12, 16, 30, 12, 10, 16, 10, 8, 6, 5, 3, 2, 2};
    for (i = 0; i < 13; i++) {
        weight[i] = base[i] * (int)rnd(g, 4) + (i < 3 ? 4 : 0);
        if (g->shared && (i == 7 || i == 10)) weight[i] = 0;
        total += weight[i];
    }
    if (one_in(g, 2)) { total -= weight[9]; weight[9] = 0; } /* many programs capture nothing */
    for (g->step = 0; g->step < g->steps; g->step++) {
        int at = (int)rnd(g, (uint64_t)total);
        for (i = 0; at >= weight[i]; i++) at -= weight[i];
        fprintf(g->out, "%d.%d ", g->thread, g->step);
        ops[i](g);
        fprintf(g->out, "\n");
    }
}

static void *thread(void *of)
{
    struct program *g = of;
    CUcontext h;
    if (!g->shared) {
        CALL(cuCtxSetCurrent)(g->ctx[0].h);
    } else if (!CALL(cuCtxCreate)(&h, 0, 0, g->thread % 2)) {
        /* What others do to a context of theirs is not to be seen here. */
        g->ctx[0].alive = g->ctx[1].alive = 0;
        g->ctx[2].h = h;
        g->ctx[2].alive = 1;
        g->ctx[2].device = g->thread % 2;
    }
    run(g);
    if (!quiet(g)) say(g, "not quiet in the end");
    check_readings(g, -1);
    return 0;
}

static void summary(struct program *g)
{
    int i, blocks[8] = {0};
    for (i = 0; i < BLOCK; i++) if (g->block[i].live) blocks[g->block[i].kind]++;
    fprintf(g->out, "alive");
    for (i = 1; i < 8; i++) fprintf(g->out, " %s %d", kinds[i], blocks[i]);
    fprintf(g->out, "\n");
}

static void flush(struct program *g)
{
    fflush(g->out);
    fwrite(g->text, 1, g->length, stdout);
    fflush(stdout);
}

static struct program programs[8];

int main(int argc, char **argv)
{
    uint64_t seed, random;
    int steps, threads, i, t, twin, end;
    void *library;
    if (argc > 1 && !strcmp(argv[1], "env")) {
        printf("executed\n");
        return 5;
    }
    if (argc < 3) return 2;
    seed = strtoull(argv[1], 0, 10);
    steps = atoi(argv[2]);
    threads = argc > 3 ? atoi(argv[3]) : 1;
    random = seed * 0x5851F42D4C957F2Du + 7;
    twin = (int)(mix(&random) % 3) == 0;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 2; }
#define FIND(f) if (!(table[AT_##f] = find(#f, NAME(f), &random, twin, library))) { printf("no " #f "\n"); table[AT_##f] = table[AT_cuInit]; }
    FUNCTIONS(FIND)
    {
        CUdeviceptr p;
        printf("before init %d %d\n", (int)CALL(cuMemAlloc)(&p, 100), (int)CALL(cuMemFree)(0));
    }
    CALL(cuInit)(0);
    {
        CUdeviceptr p;
        size_t a, b;
        CUstream s;
        printf("no context %d %d %d %d %d\n", (int)CALL(cuMemAlloc)(&p, 100), (int)CALL(cuMemFree)(0), (int)CALL(cuMemGetInfo)(&a, &b),
            (int)CALL(cuMemAllocAsync)(&p, 100, 0), (int)CALL(cuStreamCreate)(&s, 0));
    }
    if (threads > 8) threads = 8;
    for (t = 0; t < threads; t++) {
        struct program *g = &programs[t];
        g->random = random ^ ((uint64_t)t << 40);
        mix(&g->random);
        g->steps = steps;
        g->thread = t;
        g->shared = threads > 1;
        g->twin = twin;
        g->stale_stream = one_in(g, 2);
        g->tidy = (int)(seed % 2);
        g->own = seed % 4 == 1;
        g->out = open_memstream(&g->text, &g->length);
        for (i = 0; i < 2; i++) {
            CALL(cuDevicePrimaryCtxRetain)(&g->ctx[i].h, i);
            g->ctx[i].alive = g->ctx[i].primary = 1;
            g->ctx[i].device = i;
            g->primaries[i] = 1;
            CALL(cuDeviceGetDefaultMemPool)(&g->pool[i].h, i);
            g->pool[i].alive = 1;
            g->pool[i].device = i;
        }
        if (g->shared) g->primaries[0] = g->primaries[1] = 1000;
    }
    CALL(cuCtxSetCurrent)(programs[0].ctx[0].h);
    if (threads == 1) {
        CALL(cuMemAlloc)(&programs[0].scratch, 64);
        setvbuf(programs[0].out, 0, _IOFBF, 1 << 16);
        thread(&programs[0]);
    } else {
        pthread_t id[8];
        for (t = 0; t < threads; t++) pthread_create(&id[t], 0, thread, &programs[t]);
        for (t = 0; t < threads; t++) pthread_join(id[t], 0);
    }
    for (t = 0; t < threads; t++) {
        summary(&programs[t]);
        flush(&programs[t]);
    }
    end = (int)(mix(&random) % 12);
    printf("end %d\n", end);
    fflush(stdout);
    if (end == 1) exit(3);
    if (end == 2) _exit(4);
    if (end == 3) abort();
    if (end == 4) execl("/proc/self/exe", argv[0], "env", (char *)0);
    if (end == 5) {
        pid_t child = fork();
        int status = 0;
        if (!child) {
            CUdeviceptr p = 0;
            size_t a = 0, b = 0;
            printf("child %d %d", (int)CALL(cuMemAlloc)(&p, 100), (int)CALL(cuMemGetInfo)(&a, &b));
            for (i = 0; i < BLOCK; i++) if (programs[0].block[i].live) {
                printf(" %d", (int)CALL(cuMemFree)(programs[0].block[i].p));
                printf(" %d", (int)CALL(cuMemFreeAsync)(programs[0].block[i].p, 0));
                printf(" %d", (int)CALL(cuMemGetAddressRange)(0, 0, programs[0].block[i].p));
            }
            printf(" %d %d\n", (int)CALL(cuCtxSynchronize)(), (int)CALL(cuMemAllocAsync)(&p, 100, 0));
            fflush(stdout);
            if (mix(&random) % 2) exit(9);
            _exit(8);
        }
        waitpid(child, &status, 0);
        printf("child ended %d\n", status);
        for (i = 0; i < BLOCK; i++)
            if (programs[0].block[i].live && programs[0].block[i].kind == PLAIN) printf("late %d\n", (int)CALL(cuMemFree)(programs[0].block[i].p));
    }
    if (end == 6) {
        printf("reset %d %d\n", (int)CALL(cuDevicePrimaryCtxReset)(0), (int)CALL(cuDevicePrimaryCtxReset)(1));
        for (i = 0; i < BLOCK; i++) if (programs[0].block[i].live) printf("late %s %d\n", kinds[programs[0].block[i].kind], (int)CALL(cuMemFree)(programs[0].block[i].p));
    }
    return 0;
}
