/* An ordinary CUDA program: it allocates in every way, writes and reads back, and frees. It knows nothing of libsmp.
   The last line it prints is what it did, which the report must agree with. */
#include "driver.h"
#include <pthread.h>

static struct {
    unsigned long allocs, frees, current, peak;
} plain, ordered;

static CUdeviceptr take(size_t bytes)
{
    CUdeviceptr p = 0;
    MUST(CALL(cuMemAlloc)(&p, bytes));
    CHECK(p % 512 == 0);
    plain.allocs++;
    plain.current += bytes;
    if (plain.current > plain.peak) plain.peak = plain.current;
    return p;
}

static void give(CUdeviceptr p, size_t bytes)
{
    MUST(CALL(cuMemFree)(p));
    plain.frees++;
    plain.current -= bytes;
}

static CUdeviceptr take_async(size_t bytes, CUstream stream)
{
    CUdeviceptr p = 0;
    MUST(CALL(cuMemAllocAsync)(&p, bytes, stream));
    ordered.allocs++;
    ordered.current += bytes;
    if (ordered.current > ordered.peak) ordered.peak = ordered.current;
    return p;
}

static void give_async(CUdeviceptr p, size_t bytes, CUstream stream)
{
    MUST(CALL(cuMemFreeAsync)(p, stream));
    ordered.frees++;
    ordered.current -= bytes;
}

static void fill(CUdeviceptr p, size_t bytes, int seed)
{
    unsigned char *data = malloc(bytes);
    size_t i;
    for (i = 0; i < bytes; i++) data[i] = (unsigned char)(i * 7 + (size_t)seed * 31 + (i >> 8));
    MUST(CALL(cuMemcpyHtoD)(p, data, bytes));
    free(data);
}

static void expect(CUdeviceptr p, size_t bytes, int seed)
{
    unsigned char *data = malloc(bytes);
    size_t i;
    MUST(CALL(cuMemcpyDtoH)(data, p, bytes));
    for (i = 0; i < bytes; i++) CHECK(data[i] == (unsigned char)(i * 7 + (size_t)seed * 31 + (i >> 8)));
    free(data);
}

static void plain_memory(void)
{
    static const size_t sizes[] = {1, 511, 512, 513, 4096, 100000, 1 << 20, (1 << 20) + 1, 3 << 20, 9 << 20};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    CUdeviceptr p[COUNT], base;
    size_t size, i;
    for (i = 0; i < COUNT; i++) fill(p[i] = take(sizes[i]), sizes[i], (int)i);
    for (i = 0; i < COUNT; i++) {
        /* The range of a block is the block's own, from any address in it. */
        MUST(CALL(cuMemGetAddressRange)(&base, &size, p[i] + sizes[i] / 2));
        CHECK(base == p[i] && size >= sizes[i]);
    }
    for (i = 0; i < COUNT; i += 2) give(p[i], sizes[i]);
    for (i = 0; i < COUNT; i += 2) fill(p[i] = take(sizes[i]), sizes[i], 100 + (int)i);
    for (i = 0; i < COUNT; i++) expect(p[i], sizes[i], (int)(i % 2 ? i : 100 + i));
    for (i = 0; i < COUNT; i++) give(p[i], sizes[i]);
}

static void bad_calls(void)
{
    CUdeviceptr p = 0, kept;
    CHECK(CALL(cuMemAlloc)(&p, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CALL(cuMemAlloc)(0, 16) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CALL(cuMemFree)(0) == CUDA_SUCCESS);
    CHECK(CALL(cuMemFree)((CUdeviceptr)0x1234) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CALL(cuMemAllocAsync)(0, 16, 0) == CUDA_ERROR_INVALID_VALUE);
    /* Freed twice, and an address inside a block: refused, and nothing is lost by it. */
    p = take(512);
    fill(kept = take(4096), 4096, 77);
    give(p, 512);
    CHECK(CALL(cuMemFree)(p) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CALL(cuMemFree)(kept + 512) == CUDA_ERROR_INVALID_VALUE);
    expect(kept, 4096, 77);
    give(kept, 4096);
}

static void ordered_memory(void)
{
    CUstream created, streams[4];
    unsigned char data[2000];
    size_t i, j;
    MUST(CALL(cuStreamCreate)(&created, CU_STREAM_NON_BLOCKING));
    streams[0] = 0;
    streams[1] = CU_STREAM_LEGACY;
    streams[2] = CU_STREAM_PER_THREAD;
    streams[3] = created;
    for (i = 0; i < 4; i++) {
        CUdeviceptr p = take_async(sizeof data, streams[i]);
        MUST(CALL(cuMemsetD8Async)(p, (unsigned char)(40 + i), sizeof data, streams[i]));
        MUST(CALL(cuMemcpyDtoHAsync)(data, p, sizeof data, streams[i]));
        MUST(CALL(cuStreamSynchronize)(streams[i]));
        for (j = 0; j < sizeof data; j++) CHECK(data[j] == 40 + i);
        give_async(p, sizeof data, streams[i]);
        MUST(CALL(cuStreamSynchronize)(streams[i]));
    }
    MUST(CALL(cuStreamDestroy)(created));
}

static void each_free_takes_the_others_memory(void)
{
    CUdeviceptr p = take_async(7000, 0), q = take(9000);
    MUST(CALL(cuMemFree)(p));
    ordered.frees++;
    ordered.current -= 7000;
    MUST(CALL(cuMemFreeAsync)(q, 0));
    plain.frees++;
    plain.current -= 9000;
    MUST(CALL(cuCtxSynchronize)());
}

static CUcontext context;

static void *worker(void *number)
{
    int seed = *(int *)number, round;
    MUST(CALL(cuCtxSetCurrent)(context));
    for (round = 0; round < 50; round++) {
        CUdeviceptr p;
        size_t bytes = 256u + (unsigned)((seed * 97 + round * 13) % 5000);
        MUST(CALL(cuMemAlloc)(&p, bytes));
        fill(p, bytes, seed);
        expect(p, bytes, seed);
        MUST(CALL(cuMemFree)(p));
    }
    return 0;
}

static void threads(void)
{
    pthread_t thread[4];
    int number[4], i;
    for (i = 0; i < 4; i++) {
        number[i] = i + 1;
        CHECK(!pthread_create(&thread[i], 0, worker, &number[i]));
    }
    for (i = 0; i < 4; i++) pthread_join(thread[i], 0);
    plain.allocs += 200;
    plain.frees += 200;
}

int main(void)
{
    size_t available, total;
    CUdeviceptr kept;
    context = driver_begin();
    MUST(CALL(cuMemGetInfo)(&available, &total));
    CHECK(available <= total && total > 0);
    plain_memory();
    bad_calls();
    ordered_memory();
    each_free_takes_the_others_memory();
    threads();
    kept = take(12345); /* left for the report to find */
    CHECK(kept);
    printf("{\"device\": {\"allocs\": %lu, \"frees\": %lu, \"current\": %lu, \"peak\": %lu},"
           " \"async\": {\"allocs\": %lu, \"frees\": %lu, \"current\": %lu, \"peak\": %lu}}\n",
           plain.allocs, plain.frees, plain.current, plain.peak, ordered.allocs, ordered.frees, ordered.current,
           ordered.peak);
    return 0;
}
