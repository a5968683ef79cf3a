/* Nanoseconds a call, medians over rounds: cuMemAlloc, cuMemFree, cuMemAllocAsync, cuMemFreeAsync, cuMemGetInfo. */
#include "driver.h"
#include <time.h>

enum { ROUNDS = 101, CALLS = 100 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times)
{
    qsort(times, ROUNDS, sizeof *times, order);
    return times[ROUNDS / 2] / CALLS;
}

int main(void)
{
    static CUdeviceptr p[CALLS];
    static double times[5][ROUNDS];
    size_t available, total;
    int round, i;
    driver_begin();
    for (round = 0; round < ROUNDS; round++) {
        double start = now();
        for (i = 0; i < CALLS; i++) MUST(CALL(cuMemAlloc)(&p[i], 4096));
        times[0][round] = now() - start;
        start = now();
        for (i = 0; i < CALLS; i++) MUST(CALL(cuMemFree)(p[i]));
        times[1][round] = now() - start;
        start = now();
        for (i = 0; i < CALLS; i++) MUST(CALL(cuMemAllocAsync)(&p[i], 4096, 0));
        times[2][round] = now() - start;
        start = now();
        for (i = 0; i < CALLS; i++) MUST(CALL(cuMemFreeAsync)(p[i], 0));
        times[3][round] = now() - start;
        start = now();
        for (i = 0; i < CALLS; i++) MUST(CALL(cuMemGetInfo)(&available, &total));
        times[4][round] = now() - start;
        MUST(CALL(cuCtxSynchronize)());
    }
    for (i = 0; i < 5; i++) printf("%.1f ", median(times[i]));
    printf("\n");
    return 0;
}
