/* bench_steady LIVE ORDER PAIRS: a program in its steady state, for counting instructions per allocation and free.
 *
 * Fills a pool with LIVE blocks on one stream, then does PAIRS times: free one block, allocate one, of a size that
 * changes from block to block. ORDER says which block goes: lifo (the newest), fifo (the oldest) or random. Run it under
 * callgrind twice, with PAIRS 0 and with PAIRS n: the difference divided by n is what a pair costs, set-up excluded.
 *
 * Prints `live=N order=ORDER pairs=N reserved=BYTES pages=N`. Exit status: 0 done, 1 a call failed, 2 usage.
 */
#include <smp.h>

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(smp_status status, const char *what)
{
    smp_error error = SMP_ERROR_INIT;
    if (status == SMP_SUCCESS)
        return;
    smp_last_error(&error);
    fprintf(stderr, "%s: %s\n", what, error.text);
    exit(1);
}

static uint64_t state = UINT64_C(0x9E3779B97F4A7C15);

static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* 512 bytes to 32 KiB, small ones more often, as programs ask. */
static uint64_t next_size(void)
{
    uint64_t r = next_random();
    return (r >> 32) % (UINT64_C(512) << (r % 7)) + 1;
}

int main(int argc, char **argv)
{
    enum { LIFO, FIFO, RANDOM } order;
    smp_pool_stats stats = SMP_POOL_STATS_INIT;
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_device device = NULL;
    smp_pool pool = NULL;
    smp_stream stream = NULL;
    smp_allocation *blocks;
    uint64_t live, pairs, i, oldest = 0;

    live = argc == 4 ? strtoull(argv[1], NULL, 10) : 0;
    if (live == 0 || live > UINT64_C(100000000)) {
        fprintf(stderr, "usage: bench_steady LIVE lifo|fifo|random PAIRS\n");
        return 2;
    }
    pairs = strtoull(argv[3], NULL, 10);
    if (strcmp(argv[2], "lifo") == 0) {
        order = LIFO;
    } else if (strcmp(argv[2], "fifo") == 0) {
        order = FIFO;
    } else if (strcmp(argv[2], "random") == 0) {
        order = RANDOM;
    } else {
        fprintf(stderr, "bench_steady: \"%s\" is no order; lifo, fifo or random\n", argv[2]);
        return 2;
    }
    blocks = (smp_allocation *)calloc((size_t)live, sizeof *blocks);
    if (blocks == NULL) {
        perror("bench_steady");
        return 1;
    }

    desc.kind = SMP_DEVICE_MODEL;
    must(smp_device_open(&desc, &device), "smp_device_open");
    must(smp_pool_create(device, NULL, &pool), "smp_pool_create");
    must(smp_stream_create(device, 0, &stream), "smp_stream_create");
    for (i = 0; i < live; ++i)
        must(smp_alloc_async(pool, next_size(), stream, &blocks[i]), "smp_alloc_async");
    for (i = 0; i < pairs; ++i) {
        uint64_t victim = order == LIFO ? live - 1 : order == FIFO ? oldest : next_random() % live;
        must(smp_free_async(blocks[victim], stream), "smp_free_async");
        must(smp_alloc_async(pool, next_size(), stream, &blocks[victim]), "smp_alloc_async");
        oldest = oldest + 1 == live ? 0 : oldest + 1;
    }
    must(smp_pool_get_stats(pool, &stats), "smp_pool_get_stats");
    printf("live=%" PRIu64 " order=%s pairs=%" PRIu64 " reserved=%" PRIu64 " pages=%" PRIu64 "\n", live, argv[2], pairs,
           stats.reserved, stats.pages);
    free(blocks);
    return 0;
}
