/* Memory pools. Numbers are those of the conformance statements on CUDA's pools. Runs with two devices. */
#include "driver.h"

#define MIB ((uint64_t)1 << 20)

enum { FOLLOW_EVENTS = 1, OPPORTUNISTIC, INTERNAL, THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH };

struct props {
    unsigned type, handles, location, id;
    void *win32;
    uint64_t max;
    unsigned char usage_and_reserved[56];
};

static handle_t pool_of(uint64_t max)
{
    struct props props;
    handle_t pool;
    memset(&props, 0, sizeof props);
    props.type = 1;
    props.location = 1;
    props.max = max;
    CHECK(cuMemPoolCreate(&pool, &props), OK);
    return pool;
}

static uint64_t figure(handle_t pool, int which)
{
    uint64_t value = 0;
    CHECK(cuMemPoolGetAttribute(pool, which, &value), OK);
    return value;
}

static int policy(handle_t pool, int which)
{
    int value = -1;
    CHECK(cuMemPoolGetAttribute(pool, which, &value), OK);
    return value;
}

static void set(handle_t pool, int which, uint64_t value)
{
    CHECK(cuMemPoolSetAttribute(pool, which, &value), OK);
}

static stream_t stream_of(void)
{
    stream_t stream;
    CHECK(cuStreamCreate(&stream, 1), OK);
    return stream;
}

static ptr_t take(handle_t pool, size_t bytes, stream_t stream)
{
    ptr_t at;
    CHECK(cuMemAllocFromPoolAsync(&at, bytes, pool, stream), OK);
    return at;
}

static void s1_and_s2_a_new_pool_has_all_policies_threshold_0_and_no_memory(void)
{
    handle_t pool;
    int which;
    start();
    pool = pool_of(0);
    for (which = FOLLOW_EVENTS; which <= INTERNAL; which++) CHECK(policy(pool, which), 1);
    for (which = THRESHOLD; which <= USED_HIGH; which++) CHECK(figure(pool, which), 0);
}

static void s3_s4_and_s6_what_may_be_set(void)
{
    handle_t pool;
    uint64_t zero = 0, one = 1;
    int which;
    start();
    pool = pool_of(0);
    CHECK(cuMemPoolSetAttribute(pool, RESERVED, &zero), INVALID_VALUE);
    CHECK(cuMemPoolSetAttribute(pool, USED, &zero), INVALID_VALUE);
    for (which = 9; which <= 15; which++) CHECK(cuMemPoolSetAttribute(pool, which, &zero), INVALID_VALUE);
    CHECK(cuMemPoolSetAttribute(pool, RESERVED_HIGH, &one), INVALID_VALUE);
    CHECK(cuMemPoolSetAttribute(pool, USED_HIGH, &one), INVALID_VALUE);
    CHECK(cuMemPoolSetAttribute(pool, USED_HIGH, &zero), OK);
    CHECK(cuMemPoolSetAttribute(pool, THRESHOLD, NULL), INVALID_VALUE);
    CHECK(cuMemPoolGetAttribute(pool, THRESHOLD, NULL), INVALID_VALUE);
    CHECK(cuMemPoolGetAttribute(pool, 99, &zero), INVALID_VALUE);
    CHECK(cuMemPoolGetAttribute(NULL, THRESHOLD, &zero), INVALID_VALUE);
}

static void s5_s7_and_s8_figures(void)
{
    handle_t pool;
    stream_t stream;
    ptr_t a, b;
    start();
    pool = pool_of(0);
    stream = stream_of();
    a = take(pool, 12, stream);
    CHECK(a % 512, 0);
    CHECK(figure(pool, USED), 512);
    CHECK(figure(pool, RESERVED), 32 * MIB);
    b = take(pool, 65536, stream);
    CHECK(figure(pool, USED), 512 + 65536);
    CHECK(figure(pool, USED_HIGH), 512 + 65536);
    CHECK(cuMemFreeAsync(b, stream), OK);
    CHECK(figure(pool, USED), 512);
    CHECK(figure(pool, USED_HIGH), 512 + 65536);
    set(pool, USED_HIGH, 0);
    CHECK(figure(pool, USED_HIGH), 512);
}

