/* Threads: 8 threads with 8 streams each do everything at once; at the end every figure is exact.
 *
 * Each thread allocates and frees on its own streams, hands blocks to other threads that free them on theirs (ordered by
 * an event), waits, records, synchronises, trims, asks, and creates and destroys streams, events and pools. One pool is
 * shared by all; short-lived pools come and go beside it. Blocks are real memory: each is stamped with its own number
 * when it comes and the stamp is checked before it goes, so a block given to two owners shows.
 *
 * stress_threads [ROUNDS [THREADS]]: rounds per thread, 20000 unless told. Exits 1 if anything is off. Meant for
 * ThreadSanitizer and AddressSanitizer as well.
 */
#include "test.h"

#include <pthread.h>

enum { STREAMS = 8, HELD = 64, MAILBOX = 256, MOST_THREADS = 64 };

/* A block on its way to a thread that will free it, with the event that says when it may. */
struct parcel {
    smp_allocation allocation;
    smp_event ready;
    uint64_t size;
    uint64_t stamp;
};

struct mailbox {
    pthread_mutex_t lock;
    struct parcel parcels[MAILBOX];
    int count;
};

struct worker {
    pthread_t thread;
    int number;
    uint64_t random;
    uint64_t allocs, frees, failures; /* of the shared pool, as this thread saw them */
    uint64_t faults;
};

static smp_device device;
static smp_pool shared;
static struct mailbox mailbox;
static int threads = 8;
static uint64_t rounds = 20000; /* per thread */

/* Of a thread's streams some are non-blocking and some lazy: there frees stay pending until somebody synchronises. */
static uint32_t flags_of(int which)
{
    return (which % 4 == 3 ? SMP_STREAM_NON_BLOCKING : 0) | (which % 4 == 1 || which == 7 ? SMP_STREAM_LAZY : 0);
}

static void fault(struct worker *me, const char *what, smp_status status)
{
    smp_error error = SMP_ERROR_INIT;
    ++me->faults;
    smp_last_error(&error);
    if (me->faults <= 5)
        printf("thread %d: %s: %s: %s\n", me->number, what, smp_status_name((uint32_t)status), error.text);
}

