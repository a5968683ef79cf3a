/* Threads share every handle there is: whoever comes first destroys, frees or closes, while the others use what was just
 * theirs. A call on what has gone, or is going, says so; each block is freed by exactly one call; and when the threads have
 * ended, everything that is left can be found, given back and closed.
 *
 * stress_handles [ROUNDS [cuda]]: rounds per thread, 100000 unless told; on the model device, or on CUDA devices 0 and 1. Exits 1 if
 * anything is off.
 */
#include "test.h"

#include <pthread.h>

enum { THREADS = 4, DEVICES = 2, SLOTS = 12, BLOCKS = 64 };
enum { STREAM, EVENT, POOL, KINDS };

/* Handles that all threads may use at any time, of which one thread at a time replaces one, under the lock. */
struct shared {
    void *handles[KINDS][DEVICES][SLOTS];
    void *blocks[BLOCKS];
    void *devices[DEVICES];
};

static struct shared shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t rounds = 100000;
static int cuda;

struct worker {
    pthread_t thread;
    uint64_t random, allocs, frees, gone, faults;
};

static uint64_t draw(struct worker *me, uint64_t below)
{
    return (test_random(&me->random) >> 11) % below;
}

static void *look(void **place)
{
    void *handle;
    pthread_mutex_lock(&lock);
    handle = *place;
    pthread_mutex_unlock(&lock);
    return handle;
}

static void *replace(void **place, void *with)
{
    void *before;
    pthread_mutex_lock(&lock);
    before = *place;
    *place = with;
    pthread_mutex_unlock(&lock);
    return before;
}

/* A handle of a kind, of the named device or now and then of another: what belongs to different devices does not go together. */
static void *any(struct worker *me, int kind, uint64_t device)
{
    return look(&shared.handles[kind][draw(me, 50) == 0 ? draw(me, DEVICES) : device][draw(me, SLOTS)]);
}

static smp_stream any_stream(struct worker *me, uint64_t device)
{
    return draw(me, 12) == 0 ? NULL : (smp_stream)any(me, STREAM, device);
}

/* What a call may answer whose handles may have gone, be of two devices, or be in use elsewhere. */
static int expect(struct worker *me, smp_status status, const char *what)
{
    switch (status) {
    case SMP_ERROR_DESTROYED:
    case SMP_ERROR_FREED:
    case SMP_ERROR_INVALID_HANDLE:
        ++me->gone;
        return 0;
    case SMP_SUCCESS:
        return 1;
    case SMP_NOT_READY:
    case SMP_UNPROVEN:
    case SMP_ERROR_WRONG_DEVICE:
    case SMP_ERROR_OUT_OF_MEMORY:
    case SMP_ERROR_CAPACITY_EXCEEDED:
        return 0;
    default:
        if (++me->faults <= 5) {
            smp_error error = SMP_ERROR_INIT;
            (void)smp_last_error(&error);
            printf("%s gives %s: %s\n", what, smp_status_name((uint32_t)status), error.text);
        }
        return 0;
    }
}

static uint64_t freed_by_callbacks, called_back; /* under the lock */

/* Gives back what others may be freeing just now, and lets it be tried again now and then. */
static int out_of_memory(void *user, const smp_out_of_memory *info)
{
    static uint64_t turn; /* under the lock */
    uint64_t now;
    int freed;
    void *block;
    (void)user;
    pthread_mutex_lock(&lock);
    now = turn++;
    block = shared.blocks[now % BLOCKS];
    ++called_back;
    pthread_mutex_unlock(&lock);
    freed = block != NULL && smp_free((smp_allocation)block) == SMP_SUCCESS;
    if (now % 3 == 0)
        (void)smp_pool_trim_to(info->pool, 0);
    if (now % 5 == 0)
        (void)smp_device_synchronize((smp_device)look(&shared.devices[now % DEVICES]));
    pthread_mutex_lock(&lock);
    freed_by_callbacks += freed != 0;
    pthread_mutex_unlock(&lock);
    return now % 4 == 0;
}

static void *create(struct worker *me, int kind, smp_device device)
{
    static const char *const specs[] = { "preset(mapped)", "preset(sub-slices); sync_on_oom(on)", "preset(cuda)",
                                         "exclusive(dealloc_period=100)", "direct(reclaim_at=32MiB)",
                                         "mapped(range_size=64MiB); release_threshold(0)" };
    smp_stream stream = NULL;
    smp_event event = NULL;
    smp_pool pool = NULL;
    switch (kind) {
    case STREAM:
        (void)expect(me, smp_stream_create(device, (uint32_t)draw(me, cuda ? 2 : 4), &stream), "a stream");
        return stream;
    case EVENT:
        (void)expect(me, smp_event_create(device, 0, &event), "an event");
        return event;
    default:
        (void)expect(me, smp_pool_create_from_spec(device, specs[draw(me, sizeof specs / sizeof *specs)], &pool),
                     "a pool");
        if (pool != NULL && draw(me, 2) == 0)
            (void)expect(me, smp_pool_set_out_of_memory_callback(pool, out_of_memory, NULL), "a callback");
        return pool;
    }
}