static void s9_and_s38_plain_memory_is_none_of_the_pools_and_may_be_freed_in_stream_order(void)
{
    handle_t pool;
    stream_t stream;
    ptr_t at;
    start();
    stream = stream_of();
    CHECK(cuDeviceGetMemPool(&pool, 0), OK);
    CHECK(cuMemAlloc_v2(&at, MIB), OK);
    CHECK(figure(pool, RESERVED), 0);
    CHECK(cuMemFreeAsync(at, stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(cuMemFree_v2(at), INVALID_VALUE);
}

static void s11_to_s15_what_goes_back_and_when(void)
{
    handle_t pool;
    stream_t stream;
    ptr_t a, b;
    start();
    pool = pool_of(0);
    stream = stream_of();
    a = take(pool, MIB, stream);
    CHECK(cuMemFreeAsync(a, stream), OK);
    CHECK(figure(pool, RESERVED), 32 * MIB);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(figure(pool, RESERVED), 0);
    set(pool, THRESHOLD, UINT64_MAX);
    a = take(pool, MIB, stream);
    CHECK(cuMemFreeAsync(a, stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(figure(pool, RESERVED), 32 * MIB);
    CHECK(cuMemPoolTrimTo(pool, 32 * MIB), OK);
    CHECK(figure(pool, RESERVED), 32 * MIB);
    /* A live block and an unobserved free both hold their chunk. */
    a = take(pool, 4096, stream);
    CHECK(cuMemPoolTrimTo(pool, 0), OK);
    CHECK(figure(pool, RESERVED), 32 * MIB);
    b = take(pool, 32 * MIB, stream);
    CHECK(cuMemFreeAsync(b, stream), OK);
    CHECK(cuMemPoolTrimTo(pool, 0), OK);
    CHECK(figure(pool, RESERVED), 64 * MIB);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(cuMemPoolTrimTo(pool, 0), OK);
    CHECK(figure(pool, RESERVED), 32 * MIB);
    CHECK(cuMemFreeAsync(a, stream), OK);
}

static void s16_to_s24_reuse_follows_the_policies(void)
{
    /* Policies on, an event links the streams, the free has run: is the block reused on another stream? */
    static const int rows[6][4] = {{FOLLOW_EVENTS, 1, 0, 1}, {0, 1, 0, 0},           {FOLLOW_EVENTS, 0, 0, 0},
                                   {OPPORTUNISTIC, 0, 1, 1}, {OPPORTUNISTIC, 0, 0, 0}, {0, 0, 1, 0}};
    int row, which;
    start();
    CHECK(simcuda_set_mode(SIMCUDA_LAZY, 0), OK);
    for (row = 0; row < 6; row++) {
        handle_t pool = pool_of(0), event;
        stream_t s1 = stream_of(), s2 = stream_of();
        ptr_t a;
        for (which = FOLLOW_EVENTS; which <= INTERNAL; which++) set(pool, which, which == rows[row][0]);
        CHECK(cuEventCreate(&event, 2), OK);
        a = take(pool, 4096, s1);
        CHECK(cuMemFreeAsync(a, s1), OK);
        if (rows[row][1]) {
            CHECK(cuEventRecord(event, s1), OK);
            CHECK(cuStreamWaitEvent(s2, event, 0), OK);
        }
        if (rows[row][2]) CHECK(simcuda_run(s1, UINT64_MAX, NULL), OK);
        CHECK(take(pool, 4096, s2) == a, rows[row][3]);
        /* The same stream always, here with the rest of the chunk. */
        CHECK(take(pool, 4096, s1) == a, !rows[row][3]);
    }
    CHECK(simcuda_reuses(1), 1);
    CHECK(simcuda_reuses(2), 1);
}

static void s25_and_s26_a_full_pool_makes_the_stream_wait_or_fails(void)
{
    stream_t s1, s2;
    handle_t pool;
    ptr_t a, b;
    int on;
    start();
    for (on = 0; on < 2; on++) {
        pool = pool_of(32 * MIB);
        s1 = stream_of();
        s2 = stream_of();
        set(pool, FOLLOW_EVENTS, 0);
        set(pool, OPPORTUNISTIC, 0);
        set(pool, INTERNAL, on);
        a = take(pool, 32 * MIB, s1);
        CHECK(simcuda_gate_close(s1), OK);
        CHECK(cuMemFreeAsync(a, s1), OK);
        b = 77;
        CHECK(cuMemAllocFromPoolAsync(&b, 32 * MIB, pool, s2), on ? OK : OUT_OF_MEMORY);
        /* S30: an allocation that fails gives null. */
        CHECK(b == (on ? a : 0), 1);
        if (on) {
            CHECK(cuMemsetD8Async(b, 1, 512, s2), OK);
            CHECK(cuStreamQuery(s2), NOT_READY);
            CHECK(simcuda_gate_open(s1), OK);
            CHECK(cuStreamSynchronize(s2), OK);
            CHECK(byte_at(b), 1);
            CHECK(simcuda_reuses(4), 1);
        }
        CHECK(simcuda_gate_open(s1), OK);
    }
}

static void a_freed_block_is_spoilt_when_the_free_runs(void)
{
    stream_t stream;
    handle_t pool;
    ptr_t a;
    start();
    pool = pool_of(0);
    stream = stream_of();
    set(pool, THRESHOLD, UINT64_MAX);
    a = take(pool, 4096, stream);
    CHECK(cuMemsetD8Async(a, 7, 4096, stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(simcuda_gate_close(stream), OK);
    CHECK(cuMemFreeAsync(a, stream), OK);
    CHECK(byte_at(a + 100), 7);
    CHECK(simcuda_gate_open(stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(byte_at(a), 0xDB);
    CHECK(byte_at(a + 4095), 0xDB);
}

static void s29_and_s31_limits_and_bad_arguments(void)
{
    struct props props;
    handle_t pool;
    stream_t stream;
    uint64_t max;
    ptr_t at;
    start();
    stream = stream_of();
    pool = pool_of(MIB);
    CHECK(cuMemPoolGetAttribute(pool, 13, &max), OK);
    CHECK(max >= MIB, 1);
    CHECK(cuMemAllocFromPoolAsync(&at, 33 * MIB, pool, stream), OUT_OF_MEMORY);
    CHECK(cuMemAllocAsync(&at, SIZE_MAX, stream), OUT_OF_MEMORY);
    CHECK(cuMemAllocAsync(NULL, 1, stream), INVALID_VALUE);
    CHECK(cuMemAllocFromPoolAsync(&at, 1, NULL, stream), INVALID_VALUE);
    CHECK(cuMemAllocAsync(&at, 1, (stream_t)(uintptr_t)0x1234), INVALID_HANDLE);
    CHECK(cuMemFreeAsync(0x1234, stream), INVALID_VALUE);
    at = take(pool, 1024, stream);
    CHECK(cuMemFreeAsync(at + 512, stream), INVALID_VALUE);
    CHECK(cuMemFreeAsync(at, stream), OK);
    CHECK(cuMemFreeAsync(at, stream), INVALID_VALUE);
    CHECK(cuMemPoolCreate(&pool, NULL), INVALID_VALUE);
    memset(&props, 0, sizeof props);
    CHECK(cuMemPoolCreate(&pool, &props), INVALID_VALUE);
    props.type = 1;
    props.location = 1;
    props.id = 2;
    CHECK(cuMemPoolCreate(&pool, &props), INVALID_VALUE);
    props.id = 0;
    props.usage_and_reserved[55] = 1;
    CHECK(cuMemPoolCreate(&pool, &props), INVALID_VALUE);
    props.usage_and_reserved[55] = 0;
    props.location = 2;
    CHECK(cuMemPoolCreate(&pool, &props), NOT_SUPPORTED);
    props.location = 0;
    CHECK(cuMemPoolCreate(&pool, &props), INVALID_VALUE);
    props.type = 2;
    CHECK(cuMemPoolCreate(&pool, &props), NOT_SUPPORTED);
}

static void s32_and_s33_destroying_pools(void)
{
    handle_t first, own, now;
    stream_t stream;
    size_t before, after, total;
    ptr_t at;
    start();
    stream = stream_of();
    CHECK(cuDeviceGetDefaultMemPool(&first, 0), OK);
    CHECK(cuMemPoolDestroy(first), INVALID_VALUE);
    own = pool_of(0);
    CHECK(cuMemGetInfo_v2(&before, &total), OK);
    CHECK(cuDeviceSetMemPool(0, own), OK);
    CHECK(cuMemAllocAsync(&at, 512, stream), OK);
    CHECK(figure(own, USED), 512);
    CHECK(cuMemPoolDestroy(own), OK);
    CHECK(cuDeviceGetMemPool(&now, 0), OK);
    CHECK(now == first, 1);
    CHECK(cuMemPoolDestroy(own), INVALID_VALUE);
    CHECK(cuMemsetD8Async(at, 5, 512, stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(byte_at(at + 511), 5);
    CHECK(cuMemFreeAsync(at, stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(cuMemGetInfo_v2(&after, &total), OK);
    CHECK(before == after, 1);
}

static void s36_and_s37_what_a_pool_address_is_and_its_plain_free(void)
{
    handle_t pool, context = (handle_t)1, of;
    stream_t stream, busy;
    uint64_t base;
    size_t bytes;
    ptr_t at;
    start();
    stream = stream_of();
    busy = stream_of();
    CHECK(cuDeviceGetMemPool(&pool, 0), OK);
    CHECK(cuMemAllocAsync(&at, 1000, stream), OK);
    CHECK(cuPointerGetAttribute(&context, 1, at), OK);
    CHECK(context == NULL, 1);
    CHECK(cuPointerGetAttribute(&of, 17, at), OK);
    CHECK(of == pool, 1);
    CHECK(cuMemGetAddressRange_v2(&base, &bytes, at + 700), OK);
    CHECK(base == at, 1);
    CHECK(bytes, 1024);
    CHECK(simcuda_gate_close(busy), OK);
    CHECK(simcuda_submit(busy, 1), OK);
    CHECK(cuMemFree_v2(at), OK);
    CHECK(cuStreamQuery(busy), NOT_READY);
    CHECK(cuPointerGetAttribute(&of, 17, at), INVALID_VALUE);
    CHECK(simcuda_gate_open(busy), OK);
}

static void access_is_kept_for_each_device_and_the_owners_stays(void)
{
    unsigned map[6] = {1, 1, 3, 1, 0, 3}, revoke[3] = {1, 0, 0};
    int place_0[2] = {1, 0}, place_1[2] = {1, 1}, flags;
    handle_t pool;
    start();
    pool = pool_of(0);
    CHECK(cuMemPoolGetAccess(&flags, pool, place_0), OK);
    CHECK(flags, 3);
    CHECK(cuMemPoolGetAccess(&flags, pool, place_1), OK);
    CHECK(flags, 0);
    CHECK(cuMemPoolSetAccess(pool, map, 2), OK);
    CHECK(cuMemPoolGetAccess(&flags, pool, place_1), OK);
    CHECK(flags, 3);
    CHECK(cuMemPoolSetAccess(pool, revoke, 1), INVALID_VALUE);
    map[1] = 7;
    CHECK(cuMemPoolSetAccess(pool, map, 1), INVALID_VALUE);
}

static const struct test_case cases[] = {
    CASE(s1_and_s2_a_new_pool_has_all_policies_threshold_0_and_no_memory),
    CASE(s3_s4_and_s6_what_may_be_set),
    CASE(s5_s7_and_s8_figures),
    CASE(s9_and_s38_plain_memory_is_none_of_the_pools_and_may_be_freed_in_stream_order),
    CASE(s11_to_s15_what_goes_back_and_when),
    CASE(s16_to_s24_reuse_follows_the_policies),
    CASE(s25_and_s26_a_full_pool_makes_the_stream_wait_or_fails),
    CASE(a_freed_block_is_spoilt_when_the_free_runs),
    CASE(s29_and_s31_limits_and_bad_arguments),
    CASE(s32_and_s33_destroying_pools),
    CASE(s36_and_s37_what_a_pool_address_is_and_its_plain_free),
    CASE(access_is_kept_for_each_device_and_the_owners_stays),
};

MAIN(cases)
