/* Bytes: whatever is allocated and freed around them, what was written into a live block stays there, and no two live
 * blocks share a byte. On a model device with host backing blocks are real memory; on CUDA they are the stand-in's, written
 * and read by copies in stream order, whatever runs when.
 *
 * Each live block is filled with a pattern made from its own number; every byte is checked before its free. A block
 * handed out twice, or too early, or a wrong offset, shows as a wrong byte.
 */
#include "support.h"

#define LIVE 96

struct slot {
    smp_allocation allocation;
    smp_stream stream; /* that it was allocated on */
    unsigned char *bytes;
    uint64_t size;
    unsigned char pattern;
};

static uint64_t state;
static unsigned char there[3000000];

static int intact(const struct slot *s, smp_stream stream)
{
    uint64_t i;
    read_bytes(there, s->bytes, s->size, stream);
    for (i = 0; i < s->size; ++i)
        if (there[i] != (unsigned char)(s->pattern + i * 7))
            return 0;
    return 1;
}

static void fill(const struct slot *s)
{
    uint64_t i;
    for (i = 0; i < s->size; ++i)
        there[i] = (unsigned char)(s->pattern + i * 7);
    write_bytes(s->bytes, there, s->size, s->stream);
}

/* `later` comes after what `earlier` was given so far. */
static void order(smp_device device, smp_stream earlier, smp_stream later)
{
    smp_event event;
    if (earlier == later)
        return;
    event = record_on(device, earlier);
    wait_for(device, later, event);
    must(smp_event_destroy(event));
}

/* Allocations and frees on four streams at random, cross-stream frees ordered by an event; every pattern checked. */
static void patterns_stay_intact_in(const char *spec, uint64_t largest)
{
    smp_device device = host_backed_device();
    smp_pool pool = pool_of(device, spec);
    smp_stream streams[4];
    struct slot slots[LIVE];
    /* On CUDA each byte is copied twice by the stand-in, and the program runs with many seeds. */
    const int rounds = BY_DEVICE(6000, 150);
    int i, broken = 0, null_pointers = 0, misaligned = 0;
    unsigned char number = 1;
    memset(slots, 0, sizeof slots);
    state = UINT64_C(0x9E3779B97F4A7C15);
    for (i = 0; i < 4; ++i)
        streams[i] = new_stream(device);
    for (i = 0; i < rounds; ++i) {
        struct slot *s = &slots[test_random(&state) % LIVE];
        smp_stream stream = streams[test_random(&state) % 4];
        if (s->allocation == NULL) {
            s->size = test_random(&state) % 16 == 0 ? test_random(&state) % largest + 1 : test_random(&state) % 4096 + 1;
            s->pattern = number++;
            s->allocation = alloc_on(pool, s->size, stream);
            s->stream = stream;
            s->bytes = (unsigned char *)smp_allocation_ptr(s->allocation);
            null_pointers += s->bytes == NULL;
            misaligned += (uintptr_t)s->bytes % 512 != 0;
            fill(s);
        } else {
            order(device, s->stream, stream);
            broken += !intact(s, stream);
            memset(there, 0, s->size);
            write_bytes(s->bytes, there, s->size, stream);
            free_on(s->allocation, stream);
            s->allocation = NULL;
        }
        if (i % 500 == 499)
            must(smp_pool_trim_to(pool, 0));
    }
    CHECK_EQ(broken, 0);
    CHECK_EQ(null_pointers, 0);
    CHECK_EQ(misaligned, 0);
    for (i = 0; i < LIVE; ++i)
        if (slots[i].allocation != NULL) {
            order(device, slots[i].stream, streams[0]);
            CHECK(intact(&slots[i], streams[0]));
            free_on(slots[i].allocation, streams[0]);
        }
    must(smp_device_synchronize(device));
    must(smp_pool_trim_to(pool, 0));
    CHECK_EQ(pool_stats(pool).live, 0);
    CHECK_EQ(pool_stats(pool).used, 0);
    CHECK_EQ(pool_stats(pool).reserved, 0);
    must(smp_pool_destroy(pool));
    must(smp_device_close(device));
}