static void destroy(struct worker *me, int kind, void *handle)
{
    if (handle == NULL)
        return; /* there was no memory for one */
    switch (kind) {
    case STREAM:
        (void)expect(me, smp_stream_destroy((smp_stream)handle), "destroying a stream");
        break;
    case EVENT:
        (void)expect(me, smp_event_destroy((smp_event)handle), "destroying an event");
        break;
    default:
        (void)expect(me, smp_pool_destroy((smp_pool)handle), "destroying a pool");
    }
}

static smp_device open_device(struct worker *me, uint64_t which)
{
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_device device = NULL;
    desc.kind = cuda ? SMP_DEVICE_CUDA : SMP_DEVICE_MODEL;
    if (cuda)
        desc.ordinal = (uint32_t)which;
    else
        desc.capacity = (uint64_t)128 << 20;
    (void)expect(me, smp_device_open(&desc, &device), "a device");
    return device;
}

/* `last`: nobody will find it any more, so that a stream that has gone must not keep it from being freed. */
static void free_block(struct worker *me, smp_allocation block, uint64_t device, int last)
{
    int freed = draw(me, 4) != 0 && expect(me, smp_free_async(block, any_stream(me, device)), "a free");
    if (!freed && (last || draw(me, 2) == 0))
        freed = expect(me, smp_free(block), "a free in host order");
    me->frees += freed != 0;
}

static void one_call(struct worker *me)
{
    uint64_t d = draw(me, DEVICES);
    smp_device device = (smp_device)look(&shared.devices[d]);
    smp_allocation block = (smp_allocation)look(&shared.blocks[draw(me, BLOCKS)]);
    switch (draw(me, 28)) {
    case 0: { /* another takes a place: of what was there everyone may have the handle still */
        int kind = (int)draw(me, KINDS);
        if (kind != POOL || draw(me, 8) == 0) {
            void *fresh = create(me, kind, device);
            destroy(me, kind, replace(&shared.handles[kind][d][draw(me, SLOTS)], fresh));
        }
        break;
    }
    case 1: /* and without a thread's taking it out first */
        if (draw(me, 8) == 0) {
            int kind = (int)draw(me, 2);
            destroy(me, kind, any(me, kind, d));
        }
        break;
    case 2: {
        smp_stream stream = (smp_stream)any(me, STREAM, d);
        if (stream != NULL && draw(me, 8) == 0)
            (void)expect(me, smp_stream_release(device, stream), "releasing a stream");
        break;
    }
    case 3:
    case 4:
    case 5:
    case 6:
    case 7:
    case 8: {
        smp_allocation fresh = NULL;
        uint64_t size = draw(me, 8) == 0 ? draw(me, 8u << 20) : draw(me, 64u << 10);
        smp_pool pool = (smp_pool)any(me, POOL, d);
        smp_status status = draw(me, 6) == 0 ? smp_alloc(pool, size, &fresh)
                                             : smp_alloc_async(pool, size, any_stream(me, d), &fresh);
        if (status == SMP_ERROR_INVALID_VALUE && size == 0) /* a cuda pool gives none in host order */
            break;
        if (expect(me, status, "an allocation")) {
            ++me->allocs;
            fresh = (smp_allocation)replace(&shared.blocks[draw(me, BLOCKS)], fresh);
            if (fresh != NULL)
                free_block(me, fresh, d, 1); /* often the second free of it */
        }
        break;
    }
    case 9:
    case 10:
    case 11:
        if (block != NULL)
            free_block(me, block, d, 0); /* it stays in its place, for others to free */
        break;
    case 12:
        (void)expect(me, smp_event_record(device, (smp_event)any(me, EVENT, d), any_stream(me, d)), "a record");
        break;
    case 13:
        (void)expect(me, smp_stream_wait_event(device, any_stream(me, d), (smp_event)any(me, EVENT, d)), "a wait");
        break;
    case 14:
        (void)expect(me, smp_stream_synchronize(device, any_stream(me, d)), "a synchronise");
        break;
    case 15:
        (void)expect(me, smp_event_synchronize((smp_event)any(me, EVENT, d)), "a synchronise of an event");
        break;
    case 16:
        (void)expect(me, smp_stream_query(device, any_stream(me, d)), "a query");
        (void)expect(me, smp_event_query((smp_event)any(me, EVENT, d)), "a query of an event");
        break;
    case 17:
        if (draw(me, 8) == 0)
            (void)expect(me, smp_device_synchronize(device), "a synchronise of the device");
        break;
    case 18:
        (void)expect(me, smp_pool_trim_to((smp_pool)any(me, POOL, d), draw(me, 64u << 20)), "a trim");
        break;
    case 19: {
        smp_pool_stats stats = SMP_POOL_STATS_INIT;
        smp_pool pool = (smp_pool)any(me, POOL, d);
        (void)expect(me, smp_pool_get_stats(pool, &stats), "the figures");
        (void)expect(me, smp_pool_get_entry_stats(pool, 0, &stats), "an entry's figures");
        break;
    }
    case 20:
        if (block != NULL)
            (void)expect(me, smp_allocation_add_user(block, any_stream(me, d)), "another user");
        break;
    case 21: {
        smp_allocation_info info = SMP_ALLOCATION_INFO_INIT;
        if (block != NULL && expect(me, smp_allocation_get_info(block, &info), "what is known of a block")) {
            smp_allocation found = NULL;
            uint64_t offset = 0;
            smp_status status = smp_allocation_find(info.device, info.pointer, &found, &offset);
            if (status != SMP_ERROR_INVALID_VALUE) /* freed meanwhile */
                (void)expect(me, status, "a block by its pointer");
        }
        break;
    }
    case 22:
        if (block != NULL)
            (void)expect(me, smp_is_ready_on(block, any_stream(me, d)), "whether a block is ready");
        break;
    case 23: {
        smp_stream_info info = SMP_STREAM_INFO_INIT;
        (void)expect(me, smp_stream_get_info(device, any_stream(me, d), &info), "what is known of a stream");
        break;
    }
    case 24:
        if (cuda)
            break;
        (void)expect(me, smp_model_stream_submit(device, any_stream(me, d), 1 + draw(me, 3), NULL), "work");
        (void)expect(me, smp_model_stream_advance(device, any_stream(me, d), 1 + draw(me, 3), NULL), "progress");
        break;
    case 25: /* what is left on a device whose handle is closed stays usable, beside what comes on the next one */
        if (draw(me, 500) == 0) {
            smp_device fresh = open_device(me, d);
            if (fresh != NULL)
                (void)expect(me, smp_device_close((smp_device)replace(&shared.devices[d], fresh)), "closing a device");
        }
        break;
    case 26:
        if (draw(me, 500) == 0) { /* only a device at rest can be recorded, by one */
            smp_status status = draw(me, 2) == 0 ? smp_trace_start(device, "/dev/null", 0) : smp_trace_stop(device);
            if (status != SMP_ERROR_NOT_PERMITTED)
                (void)expect(me, status, "a trace");
        }
        break;
    default:
        if (block != NULL)
            (void)smp_allocation_ptr(block);
    }
}

