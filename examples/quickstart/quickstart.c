/* The first program with libsmp: two streams share one pool, and an event passes a block from one to the other.
 *
 * It runs anywhere: the device here is the model device with host backing, so blocks are ordinary memory. With a CUDA
 * device the calls are the same, the streams are your cudaStream_t, and kernels use the pointers.
 */
#include <smp.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every call returns a status; smp_last_error tells in words what was wrong. */
static void check(smp_status status, const char *what)
{
    smp_error error = SMP_ERROR_INIT;
    if (status == SMP_SUCCESS)
        return;
    smp_last_error(&error);
    fprintf(stderr, "%s: %s: %s\n", what, smp_status_name((uint32_t)status), error.text);
    exit(1);
}
#define CHECK(call) check((call), #call)

int main(void)
{
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_pool_stats stats = SMP_POOL_STATS_INIT;
    smp_device device;
    smp_pool pool;
    smp_stream copy, compute;
    smp_event copied;
    smp_allocation input, result;
    const unsigned char *bytes;
    size_t i, size = 3 << 20;

    desc.kind = SMP_DEVICE_MODEL;
    desc.flags = SMP_DEVICE_HOST_BACKING;
    CHECK(smp_device_open(&desc, &device));
    CHECK(smp_pool_create(device, NULL, &pool)); /* NULL: the default preset */
    CHECK(smp_stream_create(device, 0, &copy));
    CHECK(smp_stream_create(device, 0, &compute));
    CHECK(smp_event_create(device, 0, &copied));

    /* On `copy`: allocate and fill. The event marks the point after which others may use the block. */
    CHECK(smp_alloc_async(pool, size, copy, &input));
    memset(smp_allocation_ptr(input), 42, size); /* stands for a copy to the device */
    CHECK(smp_event_record(device, copied, copy));

    /* On `compute`: wait for that point, use the block, free it. No host synchronise anywhere. */
    CHECK(smp_stream_wait_event(device, compute, copied));
    CHECK(smp_is_ready_on(input, compute)); /* SMP_SUCCESS: proved to be in order */
    bytes = (const unsigned char *)smp_allocation_ptr(input);
    for (i = 0; i < size; ++i)
        if (bytes[i] != 42) {
            fprintf(stderr, "byte %zu is %d, not 42\n", i, bytes[i]);
            return 1;
        }
    CHECK(smp_free_async(input, compute));

    /* The next block on `compute` may reuse the memory at once: it comes after the free in the same stream. */
    CHECK(smp_alloc_async(pool, size, compute, &result));
    CHECK(smp_free_async(result, compute));

    CHECK(smp_pool_get_stats(pool, &stats));
    printf("%" PRIu64 " allocations from %" PRIu64 " page(s), %" PRIu64 " of them reused memory; peak used %" PRIu64
           " of %" PRIu64 " bytes reserved\n",
           stats.allocs, stats.pages, stats.allocs - stats.reuse_fresh, stats.used_high, stats.reserved_high);

    CHECK(smp_pool_destroy(pool));
    CHECK(smp_event_destroy(copied));
    CHECK(smp_stream_destroy(copy));
    CHECK(smp_stream_destroy(compute));
    CHECK(smp_device_close(device));
    return 0;
}
