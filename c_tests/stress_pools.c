/* Pools come and go while other threads use them, memory runs out, and the host synchronises: a call on a pool that goes
 * answers that it is destroyed, and nothing else happens to anybody: each block is freed by whoever got it, and at the end
 * nothing is left.
 *
 * stress_pools [ROUNDS]: rounds per thread, 200000 unless told. Exits 1 if anything is off.
 */
#include "test.h"

#include <pthread.h>

enum { THREADS = 4, POOLS = 4, HELD = 200 };

static smp_device device;
static smp_pool pools[POOLS]; /* whose handles threads read and replace, under the lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t rounds = 200000;

struct worker {
    pthread_t thread;
    uint64_t random, faults, destroyed, out_of_memory;
};

static smp_pool new_pool(void)
{
    /* The memory is for five of these pages, so that allocations ask for what the other pools keep. */
    smp_pool pool = NULL;
    if (smp_pool_create_from_spec(device, "cuda(); release_threshold(none)", &pool) != SMP_SUCCESS) {
        smp_error error = SMP_ERROR_INIT;
        (void)smp_last_error(&error);
        printf("a pool: %s\n", error.text);
    }
    return pool;
}

static smp_pool pool_at(uint64_t which)
{
    smp_pool pool;
    pthread_mutex_lock(&lock);
    pool = pools[which];
    pthread_mutex_unlock(&lock);
    return pool;
}

/* Only what such a race may answer. */
static void expect(struct worker *me, smp_status status, const char *what)
{
    me->destroyed += status == SMP_ERROR_DESTROYED;
    me->out_of_memory += status == SMP_ERROR_OUT_OF_MEMORY;
    if (status == SMP_SUCCESS || status == SMP_ERROR_DESTROYED || status == SMP_ERROR_OUT_OF_MEMORY)
        return;
    if (++me->faults <= 5)
        printf("%s gives %s\n", what, smp_status_name((uint32_t)status));
}

static void must_free(struct worker *me, smp_allocation block, smp_stream stream)
{
    smp_status status = smp_free_async(block, stream);
    if (status != SMP_SUCCESS && ++me->faults <= 5)
        printf("freeing a live block gives %s\n", smp_status_name((uint32_t)status));
}

static void *work(void *argument)
{
    struct worker *me = (struct worker *)argument;
    smp_allocation held[HELD];
    smp_stream stream = NULL;
    uint64_t i;
    int count = 0;
    if (smp_stream_create(device, 0, &stream) != SMP_SUCCESS) {
        ++me->faults;
        return NULL;
    }
    for (i = 0; i < rounds; ++i) {
        uint64_t dice = test_random(&me->random) % 64, which = test_random(&me->random) % POOLS;
        if (dice < 30) {
            smp_allocation block = NULL;
            expect(me, smp_alloc_async(pool_at(which), test_random(&me->random) % 200000, stream, &block), "an allocation");
            if (block != NULL)
                held[count++] = block;
        } else if (dice < 55) {
            if (count > 0) {
                int at = (int)(test_random(&me->random) % (uint64_t)count);
                smp_allocation block = held[at];
                held[at] = held[--count];
                must_free(me, block, stream);
            }
        } else if (dice < 59) {
            expect(me, smp_device_synchronize(device), "a synchronise");
        } else if (dice < 60) {
            expect(me, smp_pool_trim_to(pool_at(which), 0), "a trim");
        } else if (dice < 61) {
            smp_pool now = new_pool(), before;
            pthread_mutex_lock(&lock);
            before = pools[which];
            pools[which] = now;
            pthread_mutex_unlock(&lock);
            if (now == NULL)
                ++me->faults;
            expect(me, smp_pool_destroy(before), "a destroy");
        } else if (dice < 62) {
            expect(me, smp_pool_destroy(pool_at(which)), "a destroy"); /* of which another may come */
        } else {
            smp_pool pool = pool_at(which);
            smp_pool_stats stats = SMP_POOL_STATS_INIT;
            expect(me, smp_pool_get_stats(pool, &stats), "the figures");
        }
        if (count == HELD)
            must_free(me, held[--count], stream);
    }
    while (count > 0)
        must_free(me, held[--count], stream);
    if (smp_stream_destroy(stream) != SMP_SUCCESS)
        ++me->faults;
    return NULL;
}

static void pools_come_and_go_and_nothing_is_lost(void)
{
    struct worker workers[THREADS];
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_device_info info = SMP_DEVICE_INFO_INIT;
    uint64_t destroyed = 0, out_of_memory = 0;
    int i;
    memset(workers, 0, sizeof workers);
    desc.kind = SMP_DEVICE_MODEL;
    desc.capacity = (uint64_t)5 * 32 << 20;
    CHECK(smp_device_open(&desc, &device) == SMP_SUCCESS);
    for (i = 0; i < POOLS; ++i) {
        pools[i] = new_pool();
        CHECK(pools[i] != NULL);
    }
    for (i = 0; i < THREADS; ++i) {
        workers[i].random = UINT64_C(0x9E3779B97F4A7C15) * (uint64_t)(i + 1);
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    for (i = 0; i < THREADS; ++i) {
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
        CHECK_EQ(workers[i].faults, 0);
        destroyed += workers[i].destroyed;
        out_of_memory += workers[i].out_of_memory;
    }
    CHECK(out_of_memory > 0);
    printf("%" PRIu64 " calls on pools that had gone, %" PRIu64 " without memory\n", destroyed, out_of_memory);
    for (i = 0; i < POOLS; ++i)
        expect(&workers[0], smp_pool_destroy(pools[i]), "a destroy");
    CHECK_EQ(workers[0].faults, 0);
    CHECK(smp_device_synchronize(device) == SMP_SUCCESS);
    CHECK(smp_device_get_info(device, &info) == SMP_SUCCESS);
    CHECK_EQ(info.pools, 0);
    CHECK_EQ(info.reserved, 0);
    CHECK(smp_device_close(device) == SMP_SUCCESS);
}

int main(int argc, char **argv)
{
    const char *test_word = NULL;
    if (argc > 1)
        rounds = strtoull(argv[1], NULL, 10);
    RUN(pools_come_and_go_and_nothing_is_lost)
    return test_end();
}
