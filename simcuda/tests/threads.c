/* Many threads at once, each on streams of its own and on shared ones. */
#include <pthread.h>

#include "driver.h"

#define THREADS 8
#define TURNS 300

static handle_t context;
static stream_t shared;

static void *work(void *data)
{
    unsigned seed = (unsigned)(uintptr_t)data, turn;
    unsigned char back[700];
    stream_t own;
    handle_t event;
    CHECK(cuCtxSetCurrent(context), OK);
    CHECK(cuStreamCreate(&own, seed & 1), OK);
    CHECK(cuEventCreate(&event, 2), OK);
    for (turn = 0; turn < TURNS; turn++) {
        size_t at, bytes = 1 + (seed * 7919 + turn * 104729) % sizeof back;
        unsigned char value = (unsigned char)(seed * 31 + turn);
        ptr_t block, plain;
        CHECK(cuMemAllocAsync(&block, bytes, own), OK);
        CHECK(cuMemAlloc_v2(&plain, bytes), OK);
        CHECK(cuMemsetD8Async(block, value, bytes, own), OK);
        CHECK(cuEventRecord(event, own), OK);
        CHECK(cuStreamWaitEvent(shared, event, 0), OK);
        CHECK(cuMemcpyDtoDAsync_v2(plain, block, bytes, shared), OK);
        CHECK(cuMemFreeAsync(block, shared), OK);
        CHECK(cuStreamSynchronize(turn % 3 ? shared : own), OK);
        CHECK(cuMemcpyDtoHAsync_v2(back, plain, bytes, shared), OK);
        for (at = 0; at < bytes; at++) CHECK(back[at], value);
        CHECK(cuMemFree_v2(plain), OK);
    }
    CHECK(cuStreamDestroy_v2(own), OK);
    CHECK(cuEventDestroy_v2(event), OK);
    return NULL;
}

static void threads_share_streams_pools_and_the_context(void)
{
    pthread_t threads[THREADS];
    handle_t pool;
    uint64_t used = 1;
    uintptr_t at;
    context = start();
    CHECK(cuStreamCreate(&shared, 1), OK);
    for (at = 0; at < THREADS; at++) CHECK(pthread_create(&threads[at], NULL, work, (void *)(at + 1)), 0);
    for (at = 0; at < THREADS; at++) CHECK(pthread_join(threads[at], NULL), 0);
    CHECK(cuCtxSynchronize(), OK);
    CHECK(cuDeviceGetMemPool(&pool, 0), OK);
    CHECK(cuMemPoolGetAttribute(pool, 7, &used), OK);
    CHECK(used, 0);
    CHECK(cuMemPoolGetAttribute(pool, 5, &used), OK);
    CHECK(used, 0);
}

static const struct test_case cases[] = {
    CASE(threads_share_streams_pools_and_the_context),
};

MAIN(cases)
