/* A process whose own memory is short (RLIMIT_AS). What grows with blocks, streams and events is refused as out of memory, and all goes on
 * once some are given back. What still ends the process is in the README.
 *
 * Each test is a child process with a limit a little above what it has.
 */
#include "support.h"
#include "child.h"

#include <sys/resource.h>

enum { MOST = 1000000, EXTRA_KIB = 6000 };

static smp_allocation blocks[MOST];
static smp_stream streams[MOST];
static smp_event events[MOST];

/* From now on the process gets no more than so much memory beyond what it has. 0: done. */
static int limit(uint64_t kib)
{
    struct rlimit most;
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    int found = file != NULL && fscanf(file, "%ld", &pages) == 1;
    if (file != NULL)
        fclose(file);
    most.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (rlim_t)(kib << 10);
    most.rlim_max = RLIM_INFINITY;
    return !found || setrlimit(RLIMIT_AS, &most) != 0;
}

static int blocks_run_out(void)
{
    smp_device device = eager_device();
    smp_pool pool = pool_of(device, "preset(mapped)");
    smp_stream stream = new_stream(device);
    smp_status status = SMP_SUCCESS;
    size_t count = 0, i;
    int round, bad = 0;
    memset(blocks, 1, sizeof blocks); /* there before the limit is */
    must(smp_alloc_async(pool, 512, stream, &blocks[0]));
    must(smp_free_async(blocks[0], stream));
    if (limit(EXTRA_KIB) != 0)
        return 77;
    for (round = 0; round < 3; ++round) {
        for (count = 0; count < MOST; ++count) {
            status = smp_alloc_async(pool, 512, stream, &blocks[count]);
            if (status != SMP_SUCCESS)
                break;
        }
        bad |= status != SMP_ERROR_OUT_OF_MEMORY || count < 1000;
        for (i = 0; i < count; ++i)
            bad |= smp_free_async(blocks[i], stream) != SMP_SUCCESS;
        bad |= pool_stats(pool).live != 0;
    }
    return bad;
}

enum kind { STREAMS, EVENTS };

static smp_status create(enum kind kind, smp_device device, size_t i)
{
    return kind == STREAMS ? smp_stream_create(device, 0, &streams[i]) : smp_event_create(device, 0, &events[i]);
}

static int run_out(enum kind kind)
{
    smp_device device = eager_device();
    smp_status status = SMP_SUCCESS;
    size_t count = 0, i;
    int bad = 0;
    memset(streams, 1, sizeof streams);
    memset(events, 1, sizeof events);
    if (limit(EXTRA_KIB) != 0)
        return 77;
    for (count = 0; count < MOST && status == SMP_SUCCESS; ++count)
        status = create(kind, device, count);
    bad |= status != SMP_ERROR_OUT_OF_MEMORY || count < 1000;
    for (i = 0; i + 1 < count; ++i)
        bad |= (kind == STREAMS ? smp_stream_destroy(streams[i]) : smp_event_destroy(events[i])) != SMP_SUCCESS;
    bad |= smp_device_synchronize(device) != SMP_SUCCESS;
    bad |= create(kind, device, 0) != SMP_SUCCESS;
    return bad;
}

static int streams_run_out(void)
{
    return run_out(STREAMS);
}

static int events_run_out(void)
{
    return run_out(EVENTS);
}

static void a_pool_goes_on_after_the_process_had_no_memory_for_more_blocks(void)
{
    CHECK_EQ(run(blocks_run_out), 0);
}

static void a_process_that_has_no_memory_for_more_streams_or_events_is_told_so(void)
{
    CHECK_EQ(run(streams_run_out), 0);
    CHECK_EQ(run(events_run_out), 0);
}

TEST_MAIN(MODEL_ONLY(a_pool_goes_on_after_the_process_had_no_memory_for_more_blocks, "what a driver does then is its own")
          MODEL_ONLY(a_process_that_has_no_memory_for_more_streams_or_events_is_told_so,
                     "what a driver does then is its own"))
