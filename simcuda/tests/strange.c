/* Random calls with strange handles, addresses and sizes. Whatever is passed, the answer is one of CUDA's: never 999,
 * which a broken stand-in answers, and the driver still works afterwards. */
#include "driver.h"

#define TURNS 8000
#define KEPT 8

enum { STREAM, EVENT, POOL, PHYSICAL, GRAPH, EXECUTABLE, ADDRESS, RESERVED, KINDS };

static uint64_t kept[KINDS][KEPT];
static uint64_t state;

static uint64_t random_number(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
}

/* Something that was given out, something near it, or something odd. */
static uint64_t any(int kind)
{
    static const uint64_t odd[] = {0,          1,         2,          3,          511,        512,       4096,
                                   2u << 20,   32u << 20, 0x7FFFFFFF, 0xFFFFFFFF, UINT64_MAX, UINT64_MAX - 4095,
                                   1ull << 63, 4ull << 20};
    uint64_t value = kept[kind][random_number() % KEPT];
    switch (random_number() % 16) {
    case 0: return odd[random_number() % (sizeof odd / sizeof *odd)];
    case 1: return value + random_number() % 4096;
    case 2: return value + (2u << 20);
    case 3: return kept[random_number() % KINDS][random_number() % KEPT];
    default: return value;
    }
}

static uint64_t size(void)
{
    return random_number() % 8 ? (2u << 20) * (random_number() % 3) : random_number() % 2 ? 512 : any(ADDRESS);
}

static void keep(int kind, uint64_t value)
{
    kept[kind][random_number() % KEPT] = value;
}

static handle_t handle(int kind) { return (handle_t)(uintptr_t)any(kind); }
static stream_t any_stream(void) { return (stream_t)(uintptr_t)any(STREAM); }

static void quiet(void *data) { (void)data; }