static void sliced_blocks_never_share_a_byte(void)
{
    patterns_stay_intact_in("sliced(page_size=2MiB)", 300000);
}

static void exclusive_blocks_never_share_a_byte(void)
{
    patterns_stay_intact_in("exclusive()", 3000000);
}

static void direct_blocks_never_share_a_byte(void)
{
    patterns_stay_intact_in("direct(reclaim_at=16MiB)", 3000000);
}

static void cuda_blocks_never_share_a_byte(void)
{
    patterns_stay_intact_in("preset(cuda)", 3000000);
}

static void blocks_of_a_capped_ladder_never_share_a_byte(void)
{
    patterns_stay_intact_in("sliced(page_size=64KiB, max_slice_size=4KiB, max_pool_size=128KiB); "
                            "sliced(page_size=1MiB, max_pool_size=4MiB, dealloc_period=50); exclusive()",
                            500000);
}

static void the_device_says_it_is_host_backed_and_its_default_capacity_is_1_gib(void)
{
    smp_device device = host_backed_device();
    smp_device_info info = device_info(device);
    CHECK((info.flags & SMP_DEVICE_HOST_BACKING) != 0);
    CHECK_EQ(info.capacity, 1024 * MIB);
    must(smp_device_close(device));
}

static void the_pointer_is_the_host_address_and_the_model_address_is_another(void)
{
    smp_device device = host_backed_device();
    smp_pool pool = pool_of(device, "sliced(page_size=2MiB)");
    smp_stream s = new_stream(device);
    smp_allocation a = alloc_on(pool, 512, s), found = NULL;
    uint64_t offset = 99;
    CHECK_EQ(address(a), BASE);
    CHECK((uint64_t)(uintptr_t)smp_allocation_ptr(a) != BASE);
    must(smp_allocation_find(device, (char *)smp_allocation_ptr(a) + 100, &found, &offset));
    CHECK_SAME(found, a);
    CHECK_EQ(offset, 100);
    must(smp_allocation_find(device, (void *)(uintptr_t)(BASE + 511), &found, &offset)); /* either address is taken */
    CHECK_SAME(found, a);
    CHECK_EQ(offset, 511);
    must(smp_pool_destroy(pool));
    must(smp_device_close(device));
}

static void a_large_alignment_is_kept_by_the_host_address_too(void)
{
    smp_device device = host_backed_device();
    smp_pool pool = pool_of(device, "sliced(page_size=8MiB)");
    smp_stream s = new_stream(device);
    uint64_t alignment;
    for (alignment = 512; alignment <= 2 * MIB; alignment *= 2) {
        smp_allocation a = aligned_alloc_on(pool, 1000, alignment, s);
        CHECK_EQ((uintptr_t)smp_allocation_ptr(a) % alignment, 0);
        CHECK_EQ(address(a) % alignment, 0);
        memset(there, 1, 1000);
        write_bytes(smp_allocation_ptr(a), there, 1000, s);
    }
    must(smp_pool_destroy(pool));
    must(smp_device_close(device));
}

TEST_MAIN(RUN_ANY_PACE(sliced_blocks_never_share_a_byte)
          RUN_ANY_PACE(exclusive_blocks_never_share_a_byte)
          RUN_ANY_PACE(direct_blocks_never_share_a_byte)
          RUN_ANY_PACE(cuda_blocks_never_share_a_byte)
          RUN_ANY_PACE(blocks_of_a_capped_ladder_never_share_a_byte)
          MODEL_ONLY(the_device_says_it_is_host_backed_and_its_default_capacity_is_1_gib, "it is about the model device")
          RUN_ANY_PACE(the_pointer_is_the_host_address_and_the_model_address_is_another)
          RUN_ANY_PACE(a_large_alignment_is_kept_by_the_host_address_too))