/* The call must succeed. */
#define DO(call)                                                                                                      \
    do {                                                                                                              \
        smp_status status_ = (call);                                                                                  \
        if (status_ != SMP_SUCCESS)                                                                                   \
            fault(me, #call, status_);                                                                                \
    } while (0)

/* First and last eight bytes carry the stamp. */
static void put_stamp(const struct parcel *p)
{
    char *bytes = (char *)smp_allocation_ptr(p->allocation);
    memcpy(bytes, &p->stamp, sizeof p->stamp);
    memcpy(bytes + p->size - sizeof p->stamp, &p->stamp, sizeof p->stamp);
}

static void check_stamp(struct worker *me, const struct parcel *p)
{
    const char *bytes = (const char *)smp_allocation_ptr(p->allocation);
    uint64_t first, last;
    if (bytes == NULL) {
        fault(me, "a live block has no pointer", SMP_SUCCESS);
        return;
    }
    memcpy(&first, bytes, sizeof first);
    memcpy(&last, bytes + p->size - sizeof last, sizeof last);
    if (first != p->stamp || last != p->stamp)
        fault(me, "a block's stamp was overwritten", SMP_SUCCESS);
}

static void free_parcel(struct worker *me, struct parcel *p, smp_stream stream)
{
    check_stamp(me, p);
    if (p->ready != NULL) {
        DO(smp_stream_wait_event(device, stream, p->ready));
        DO(smp_event_destroy(p->ready));
    }
    DO(smp_free_async(p->allocation, stream));
    ++me->frees;
    memset(p, 0, sizeof *p);
}

static void send(struct worker *me, struct parcel *p, smp_stream stream)
{
    int sent = 0;
    DO(smp_event_create(device, 0, &p->ready));
    DO(smp_event_record(device, p->ready, stream));
    pthread_mutex_lock(&mailbox.lock);
    if (mailbox.count < MAILBOX) {
        mailbox.parcels[mailbox.count++] = *p;
        sent = 1;
    }
    pthread_mutex_unlock(&mailbox.lock);
    if (sent)
        memset(p, 0, sizeof *p);
    else
        free_parcel(me, p, stream);
}

static void receive(struct worker *me, smp_stream stream)
{
    struct parcel p;
    memset(&p, 0, sizeof p);
    pthread_mutex_lock(&mailbox.lock);
    if (mailbox.count > 0)
        p = mailbox.parcels[--mailbox.count];
    pthread_mutex_unlock(&mailbox.lock);
    if (p.allocation != NULL)
        free_parcel(me, &p, stream);
}

/* A pool of its own, destroyed while a block of it is live. */
static void short_lived_pool(struct worker *me, smp_stream stream)
{
    static const char *const specs[] = {"sliced(page_size=2MiB)", "direct()", "exclusive()", "preset(cuda)"};
    smp_pool pool = NULL;
    smp_allocation a = NULL;
    smp_pool_stats stats = SMP_POOL_STATS_INIT;
    smp_status status = smp_pool_create_from_spec(device, specs[test_random(&me->random) % 4], &pool);
    if (status != SMP_SUCCESS) {
        fault(me, "smp_pool_create_from_spec", status);
        return;
    }
    status = smp_alloc_async(pool, test_random(&me->random) % 10000 + 1, stream, &a);
    if (status != SMP_SUCCESS && status != SMP_ERROR_OUT_OF_MEMORY)
        fault(me, "smp_alloc_async from a short-lived pool", status);
    DO(smp_pool_get_stats(pool, &stats));
    DO(smp_pool_destroy(pool));
    if (a != NULL)
        DO(smp_free_async(a, stream));
    if (smp_pool_get_stats(pool, &stats) != SMP_ERROR_DESTROYED)
        fault(me, "a destroyed pool answers", SMP_SUCCESS);
}

static void *work(void *argument)
{
    struct worker *me = (struct worker *)argument;
    smp_stream streams[STREAMS];
    struct parcel held[HELD];
    uint64_t round, stamp = (uint64_t)me->number << 48;
    int i;
    memset(held, 0, sizeof held);
    for (i = 0; i < STREAMS; ++i) {
        streams[i] = NULL;
        DO(smp_stream_create(device, flags_of(i), &streams[i]));
    }
    for (round = 0; round < rounds; ++round) {
        uint64_t dice = test_random(&me->random) % 1000;
        int which = (int)(test_random(&me->random) % STREAMS);
        smp_stream stream = streams[which];
        struct parcel *p = &held[test_random(&me->random) % HELD];
        if (dice < 800) {
            if (p->allocation == NULL) {
                smp_status status;
                p->size = test_random(&me->random) % 32 == 0 ? test_random(&me->random) % 200000 + 16 : test_random(&me->random) % 2000 + 16;
                status = smp_alloc_async(shared, p->size, stream, &p->allocation);
                if (status == SMP_SUCCESS) {
                    ++me->allocs;
                    p->stamp = ++stamp;
                    put_stamp(p);
                    if (test_random(&me->random) % 16 == 0)
                        DO(smp_allocation_add_user(p->allocation, streams[test_random(&me->random) % STREAMS]));
                } else {
                    ++me->failures;
                    fault(me, "smp_alloc_async", status);
                }
            } else if (dice < 700) {
                free_parcel(me, p, stream);
            } else {
                send(me, p, stream);
            }
        } else if (dice < 870) {
            receive(me, stream);
        } else if (dice < 920) {
            smp_event e = NULL;
            DO(smp_event_create(device, 0, &e));
            DO(smp_event_record(device, e, stream));
            DO(smp_stream_wait_event(device, streams[test_random(&me->random) % STREAMS], e));
            if (test_random(&me->random) % 4 == 0)
                DO(smp_event_synchronize(e));
            DO(smp_event_destroy(e));
        } else if (dice < 950) {
            DO(smp_stream_synchronize(device, stream));
        } else if (dice < 953) {
            DO(smp_device_synchronize(device));
        } else if (dice < 965) {
            DO(smp_pool_trim_to(shared, test_random(&me->random) % 2 == 0 ? 0 : UINT64_C(1) << 22));
        } else if (dice < 975) {
            short_lived_pool(me, stream);
        } else if (dice < 985) {
            DO(smp_stream_destroy(streams[which]));
            DO(smp_stream_create(device, flags_of(which), &streams[which]));
        } else if (dice < 995) {
            smp_pool_stats stats = SMP_POOL_STATS_INIT;
            smp_allocation found = NULL;
            uint64_t offset = 0;
            DO(smp_pool_get_stats(shared, &stats));
            if (p->allocation != NULL) {
                const char *inside = (const char *)smp_allocation_ptr(p->allocation) + p->size / 2;
                DO(smp_allocation_find(device, inside, &found, &offset));
                if (found != p->allocation || offset != p->size / 2)
                    fault(me, "smp_allocation_find found another block", SMP_SUCCESS);
            }
        } else {
            DO(smp_pool_set_attribute(shared, 1 + (uint32_t)(test_random(&me->random) % 3), test_random(&me->random) % 2));
        }
    }
    for (i = 0; i < HELD; ++i)
        if (held[i].allocation != NULL)
            free_parcel(me, &held[i], streams[0]);
    for (i = 0; i < STREAMS; ++i)
        DO(smp_stream_destroy(streams[i]));
    return NULL;
}

static void figures_are_exact_after_every_thread_did_everything(void)
{
    static struct worker workers[MOST_THREADS];
    struct worker last;
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_device_info info = SMP_DEVICE_INFO_INIT;
    smp_pool_stats stats = SMP_POOL_STATS_INIT;
    smp_stream stream = NULL;
    uint64_t allocs = 0, frees = 0, failures = 0, faults = 0;
    int i;
    desc.kind = SMP_DEVICE_MODEL;
    desc.flags = SMP_DEVICE_HOST_BACKING;
    desc.capacity = UINT64_C(8) << 30;
    CHECK_EQ(smp_device_open(&desc, &device), SMP_SUCCESS);
    CHECK_EQ(smp_pool_create_from_spec(device, "sliced(page_size=2MiB, max_slice_size=64KiB); sliced(page_size=8MiB)",
                                       &shared),
             SMP_SUCCESS);
    pthread_mutex_init(&mailbox.lock, NULL);
    for (i = 0; i < threads; ++i) {
        workers[i].number = i;
        workers[i].random = UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(i + 1);
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            perror("pthread_create");
            exit(1);
        }
    }
    for (i = 0; i < threads; ++i)
        pthread_join(workers[i].thread, NULL);
    /* What is still in the mailbox goes too. */
    memset(&last, 0, sizeof last);
    last.number = -1;
    CHECK_EQ(smp_stream_create(device, 0, &stream), SMP_SUCCESS);
    while (mailbox.count > 0)
        receive(&last, stream);
    for (i = 0; i < threads; ++i) {
        allocs += workers[i].allocs;
        frees += workers[i].frees;
        failures += workers[i].failures;
        faults += workers[i].faults;
    }
    frees += last.frees;
    CHECK_EQ(faults + last.faults, 0);
    CHECK_EQ(allocs, frees);
    CHECK_EQ(smp_device_synchronize(device), SMP_SUCCESS);
    CHECK_EQ(smp_pool_get_stats(shared, &stats), SMP_SUCCESS);
    CHECK_EQ(stats.allocs, allocs);
    CHECK_EQ(stats.frees, frees);
    CHECK_EQ(stats.failures, failures);
    CHECK_EQ(stats.live, 0);
    CHECK_EQ(stats.used, 0);
    CHECK_EQ(stats.requested, 0);
    CHECK_EQ(stats.padding, 0);
    CHECK_EQ(stats.pending, 0);
    CHECK_EQ(stats.pending_bytes, 0);
    CHECK(stats.used_high <= stats.reserved_high);
    CHECK_EQ(stats.page_allocs - stats.page_frees, stats.pages);
    CHECK_EQ(stats.reuse_same_stream + stats.reuse_observed + stats.reuse_event + stats.reuse_opportunistic +
                 stats.reuse_internal + stats.reuse_fresh,
             allocs);
    CHECK_EQ(smp_pool_trim_to(shared, 0), SMP_SUCCESS);
    CHECK_EQ(smp_pool_get_stats(shared, &stats), SMP_SUCCESS);
    CHECK_EQ(stats.reserved, 0);
    CHECK_EQ(stats.pages, 0);
    CHECK_EQ(smp_device_get_info(device, &info), SMP_SUCCESS);
    CHECK_EQ(info.reserved, 0); /* the short-lived pools' memory went too */
    CHECK_EQ(info.pools, 1);
    CHECK_EQ(info.page_allocs, info.page_frees);
    CHECK_EQ(smp_stream_destroy(stream), SMP_SUCCESS);
    CHECK_EQ(smp_pool_destroy(shared), SMP_SUCCESS);
    CHECK_EQ(smp_device_close(device), SMP_SUCCESS);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = strtoull(argv[1], NULL, 10);
    if (argc > 2)
        threads = atoi(argv[2]);
    if (threads < 1 || threads > MOST_THREADS || rounds == 0) {
        fprintf(stderr, "usage: stress_threads [ROUNDS [THREADS, 1 to %d]]\n", MOST_THREADS);
        return 2;
    }
    test_one(figures_are_exact_after_every_thread_did_everything, "figures_are_exact_after_every_thread_did_everything",
             NULL);
    return test_end();
}