static int call(handle_t context)
{
    static unsigned char host[1 << 16];
    static unsigned long long props[4] = {1, 1, 0, 0};
    static const unsigned access[3] = {1, 0, 3};
    struct { unsigned a[4]; void *b; uint64_t max; unsigned char tail[56]; } pool_props = {{1, 0, 1, 0}, NULL, 0, {0}};
    uint64_t words[25];
    handle_t out = NULL, nodes[4];
    stream_t stream = NULL;
    ptr_t at = 0;
    size_t bytes = 0, count = 4, pitch;
    unsigned long long number = 0;
    int answer, flags = (int)(random_number() % 4);
    unsigned index;
    int turn_kind = random_number() % 2 ? ADDRESS : RESERVED;
    switch (random_number() % 54) {
    case 0: answer = cuMemAlloc_v2(&at, size()); keep(ADDRESS, at); return answer;
    case 1: return cuMemFree_v2(any(ADDRESS));
    case 2: answer = cuMemAllocAsync(&at, size(), any_stream()); keep(ADDRESS, at); return answer;
    case 3: answer = cuMemAllocFromPoolAsync(&at, size(), handle(POOL), any_stream()); keep(ADDRESS, at); return answer;
    case 4: return cuMemFreeAsync(any(ADDRESS), any_stream());
    case 5: answer = cuStreamCreate(&stream, (unsigned)flags); keep(STREAM, (uintptr_t)stream); return answer;
    case 6: return cuStreamDestroy_v2(any_stream());
    case 7: answer = cuEventCreate(&out, (unsigned)flags); keep(EVENT, (uintptr_t)out); return answer;
    case 8: return cuEventRecord(handle(EVENT), any_stream());
    case 9: return cuStreamWaitEvent(any_stream(), handle(EVENT), 0);
    case 10: return cuEventDestroy_v2(handle(EVENT));
    case 11: return cuEventSynchronize(handle(EVENT));
    case 12: return cuStreamSynchronize(any_stream());
    case 13: return cuStreamQuery(any_stream());
    case 14: return cuEventQuery(handle(EVENT));
    case 15: return cuMemsetD8Async(any(turn_kind), 7, size(), any_stream());
    case 16: return cuMemsetD32_v2(any(ADDRESS), 7, size() / 4);
    case 17: return cuMemcpyDtoDAsync_v2(any(turn_kind), any(ADDRESS), size(), any_stream());
    case 18: return cuMemcpyHtoDAsync_v2(any(ADDRESS), host, random_number() % sizeof host, any_stream());
    case 19: return cuMemcpyDtoHAsync_v2(host, any(ADDRESS), random_number() % sizeof host, any_stream());
    case 20: return cuMemsetD2D32_v2(any(ADDRESS), size(), 7, size() / 4, random_number() % 5);
    case 21: answer = cuMemAddressReserve(&at, size(), 0, any(RESERVED), 0); keep(RESERVED, at); return answer;
    case 22: return cuMemAddressFree(any(RESERVED), size());
    case 23: answer = cuMemCreate(&number, size(), props, 0); keep(PHYSICAL, number); return answer;
    case 24: return cuMemRelease(any(PHYSICAL));
    case 25: return cuMemMap(any(RESERVED), size(), 0, any(PHYSICAL), 0);
    case 26: return cuMemUnmap(any(RESERVED), size());
    case 27: return cuMemSetAccess(any(RESERVED), size(), access, 1);
    case 28: return cuMemRetainAllocationHandle(&number, handle(RESERVED));
    case 29: answer = cuMemPoolCreate(&out, &pool_props); keep(POOL, (uintptr_t)out); return answer;
    case 30: return cuMemPoolDestroy(handle(POOL));
    case 31: return cuMemPoolTrimTo(handle(POOL), size());
    case 32: return cuMemPoolGetAttribute(handle(POOL), (int)(random_number() % 16), &number);
    case 33: number = any(ADDRESS); return cuMemPoolSetAttribute(handle(POOL), (int)(random_number() % 16), &number);
    case 34: return cuDeviceSetMemPool(0, handle(POOL));
    case 35: return cuPointerGetAttribute(&number, (int)(random_number() % 24), any(ADDRESS));
    case 36: return cuMemGetAddressRange_v2(&at, &bytes, any(ADDRESS));
    case 37: return turn_kind == ADDRESS ? OK : cuStreamBeginCapture_v2(any_stream(), flags);
    case 38: answer = cuStreamEndCapture(any_stream(), &out); keep(GRAPH, (uintptr_t)out); return answer;
    case 39:
        answer = cuGraphInstantiateWithFlags(&out, handle(GRAPH), (unsigned)flags & 1);
        keep(EXECUTABLE, (uintptr_t)out);
        return answer;
    case 40: return cuGraphLaunch(handle(EXECUTABLE), any_stream());
    case 41: return cuGraphDestroy(handle(GRAPH));
    case 42: return cuGraphExecDestroy(handle(EXECUTABLE));
    case 43: return cuGraphGetNodes(handle(GRAPH), nodes, &count);
    case 44: return cuLaunchHostFunc(any_stream(), quiet, NULL);
    case 45: return cuCtxRecordEvent(context, handle(EVENT));
    case 46: return cuCtxWaitEvent(context, handle(EVENT));
    case 47: answer = cuMemAllocPitch_v2(&at, &pitch, size(), random_number() % 4, 4); keep(ADDRESS, at); return answer;
    case 48:
        for (index = 0; index < 25; index++) words[index] = random_number() % 3 ? random_number() % 8 : any(ADDRESS);
        /* Device to device: host addresses must be true. */
        words[2] = words[9] = 2;
        return cuMemcpy2D_v2(words);
    case 49:
        for (index = 0; index < 25; index++) words[index] = random_number() % 3 ? random_number() % 8 : any(ADDRESS);
        words[4] = words[15] = 2;
        return cuMemcpy3D_v2(words);
    case 50: return cuModuleUnload(handle(GRAPH));
    case 51:
        /* Captures would soon stop everything else: end them all. */
        for (index = 0; index < KEPT; index++) {
            cuStreamEndCapture((stream_t)(uintptr_t)kept[STREAM][index], &out);
            if (out != NULL) keep(GRAPH, (uintptr_t)out);
        }
        return OK;
    default: return cuCtxSynchronize();
    }
}

static void no_argument_breaks_the_driver(void)
{
    uint64_t seed;
    unsigned turn;
    handle_t context;
    ptr_t at;
    CHECK(cuInit(0), OK);
    for (seed = 1; seed <= 3; seed++) {
        int lost = 0;
        CHECK(cuDevicePrimaryCtxRetain(&context, 0), OK);
        CHECK(cuCtxSetCurrent(context), OK);
        state = seed;
        for (turn = 0; turn < TURNS; turn++) {
            int answer = call(context);
            CHECK(answer != 999, 1);
            if (answer == ILLEGAL_ADDRESS && ++lost > 200) break;
            if (answer == ILLEGAL_ADDRESS) {
                /* Memory was freed under work that uses it, as on a device. */
                CHECK(cuDevicePrimaryCtxReset_v2(0), OK);
                CHECK(cuDevicePrimaryCtxRetain(&context, 0), OK);
            }
        }
        CHECK(cuDevicePrimaryCtxReset_v2(0), OK);
        CHECK(cuDevicePrimaryCtxRetain(&context, 0), OK);
        CHECK(cuMemAlloc_v2(&at, 512), OK);
        CHECK(cuMemsetD8_v2(at, 5, 512), OK);
        CHECK(byte_at(at + 511), 5);
        CHECK(cuDevicePrimaryCtxReset_v2(0), OK);
    }
}

static const struct test_case cases[] = {
    CASE(no_argument_breaks_the_driver),
};

MAIN(cases)