static void *work(void *argument)
{
    struct worker *me = (struct worker *)argument;
    uint64_t i;
    for (i = 0; i < rounds; ++i)
        one_call(me);
    return NULL;
}

static void whoever_comes_first_destroys_and_each_block_is_freed_once(void)
{
    struct worker workers[THREADS];
    uint64_t allocs = 0, frees = 0, gone = 0;
    int i, d, k;
    memset(workers, 0, sizeof workers);
    for (i = 0; i < THREADS; ++i)
        workers[i].random = UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(i + 1);
    for (d = 0; d < DEVICES; ++d) {
        shared.devices[d] = open_device(&workers[0], (uint64_t)d);
        CHECK(shared.devices[d] != NULL);
        for (k = 0; k < KINDS; ++k)
            for (i = 0; i < SLOTS; ++i)
                shared.handles[k][d][i] = create(&workers[0], k, (smp_device)shared.devices[d]);
    }
    for (i = 0; i < THREADS; ++i)
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    for (i = 0; i < THREADS; ++i)
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
    for (i = 0; i < BLOCKS; ++i)
        workers[0].frees += shared.blocks[i] != NULL && smp_free((smp_allocation)shared.blocks[i]) == SMP_SUCCESS;
    for (d = 0; d < DEVICES; ++d) {
        smp_device device = (smp_device)shared.devices[d];
        smp_device_info info = SMP_DEVICE_INFO_INIT;
        (void)smp_trace_stop(device);
        for (k = 0; k < KINDS; ++k)
            for (i = 0; i < SLOTS; ++i)
                destroy(&workers[0], k, shared.handles[k][d][i]);
        CHECK(smp_device_synchronize(device) == SMP_SUCCESS);
        CHECK(smp_device_get_info(device, &info) == SMP_SUCCESS);
        CHECK_EQ(info.pools, 0);
        CHECK_EQ(info.reserved, 0);
        CHECK(smp_device_close(device) == SMP_SUCCESS);
    }
    for (i = 0; i < THREADS; ++i) {
        CHECK_EQ(workers[i].faults, 0);
        allocs += workers[i].allocs;
        frees += workers[i].frees;
        gone += workers[i].gone;
    }
    CHECK_EQ(frees + freed_by_callbacks, allocs);
    CHECK(called_back > 0);
    CHECK(gone > 0);
    printf("%" PRIu64 " blocks, %" PRIu64 " calls on what had gone, %" PRIu64 " callbacks\n", allocs, gone, called_back);
}

int main(int argc, char **argv)
{
    const char *test_word = NULL;
    if (argc > 1)
        rounds = strtoull(argv[1], NULL, 10);
    cuda = argc > 2 && strcmp(argv[2], "cuda") == 0;
    RUN(whoever_comes_first_destroys_and_each_block_is_freed_once)
    return test_end();
}
