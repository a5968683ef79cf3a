/* The steady state that scripts/instructions.sh counts: N blocks stay live; each round frees a few of them and
 * allocates as many of other sizes, in one of three orders; or, as a pair, frees one of 1 MiB and allocates one. Under callgrind instrumentation is on only while the rounds
 * run, so the building of the N blocks costs nothing and counts nothing; callgrind is told to count only what lies
 * inside the functions that are called for that: of handles, with a description, or of pointers.
 *
 * instructions LIVE_BLOCKS lifo|fifo|random|pair [handle|described|pointer [mapped|sub-slices|exclusive-pages|direct]]
 * Prints the number of alloc and free pairs that were counted.
 */
#include <smp.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>

enum { BURST = 8, WARM_ROUNDS = 1000, ROUNDS = 2500, PAIRED = 1 << 20 };

static uint64_t state = 0x9E3779B97F4A7C15u; /* any constant: each run is the same */

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* 256 bytes to 64 KiB, as many in each doubling: what the smallest class of the default preset serves. */
static uint64_t draw_size(void)
{
    uint64_t low = UINT64_C(256) << (draw() % 8u);
    return low + draw() % low;
}

/* The default preset where none is named. */
static smp_status create_pool(smp_device device, const char *kind, smp_pool *pool)
{
    smp_pool_config config = SMP_POOL_CONFIG_INIT;
    static const smp_pool_entry direct = SMP_ENTRY_DIRECT_INIT(SMP_NONE);
    if (strcmp(kind, "sub-slices") == 0) {
        config.preset = SMP_PRESET_SUB_SLICES;
    } else if (strcmp(kind, "exclusive-pages") == 0) {
        config.preset = SMP_PRESET_EXCLUSIVE_PAGES;
    } else if (strcmp(kind, "direct") == 0) {
        config.entries = &direct;
        config.entry_count = 1;
    } else if (strcmp(kind, "mapped") != 0) {
        fprintf(stderr, "instructions: no such pool: %s\n", kind);
        exit(2);
    }
    return smp_pool_create(device, &config, pool);
}

static void must(smp_status status, const char *what)
{
    if (status != SMP_SUCCESS) {
        smp_error error = SMP_ERROR_INIT;
        (void)smp_last_error(&error);
        fprintf(stderr, "%s: %s: %s\n", what, smp_status_name((uint32_t)status), error.text);
        exit(1);
    }
}

enum way { HANDLE, DESCRIBED, POINTER };

static smp_status allocate(enum way way, smp_pool pool, uint64_t size, smp_stream stream, void **out)
{
    smp_allocation block = NULL;
    smp_status status;
    if (way == POINTER) {
        return smp_alloc_ptr_async(pool, size, stream, out);
    }
    if (way == HANDLE) {
        status = smp_alloc_async(pool, size, stream, &block);
    } else {
        smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
        desc.size = size;
        desc.alignment = 256;
        desc.stream = stream;
        status = smp_alloc_async_ex(pool, &desc, &block);
    }
    *out = block;
    return status;
}

int main(int argc, char **argv)
{
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_device device = NULL;
    smp_pool pool = NULL;
    smp_stream stream = NULL;
    void **live, *taken[BURST]; /* handles or pointers */
    uint64_t sizes[BURST];
    size_t n, capacity, head = 0, tail, i, burst = BURST;
    long round;
    int lifo, fifo, pair;
    enum way way = HANDLE;

    if (argc < 3 || argc > 5 || (n = (size_t)strtoull(argv[1], NULL, 10)) < BURST) {
        fprintf(stderr, "usage: instructions LIVE_BLOCKS lifo|fifo|random|pair [handle|described|pointer [POOL]]\n");
        return 2;
    }
    if (argc >= 4) {
        way = strcmp(argv[3], "described") == 0 ? DESCRIBED : strcmp(argv[3], "pointer") == 0 ? POINTER : HANDLE;
        if (way == HANDLE && strcmp(argv[3], "handle") != 0) {
            fprintf(stderr, "instructions: no such way: %s\n", argv[3]);
            return 2;
        }
    }
    lifo = strcmp(argv[2], "lifo") == 0;
    fifo = strcmp(argv[2], "fifo") == 0;
    pair = strcmp(argv[2], "pair") == 0;
    if (pair) {
        lifo = 1;
        burst = 1;
    }
    if (!lifo && !fifo && strcmp(argv[2], "random") != 0) {
        fprintf(stderr, "instructions: no such order: %s\n", argv[2]);
        return 2;
    }

    desc.kind = SMP_DEVICE_MODEL;
    must(smp_device_open(&desc, &device), "open");
    must(create_pool(device, argc == 5 ? argv[4] : "mapped", &pool), "pool");
    must(smp_stream_create(device, 0u, &stream), "stream");

    /* A ring: FIFO takes from the head, LIFO and random from and to the tail. */
    capacity = n + (size_t)(WARM_ROUNDS + ROUNDS) * BURST;
    live = (void **)malloc(capacity * sizeof *live);
    if (live == NULL) {
        fprintf(stderr, "instructions: no memory\n");
        return 1;
    }
    for (tail = 0; tail < n; ++tail) {
        must(allocate(way, pool, pair ? PAIRED : draw_size(), stream, &live[tail]), "alloc");
    }

    for (round = 0; round < WARM_ROUNDS + ROUNDS; ++round) {
        for (i = 0; i < burst; ++i) {
            if (fifo) {
                taken[i] = live[head++];
            } else {
                size_t at = lifo ? tail - 1 : (size_t)(draw() % tail);
                taken[i] = live[at];
                live[at] = live[--tail];
            }
            sizes[i] = pair ? PAIRED : draw_size();
        }
        if (round == WARM_ROUNDS) {
            CALLGRIND_START_INSTRUMENTATION;
        }
        for (i = 0; i < burst; ++i) {
            must(way == POINTER ? smp_free_ptr_async(device, taken[i], stream)
                                : smp_free_async((smp_allocation)taken[i], stream),
                 "free");
        }
        for (i = 0; i < burst; ++i) {
            must(allocate(way, pool, sizes[i], stream, &live[tail++]), "alloc");
        }
    }
    CALLGRIND_STOP_INSTRUMENTATION;
    printf("%lu\n", (unsigned long)(ROUNDS * burst));
    free(live);
    return 0;
}
