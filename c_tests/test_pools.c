/* Pools: each entry kind and each option, by the placement rules.
 *
 * Addresses are counted from BASE, where the model device puts its first page; pages follow one another at multiples of
 * the 2 MiB granularity; blocks are multiples of 512 bytes. "Eager" scenes run work at submission; "lazy" ones keep it
 * pending.
 */
#include "support.h"

#include <stddef.h>

struct scene {
    smp_device device;
    smp_pool pool;
    smp_stream s1, s2;
};

static struct scene scene_on(smp_device device, const char *spec)
{
    struct scene t;
    t.device = device;
    t.pool = pool_of(device, spec);
    t.s1 = new_stream(device);
    t.s2 = new_stream(device);
    return t;
}

static struct scene lazy(const char *spec)
{
    return scene_on(lazy_device(), spec);
}

static struct scene eager(const char *spec)
{
    return scene_on(eager_device(), spec);
}

static void scene_end(struct scene *t)
{
    must(smp_pool_destroy(t->pool));
    must(smp_device_close(t->device));
}

static smp_status try_alloc(struct scene *t, uint64_t size)
{
    smp_allocation a = NULL;
    return smp_alloc_async(t->pool, size, t->s1, &a);
}

/* ---- Exclusive ------------------------------------------------------------------------------------------------- */

static void an_exclusive_block_is_its_whole_page(void)
{
    struct scene t = lazy("exclusive()");
    smp_allocation a = alloc_on(t.pool, 1000, t.s1);
    smp_allocation b = alloc_on(t.pool, 2 * MIB + 1, t.s1);
    CHECK_EQ(block_size(a), 2 * MIB);
    CHECK_EQ(requested(a), 1000);
    CHECK_EQ(block_size(b), 4 * MIB);
    CHECK_EQ(address(b), BASE + 2 * MIB);
    CHECK_EQ(pool_stats(t.pool).used, 6 * MIB);
    CHECK_EQ(pool_stats(t.pool).reserved, 6 * MIB);
    CHECK_EQ(pool_stats(t.pool).requested, 1000 + 2 * MIB + 1);
    CHECK_EQ(pool_stats(t.pool).padding, 6 * MIB - (1000 + 2 * MIB + 1));
    scene_end(&t);
}

static void an_exclusive_page_may_serve_a_smaller_request_and_the_smallest_that_fits_is_taken(void)
{
    struct scene t = lazy("exclusive()");
    smp_allocation big = alloc_on(t.pool, 4 * MIB, t.s1); /* the lower address */
    smp_allocation small = alloc_on(t.pool, 2 * MIB, t.s1), again;
    free_on(big, t.s1);
    free_on(small, t.s1);
    again = alloc_on(t.pool, 1, t.s1);
    CHECK_EQ(address(again), BASE + 4 * MIB);
    again = alloc_on(t.pool, 1, t.s1);
    CHECK_EQ(address(again), BASE);
    CHECK_EQ(block_size(again), 4 * MIB);
    CHECK_EQ(pool_stats(t.pool).pages, 2);
    scene_end(&t);
}

static void an_exclusive_page_too_small_is_not_used(void)
{
    struct scene t = lazy("exclusive()");
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1);
    CHECK_EQ(address(alloc_on(t.pool, 2 * MIB + 1, t.s1)), BASE + 2 * MIB);
    scene_end(&t);
}

static void max_alloc_size_is_judged_on_the_request_against_the_rounded_bound(void)
{
    struct scene t = lazy("exclusive(max_alloc_size=1000)");
    CHECK_STATUS(try_alloc(&t, 1000), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(&t, 1024), SMP_SUCCESS); /* 1000 was rounded up to 1024 at creation */
    CHECK_STATUS(try_alloc(&t, 1025), SMP_ERROR_SIZE_NOT_ACCEPTED);
    scene_end(&t);
}

static void an_exclusive_entry_of_zero_serves_zero_sized_requests_only(void)
{
    struct scene t = lazy("exclusive(max_alloc_size=0); sliced(page_size=2MiB)");
    smp_allocation zero = alloc_on(t.pool, 0, t.s1), one = alloc_on(t.pool, 1, t.s1);
    CHECK_EQ(entry_of(zero), 0);
    CHECK_EQ(entry_of(one), 1);
    CHECK_EQ(requested(zero), 0);
    CHECK(smp_allocation_ptr(zero) != NULL);
    scene_end(&t);
    t = lazy("exclusive(max_alloc_size=0)");
    CHECK_STATUS(try_alloc(&t, 0), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(&t, 1), SMP_ERROR_SIZE_NOT_ACCEPTED);
    scene_end(&t);
}

static void exclusive_pages_unused_for_a_whole_dealloc_period_go_back(void)
{
    struct scene t = eager("exclusive(dealloc_period=2)");
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1); /* allocation 1; free since 1 */
    alloc_on(t.pool, 4 * MIB, t.s1);                /* sweep at 1: age 0 */
    alloc_on(t.pool, 4 * MIB, t.s1);                /* sweep at 2: age 1 */
    CHECK_EQ(pool_stats(t.pool).reserved, 10 * MIB);
    alloc_on(t.pool, 4 * MIB, t.s1); /* sweep at 3: age 2: the 2 MiB page goes before the new one comes */
    CHECK_EQ(pool_stats(t.pool).reserved, 12 * MIB);
    CHECK_EQ(pool_stats(t.pool).reserved_high, 12 * MIB);
    CHECK_EQ(pool_stats(t.pool).page_frees, 1);
    scene_end(&t);
}

static void without_a_dealloc_period_nothing_goes_back_by_itself(void)
{
    struct scene t = eager("exclusive()");
    int i;
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1);
    for (i = 0; i < 20; ++i)
        alloc_on(t.pool, 4 * MIB, t.s1);
    sync(t.device, t.s1);
    CHECK_EQ(pool_stats(t.pool).page_frees, 0);
    CHECK_EQ(pool_stats(t.pool).reserved, 82 * MIB);
    scene_end(&t);
}

static void dealloc_period_is_looked_at_by_trim_and_synchronise_whatever_keep_and_threshold_say(void)
{
    struct scene t = eager("exclusive(dealloc_period=1)");
    smp_allocation live;
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1); /* free since 1 */
    live = alloc_on(t.pool, 4 * MIB, t.s1);         /* sweep at 1: age 0 */
    CHECK_EQ(pool_stats(t.pool).reserved, 6 * MIB);
    must(smp_pool_trim_to(t.pool, UINT64_MAX)); /* age 1 */
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    free_on(live, t.s1);                           /* free since 2 */
    alloc_on(t.pool, 6 * MIB, t.s1);               /* sweep at 2: age 0; allocation 3 */
    CHECK_EQ(pool_stats(t.pool).reserved, 10 * MIB);
    sync(t.device, t.s1); /* age 1 */
    CHECK_EQ(pool_stats(t.pool).reserved, 6 * MIB);
    scene_end(&t);
}

/* ---- Direct ---------------------------------------------------------------------------------------------------- */

static void a_direct_block_is_reused_by_exact_rounded_size_only(void)
{
    struct scene t = lazy("direct()");
    smp_allocation a = alloc_on(t.pool, 1000, t.s1), b;
    CHECK_EQ(block_size(a), 1024);
    CHECK_EQ(pool_stats(t.pool).reserved, 2 * MIB);
    CHECK_EQ(pool_stats(t.pool).used, 1024);
    free_on(a, t.s1);
    b = alloc_on(t.pool, 512, t.s1);
    CHECK_EQ(address(b), BASE + 2 * MIB); /* smaller: another page */
    b = alloc_on(t.pool, 1025, t.s1);
    CHECK_EQ(address(b), BASE + 4 * MIB); /* larger: another page */
    b = alloc_on(t.pool, 513, t.s1);
    CHECK_EQ(address(b), BASE); /* rounds to 1024 */
    CHECK_EQ(reason(b), SMP_REASON_SAME_STREAM);
    scene_end(&t);
}

static void above_reclaim_at_free_pages_go_back_just_enough_and_the_longest_unused_first(void)
{
    struct scene t = eager("direct(reclaim_at=4MiB)");
    free_on(alloc_on(t.pool, 512, t.s1), t.s1);  /* page 1, free since 1 */
    free_on(alloc_on(t.pool, 1024, t.s1), t.s1); /* page 2, free since 2 */
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB); /* at the mark is not above it */
    alloc_on(t.pool, 1536, t.s1);                   /* 4 + 2 > 4: one page goes */
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    CHECK_EQ(pool_stats(t.pool).page_frees, 1);
    CHECK_EQ(address(alloc_on(t.pool, 1024, t.s1)), BASE + 2 * MIB); /* page 2 stayed */
    scene_end(&t);
}

static void reclaim_at_is_a_watermark_and_not_a_budget(void)
{
    struct scene t = eager("direct(reclaim_at=2MiB)");
    alloc_on(t.pool, 512, t.s1);
    alloc_on(t.pool, 512, t.s1);
    alloc_on(t.pool, 512, t.s1);
    CHECK_EQ(pool_stats(t.pool).reserved, 6 * MIB);
    CHECK_EQ(pool_stats(t.pool).failures, 0);
    scene_end(&t);
}

static void reclaim_takes_no_page_whose_free_has_not_executed(void)
{
    struct scene t = lazy("direct(reclaim_at=2MiB)");
    free_on(alloc_on(t.pool, 512, t.s1), t.s1);
    alloc_on(t.pool, 1024, t.s1);
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    CHECK_EQ(pool_stats(t.pool).page_frees, 0);
    advance(t.device, t.s1, UINT64_MAX);
    alloc_on(t.pool, 1536, t.s1); /* now it has: outside the cuda preset executed is enough */
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    CHECK_EQ(pool_stats(t.pool).page_frees, 1);
    scene_end(&t);
}

static void without_reclaim_at_only_a_trim_gives_direct_pages_back(void)
{
    struct scene t = eager("direct()");
    uint64_t size;
    for (size = 512; size <= 10 * 512; size += 512)
        free_on(alloc_on(t.pool, size, t.s1), t.s1);
    sync(t.device, t.s1);
    CHECK_EQ(pool_stats(t.pool).reserved, 20 * MIB);
    must(smp_pool_trim_to(t.pool, 0));
    CHECK_EQ(pool_stats(t.pool).reserved, 0);
    scene_end(&t);
}

/* ---- Sliced ---------------------------------------------------------------------------------------------------- */

static void slices_are_cut_from_the_low_end_of_the_page(void)
{
    struct scene t = lazy("sliced(page_size=4MiB)");
    CHECK_EQ(address(alloc_on(t.pool, 1, t.s1)), BASE);
    CHECK_EQ(address(alloc_on(t.pool, 1000, t.s2)), BASE + 512);
    CHECK_EQ(address(alloc_on(t.pool, 512, t.s1)), BASE + 512 + 1024);
    CHECK_EQ(pool_stats(t.pool).used, 2048);
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    CHECK_EQ(pool_stats(t.pool).padding, 2048 - 1513);
    scene_end(&t);
}

static void the_smallest_slice_that_fits_is_taken_and_among_equals_the_lowest_address(void)
{
    struct scene t = lazy("sliced(page_size=4MiB)");
    smp_allocation hole_of_2k, hole_of_1k, another_1k;
    hole_of_2k = alloc_on(t.pool, 2048, t.s1); /* BASE */
    alloc_on(t.pool, 512, t.s1);
    hole_of_1k = alloc_on(t.pool, 1024, t.s1); /* BASE + 2560 */
    alloc_on(t.pool, 512, t.s1);
    another_1k = alloc_on(t.pool, 1024, t.s1); /* BASE + 4096 */
    alloc_on(t.pool, 512, t.s1);
    free_on(another_1k, t.s1);
    free_on(hole_of_1k, t.s1);
    free_on(hole_of_2k, t.s1);
    CHECK_EQ(address(alloc_on(t.pool, 513, t.s1)), BASE + 2560);
    CHECK_EQ(address(alloc_on(t.pool, 1024, t.s1)), BASE + 4096);
    CHECK_EQ(address(alloc_on(t.pool, 1024, t.s1)), BASE); /* the 2 KiB hole, low end */
    CHECK_EQ(address(alloc_on(t.pool, 1024, t.s1)), BASE + 1024);
    scene_end(&t);
}

static void the_streams_own_frees_come_before_observed_ones(void)
{
    struct scene t = lazy("sliced(page_size=4MiB)");
    smp_allocation low = alloc_on(t.pool, 1024, t.s2), own; /* BASE */
    alloc_on(t.pool, 512, t.s1);
    own = alloc_on(t.pool, 1024, t.s1); /* BASE + 1536 */
    alloc_on(t.pool, 512, t.s1);
    free_on(low, t.s2);
    sync(t.device, t.s2);
    free_on(own, t.s1);
    CHECK_EQ(address(alloc_on(t.pool, 1024, t.s1)), BASE + 1536);
    CHECK_EQ(address(alloc_on(t.pool, 1024, t.s1)), BASE);
    scene_end(&t);
}

static void a_tiny_request_never_occupies_a_whole_big_free_block(void)
{
    struct scene t = lazy("sliced(page_size=4MiB)");
    smp_allocation big = alloc_on(t.pool, 4 * MIB, t.s1), tiny;
    free_on(big, t.s1);
    tiny = alloc_on(t.pool, 1, t.s1);
    CHECK_EQ(block_size(tiny), 512);
    CHECK_EQ(pool_stats(t.pool).used, 512);
    CHECK_EQ(address(alloc_on(t.pool, 4 * MIB - 512, t.s1)), BASE + 512);
    CHECK_EQ(pool_stats(t.pool).pages, 1);
    scene_end(&t);
}

static void neighbours_freed_on_one_stream_merge(void)
{
    struct scene t = lazy("sliced(page_size=4MiB)");
    smp_allocation a = alloc_on(t.pool, 1 * MIB, t.s1), b = alloc_on(t.pool, 1 * MIB, t.s1), c, last;
    alloc_on(t.pool, 1 * MIB, t.s1);
    last = alloc_on(t.pool, 512, t.s1);
    free_on(a, t.s1);
    free_on(b, t.s1);
    free_on(last, t.s1);
    CHECK_EQ(pool_stats(t.pool).pending, 3); /* recent ones are kept as they are */
    CHECK_EQ(pool_stats(t.pool).largest_free, 1 * MIB);
    CHECK_EQ(pool_stats(t.pool).merges, 0);
    c = alloc_on(t.pool, 2 * MIB, t.s1); /* none is large enough: a and b become one block */
    CHECK_EQ(address(c), BASE);
    CHECK_EQ(reason(c), SMP_REASON_SAME_STREAM);
    CHECK_EQ(pool_stats(t.pool).merges, 1);
    CHECK_EQ(pool_stats(t.pool).pending, 1);
    scene_end(&t);
}

static void neighbours_freed_on_different_streams_are_joined_only_when_all_their_points_allow(void)
{
    struct scene t = lazy("sliced(page_size=2MiB)");
    smp_allocation a = alloc_on(t.pool, 1 * MIB, t.s1), b = alloc_on(t.pool, 1 * MIB, t.s2), c;
    free_on(a, t.s1);
    free_on(b, t.s2);
    CHECK_EQ(pool_stats(t.pool).pending, 2);
    c = alloc_on(t.pool, 2 * MIB, t.s1); /* s2's half is pending */
    CHECK_EQ(address(c), BASE + 2 * MIB);
    CHECK_EQ(reason(c), SMP_REASON_FRESH);
    wait_for(t.device, t.s1, record_on(t.device, t.s2));
    c = alloc_on(t.pool, 2 * MIB, t.s1);
    CHECK_EQ(address(c), BASE);
    CHECK_EQ(reason(c), SMP_REASON_EVENT); /* the weakest of SAME_STREAM and EVENT */
    scene_end(&t);
}

static void a_request_that_fits_a_span_of_neighbours_is_served_in_whatever_order_they_were_freed(void)
{
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    int i, j;
    for (i = 0; i < 6; ++i) {
        struct scene t = lazy("sliced(page_size=3MiB)");
        smp_allocation part[3], whole;
        smp_stream of[3];
        of[0] = t.s1;
        of[1] = t.s2;
        of[2] = new_stream(t.device);
        for (j = 0; j < 3; ++j)
            part[j] = alloc_on(t.pool, 1 * MIB, of[j]);
        for (j = 0; j < 3; ++j)
            free_on(part[orders[i][j]], of[orders[i][j]]);
        must(smp_device_synchronize(t.device));
        whole = alloc_on(t.pool, 3 * MIB, t.s1);
        CHECK_EQ(address(whole), BASE);
        CHECK_EQ(reason(whole), SMP_REASON_OBSERVED);
        CHECK_EQ(pool_stats(t.pool).pages, 1);
        scene_end(&t);
    }
}

static void max_slice_size_is_judged_on_the_request_against_the_rounded_bound(void)
{
    struct scene t = lazy("sliced(page_size=4MiB, max_slice_size=1000)");
    CHECK_STATUS(try_alloc(&t, 1024), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(&t, 1025), SMP_ERROR_SIZE_NOT_ACCEPTED);
    scene_end(&t);
}

static void max_slice_size_defaults_to_the_page_size(void)
{
    struct scene t = lazy("sliced(page_size=4MiB)");
    CHECK_STATUS(try_alloc(&t, 4 * MIB), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(&t, 4 * MIB + 1), SMP_ERROR_SIZE_NOT_ACCEPTED);
    scene_end(&t);
}

static void max_pool_size_counts_whole_pages_and_can_be_reached(void)
{
    struct scene t = lazy("sliced(page_size=2MiB, max_pool_size=5MiB)"); /* two pages */
    CHECK_STATUS(try_alloc(&t, 2 * MIB), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(&t, 2 * MIB), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(&t, 1), SMP_ERROR_CAPACITY_EXCEEDED);
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    CHECK_EQ(pool_stats(t.pool).used, 4 * MIB);
    CHECK_EQ(pool_stats(t.pool).failures, 1);
    CHECK_EQ(device_info(t.device).page_allocs, 2); /* the device was not asked for a third */
    scene_end(&t);
}

static void at_its_cap_an_entry_is_full_and_the_next_accepting_one_serves(void)
{
    struct scene t = lazy("sliced(page_size=2MiB, max_pool_size=2MiB); sliced(page_size=8MiB, max_slice_size=512); "
                          "sliced(page_size=4MiB)");
    smp_allocation a = alloc_on(t.pool, 1 * MIB, t.s1), b = alloc_on(t.pool, 2 * MIB, t.s1), c;
    CHECK_EQ(entry_of(a), 0);
    CHECK_EQ(entry_of(b), 2); /* entry 0 is full, entry 1 does not accept it */
    CHECK_EQ(address(b), BASE + 2 * MIB);
    c = alloc_on(t.pool, 1 * MIB, t.s1);
    CHECK_EQ(entry_of(c), 0); /* the rest of its page */
    CHECK_EQ(entry_stats(t.pool, 0).reserved, 2 * MIB);
    CHECK_EQ(entry_stats(t.pool, 0).used, 2 * MIB);
    CHECK_EQ(entry_stats(t.pool, 1).reserved, 0);
    CHECK_EQ(entry_stats(t.pool, 2).reserved, 4 * MIB);
    CHECK_EQ(entry_stats(t.pool, 2).used, 2 * MIB);
    CHECK_EQ(pool_stats(t.pool).reserved, 6 * MIB);
    scene_end(&t);
}

static void with_every_entry_at_its_cap_policy_3_looks_across_the_entries(void)
{
    struct scene t = lazy("sliced(page_size=2MiB, max_pool_size=2MiB); sliced(page_size=4MiB, max_pool_size=4MiB)");
    smp_allocation a = alloc_on(t.pool, 2 * MIB, t.s1), b = alloc_on(t.pool, 4 * MIB, t.s1), c = NULL;
    (void)a;
    wanted(b);
    free_on(b, t.s1);
    CHECK_STATUS(smp_alloc_async(t.pool, 2 * MIB, t.s2, &c), SMP_SUCCESS);
    CHECK_EQ(address(c), BASE + 2 * MIB);
    CHECK_EQ(entry_of(c), 1);
    CHECK_EQ(reason(c), SMP_REASON_INTERNAL);
    CHECK_EQ(submitted(t.device, t.s2), 2); /* the wait, then the allocation */
    scene_end(&t);
}

static void sliced_pages_unused_for_a_whole_dealloc_period_go_back(void)
{
    struct scene t = eager("sliced(page_size=2MiB, dealloc_period=1)");
    smp_allocation a = alloc_on(t.pool, 2 * MIB, t.s1), b = alloc_on(t.pool, 2 * MIB, t.s1);
    free_on(a, t.s1); /* free since 2 */
    sync(t.device, t.s1);
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB); /* age 0 */
    free_on(b, t.s1);
    alloc_on(t.pool, 2 * MIB, t.s1); /* takes one of them: no page is asked for; allocation 3 */
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    sync(t.device, t.s1); /* the other one's age is 1 */
    CHECK_EQ(pool_stats(t.pool).reserved, 2 * MIB);
    scene_end(&t);
}

/* ---- threshold, trim ------------------------------------------------------------------------------------------- */

static void a_synchronise_releases_down_to_the_threshold_and_no_further(void)
{
    struct scene t = eager("sliced(page_size=2MiB)");
    smp_allocation part[4];
    int i;
    for (i = 0; i < 4; ++i)
        part[i] = alloc_on(t.pool, 2 * MIB, t.s1);
    for (i = 0; i < 4; ++i)
        free_on(part[i], t.s1);
    sync(t.device, t.s1);
    CHECK_EQ(pool_stats(t.pool).reserved, 8 * MIB); /* never, outside the cuda preset */
    set_attribute(t.pool, 4, 5 * MIB);
    sync(t.device, t.s1);
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB); /* 8 and 6 are above 5, 4 is not */
    scene_end(&t);
}

static void trim_goes_from_the_last_entry_the_longest_unused_page_then_the_highest_address(void)
{
    struct scene t = eager("sliced(page_size=2MiB, max_slice_size=1MiB); sliced(page_size=4MiB)");
    smp_allocation small[2], big[3];
    int i;
    for (i = 0; i < 2; ++i)
        small[i] = alloc_on(t.pool, 1 * MIB, t.s1); /* one page at BASE */
    for (i = 0; i < 3; ++i)
        big[i] = alloc_on(t.pool, 4 * MIB, t.s1); /* BASE + 2, 6, 10 MiB */
    free_on(small[0], t.s1);
    free_on(small[1], t.s1); /* free since 5 */
    free_on(big[1], t.s1);   /* free since 5 */
    alloc_on(t.pool, 1 * MIB, t.s1);
    free_on(big[0], t.s1); /* free since 6 */
    free_on(big[2], t.s1); /* free since 6 */
    must(smp_pool_trim_to(t.pool, 10 * MIB)); /* 14 -> 10 MiB: big[1]'s page, the longest unused */
    CHECK_EQ(pool_stats(t.pool).reserved, 10 * MIB);
    CHECK_EQ(entry_stats(t.pool, 1).reserved, 8 * MIB);
    must(smp_pool_trim_to(t.pool, 6 * MIB)); /* of two equally old ones the higher, big[2]'s */
    CHECK_EQ(pool_stats(t.pool).reserved, 6 * MIB);
    CHECK_EQ(address(alloc_on(t.pool, 4 * MIB, t.s1)), BASE + 2 * MIB); /* big[0]'s is still there */
    scene_end(&t);
}

static void trim_passes_over_a_page_that_would_leave_too_little(void)
{
    struct scene t = eager("sliced(page_size=2MiB, max_slice_size=2MiB); sliced(page_size=8MiB)");
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1);
    free_on(alloc_on(t.pool, 8 * MIB, t.s1), t.s1);
    must(smp_pool_trim_to(t.pool, 5 * MIB)); /* the 8 MiB page may not go, the 2 MiB page may */
    CHECK_EQ(pool_stats(t.pool).reserved, 8 * MIB);
    scene_end(&t);
}

static void a_pool_has_the_threshold_never_and_policies_on_outside_the_cuda_preset(void)
{
    struct scene t = eager("sliced(page_size=2MiB)");
    CHECK_EQ(attribute(t.pool, 1), 1);
    CHECK_EQ(attribute(t.pool, 2), 1);
    CHECK_EQ(attribute(t.pool, 3), 1);
    CHECK_EQ(attribute(t.pool, 4), UINT64_MAX);
    scene_end(&t);
}

static void the_cap_of_a_pool_is_the_sum_of_its_entries_caps_if_each_has_one(void)
{
    static const struct {
        const char *spec;
        uint64_t cap;
    } pools[] = {
        {"sliced(page_size=4MiB, max_pool_size=8MiB)", 8 * MIB},
        {"sliced(page_size=4MiB, max_pool_size=8MiB); mapped(max_pool_size=16MiB)", 24 * MIB},
        {"sliced(page_size=4MiB, max_pool_size=8MiB); direct()", SMP_NONE},
        {"sliced(page_size=4MiB); mapped(max_pool_size=16MiB)", SMP_NONE},
        {"exclusive()", SMP_NONE},
    };
    size_t i;
    for (i = 0; i < sizeof pools / sizeof pools[0]; i++) {
        struct scene t = lazy(pools[i].spec);
        CHECK_EQ(attribute(t.pool, SMP_ATTRIBUTE_MAX_POOL_SIZE), pools[i].cap);
        CHECK_STATUS(smp_pool_set_attribute(t.pool, SMP_ATTRIBUTE_MAX_POOL_SIZE, 0), SMP_ERROR_INVALID_VALUE);
        scene_end(&t);
    }
}

static void a_released_pages_address_is_not_given_out_again(void)
{
    struct scene t = eager("sliced(page_size=2MiB)");
    free_on(alloc_on(t.pool, 512, t.s1), t.s1);
    must(smp_pool_trim_to(t.pool, 0));
    CHECK_EQ(pool_stats(t.pool).reserved, 0);
    CHECK_EQ(address(alloc_on(t.pool, 512, t.s1)), BASE + 2 * MIB);
    scene_end(&t);
}

/* ---- sizes and alignment --------------------------------------------------------------------------------------- */

static void a_larger_alignment_is_given_and_its_padding_is_used(void)
{
    struct scene t = lazy("sliced(page_size=4MiB)");
    smp_allocation a, b;
    alloc_on(t.pool, 512, t.s1);
    a = aligned_alloc_on(t.pool, 512, 4096, t.s1); /* needs 512 + 4096 - 512 bytes from BASE + 512 */
    CHECK_EQ(address(a), BASE + 4096);
    CHECK_EQ(block_size(a), 4096);
    CHECK_EQ(pool_stats(t.pool).used, 512 + 4096);
    CHECK_EQ(pool_stats(t.pool).requested, 1024);
    b = aligned_alloc_on(t.pool, 512, 16, t.s1); /* less than the device's: the device's */
    CHECK_EQ(address(b), BASE + 512 + 4096);
    CHECK_EQ(block_size(b), 512);
    scene_end(&t);
}

static void an_alignment_that_every_block_has_changes_nothing_and_a_bad_one_is_refused_though_a_block_is_at_hand(void)
{
    struct scene t = lazy("preset(mapped)");
    static const uint64_t good[] = {1, 16, 256, 512}, bad[] = {3, 511, 513, 768, UINT64_C(1) << 40, UINT64_MAX};
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation a = alloc_on(t.pool, 4096, t.s1);
    uint64_t place = address(a);
    size_t i;
    desc.stream = t.s1;
    desc.size = 4096;
    for (i = 0; i < sizeof good / sizeof *good; ++i) {
        CHECK_STATUS(smp_free_async(a, t.s1), SMP_SUCCESS);
        desc.alignment = good[i];
        CHECK_STATUS(smp_alloc_async_ex(t.pool, &desc, &a), SMP_SUCCESS);
        CHECK_EQ(address(a), place);
        CHECK_EQ(block_size(a), 4096);
        CHECK_EQ(allocation_info(a).reason, SMP_REASON_SAME_STREAM);
    }
    CHECK_STATUS(smp_free_async(a, t.s1), SMP_SUCCESS);
    for (i = 0; i < sizeof bad / sizeof *bad; ++i) {
        desc.alignment = bad[i];
        CHECK_REFUSED(smp_alloc_async_ex(t.pool, &desc, &a), SMP_ERROR_INVALID_VALUE, "alignment");
        CHECK_NULL(a);
    }
    CHECK_EQ(pool_stats(t.pool).live, 0);
    scene_end(&t);
}

static void a_request_whose_alignment_makes_it_outgrow_the_page_is_not_accepted(void)
{
    struct scene t = lazy("sliced(page_size=1MiB)");
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation a = NULL;
    desc.stream = t.s1;
    desc.alignment = 1 * MIB;
    desc.size = 1024; /* needs 1024 + 1 MiB - 512 bytes */
    CHECK_STATUS(smp_alloc_async_ex(t.pool, &desc, &a), SMP_ERROR_SIZE_NOT_ACCEPTED);
    CHECK_HAS(last_message(), "aligned to 1048576 it may take 1049088");
    desc.size = 512; /* needs the whole page */
    CHECK_STATUS(smp_alloc_async_ex(t.pool, &desc, &a), SMP_SUCCESS);
    CHECK_EQ(block_size(a), 1 * MIB);
    CHECK_EQ(address(a) % MIB, 0);
    scene_end(&t);
}

static void zero_bytes_get_a_distinct_block_of_one_alignment_unit(void)
{
    struct scene t = lazy("sliced(page_size=4MiB)");
    smp_allocation a = alloc_on(t.pool, 0, t.s1), b = alloc_on(t.pool, 0, t.s1);
    CHECK_EQ(address(a), BASE);
    CHECK_EQ(address(b), BASE + 512);
    CHECK_EQ(block_size(a), 512);
    CHECK_EQ(pool_stats(t.pool).used, 1024);
    CHECK_EQ(pool_stats(t.pool).requested, 0);
    CHECK_EQ(pool_stats(t.pool).live, 2);
    scene_end(&t);
}

static void host_ordered_zero_bytes_are_invalid_value_in_pools_as_cudas_own_only(void)
{
    const char *const refused[] = { "preset(cuda)", "like(cuda); sliced(page_size=4MiB)", "cuda(); cuda()" };
    const char *const served[] = { "sliced(page_size=4MiB)", "cuda(); direct()" };
    smp_allocation a = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct scene t = lazy(refused[i]);
        CHECK_STATUS(smp_alloc(t.pool, 0, &a), SMP_ERROR_INVALID_VALUE);
        CHECK_STATUS(smp_alloc_async(t.pool, 0, t.s1, &a), SMP_SUCCESS);
        scene_end(&t);
    }
    for (size_t i = 0; i < sizeof served / sizeof *served; i++) {
        struct scene t = lazy(served[i]);
        CHECK_STATUS(smp_alloc(t.pool, 0, &a), SMP_SUCCESS);
        scene_end(&t);
    }
}

static void another_alignment_and_granularity_of_the_device_are_kept(void)
{
    smp_device device = device_with(SMP_DEVICE_LAZY, SMP_NONE, 64, 64 * KIB);
    struct scene t = scene_on(device, "exclusive(max_alloc_size=0); sliced(page_size=128KiB, max_slice_size=1000); "
                                      "exclusive()");
    smp_allocation a = alloc_on(t.pool, 1, t.s1), b;
    CHECK_EQ(block_size(a), 64);
    CHECK_EQ(pool_stats(t.pool).reserved, 128 * KIB);
    CHECK_STATUS(try_alloc(&t, 1024), SMP_SUCCESS);
    CHECK_EQ(pool_stats(t.pool).reserved, 128 * KIB); /* 1000 rounds up to 1024: entry 1 */
    b = alloc_on(t.pool, 1025, t.s1);
    CHECK_EQ(entry_of(b), 2);
    CHECK_EQ(block_size(b), 64 * KIB);
    scene_end(&t);
}

/* ---- policies -------------------------------------------------------------------------------------------------- */

static void each_reuse_is_counted_under_its_reason(void)
{
    struct scene t = lazy("sliced(page_size=2MiB)");
    smp_allocation a = alloc_on(t.pool, 2 * MIB, t.s1);
    smp_pool_stats s;
    free_on(a, t.s1);
    a = alloc_on(t.pool, 2 * MIB, t.s1); /* same stream */
    free_on(a, t.s1);
    wait_for(t.device, t.s2, record_on(t.device, t.s1));
    a = alloc_on(t.pool, 2 * MIB, t.s2); /* event */
    free_on(a, t.s2);
    sync(t.device, t.s2);
    a = alloc_on(t.pool, 2 * MIB, t.s1); /* observed */
    free_on(a, t.s1);
    advance(t.device, t.s1, UINT64_MAX);
    a = alloc_on(t.pool, 2 * MIB, t.s2); /* opportunistic */
    wanted(a);
    free_on(a, t.s2);
    set_capacity(t.device, 2 * MIB);
    a = alloc_on(t.pool, 2 * MIB, t.s1); /* internal */
    s = pool_stats(t.pool);
    CHECK_EQ(s.reuse_fresh, 1);
    CHECK_EQ(s.reuse_same_stream, 1);
    CHECK_EQ(s.reuse_event, 1);
    CHECK_EQ(s.reuse_observed, 1);
    CHECK_EQ(s.reuse_opportunistic, 1);
    CHECK_EQ(s.reuse_internal, 1);
    CHECK_EQ(s.allocs, 6);
    CHECK_EQ(s.frees, 5);
    CHECK_EQ(s.live, 1);
    CHECK_EQ(s.pages, 1);
    CHECK_EQ(reason(a), SMP_REASON_INTERNAL);
    scene_end(&t);
}

static void a_refused_policy_leaves_the_block_alone(void)
{
    unsigned policy;
    for (policy = 1; policy <= 2; ++policy) {
        struct scene t = lazy("sliced(page_size=2MiB)");
        smp_allocation a = alloc_on(t.pool, 2 * MIB, t.s1);
        set_attribute(t.pool, policy, 0);
        free_on(a, t.s1);
        if (policy == 1)
            wait_for(t.device, t.s2, record_on(t.device, t.s1)); /* ordered, not executed */
        else
            advance(t.device, t.s1, UINT64_MAX); /* executed, not ordered */
        CHECK_EQ(address(alloc_on(t.pool, 2 * MIB, t.s2)), BASE + 2 * MIB);
        set_attribute(t.pool, policy, 1);
        CHECK_EQ(address(alloc_on(t.pool, 2 * MIB, t.s2)), BASE);
        scene_end(&t);
    }
}

static void opportunistic_reuse_asks_once_per_stream_and_makes_nothing_observed(void)
{
    struct scene t = lazy("sliced(page_size=2MiB)");
    smp_allocation a = alloc_on(t.pool, 2 * MIB, t.s1), b = alloc_on(t.pool, 2 * MIB, t.s1);
    free_on(a, t.s1);
    free_on(b, t.s1);
    CHECK_EQ(address(alloc_on(t.pool, 2 * MIB, t.s2)), BASE + 4 * MIB);
    CHECK_EQ(pool_stats(t.pool).progress_queries, 1); /* two candidates, one stream */
    advance(t.device, t.s1, UINT64_MAX);
    CHECK_EQ(address(alloc_on(t.pool, 2 * MIB, t.s2)), BASE);
    CHECK_EQ(pool_stats(t.pool).progress_queries, 2);
    CHECK_EQ(observed(t.device, t.s1), 0);
    CHECK_EQ(pool_stats(t.pool).pending, 1); /* b's block still is */
    scene_end(&t);
}

static void opportunistic_reuse_asks_at_most_eight_streams(void)
{
    struct scene t = lazy("sliced(page_size=2MiB)");
    smp_stream s[9];
    smp_allocation a[9];
    int i;
    for (i = 0; i < 9; ++i) {
        s[i] = new_stream(t.device);
        a[i] = alloc_on(t.pool, 2 * MIB, s[i]);
    }
    for (i = 0; i < 9; ++i)
        free_on(a[i], s[i]);
    advance(t.device, s[8], UINT64_MAX); /* the ninth by address, the only one that has run */
    CHECK_EQ(address(alloc_on(t.pool, 2 * MIB, t.s1)), BASE + 18 * MIB);
    CHECK_EQ(pool_stats(t.pool).progress_queries, 8);
    advance(t.device, s[7], UINT64_MAX);
    CHECK_EQ(address(alloc_on(t.pool, 2 * MIB, t.s1)), BASE + 14 * MIB);
    scene_end(&t);
}

/* ---- figures --------------------------------------------------------------------------------------------------- */

/* Whether the figures of a pool or an entry can be: nothing below zero, nothing out of order, all parts adding up. */
static int plausible(const smp_pool_stats *s)
{
    return s->requested <= s->used && s->used <= s->reserved && s->padding == s->used - s->requested &&
           s->used + s->pending_bytes <= s->reserved && s->largest_free <= s->reserved - s->used &&
           s->used <= s->used_high && s->reserved <= s->reserved_high && s->pages <= s->pages_high &&
           s->frees <= s->allocs && s->live == s->allocs - s->frees && s->page_frees <= s->page_allocs &&
           s->pages == s->page_allocs - s->page_frees &&
           s->allocs == s->reuse_same_stream + s->reuse_observed + s->reuse_event + s->reuse_opportunistic +
                            s->reuse_internal + s->reuse_fresh;
}

/* The figure that lies there. */
static uint64_t figure(const smp_pool_stats *s, size_t at)
{
    uint64_t value;
    memcpy(&value, (const char *)s + at, sizeof value);
    return value;
}

/* The sum of the figure that lies there over the entries. */
static uint64_t sum_of(const smp_pool_stats *entries, uint32_t count, size_t at)
{
    uint64_t sum = 0;
    uint32_t e;
    for (e = 0; e < count; ++e)
        sum += figure(&entries[e], at);
    return sum;
}

/* How many figures of the entries do not make the pool's, as smp_pool_get_entry_stats has it. No access has been noted. */
static uint64_t entries_that_do_not_add_up(smp_pool pool)
{
    static const size_t added[] = {
        offsetof(smp_pool_stats, requested),         offsetof(smp_pool_stats, used),
        offsetof(smp_pool_stats, reserved),          offsetof(smp_pool_stats, padding),
        offsetof(smp_pool_stats, live),              offsetof(smp_pool_stats, pending),
        offsetof(smp_pool_stats, pending_bytes),     offsetof(smp_pool_stats, allocs),
        offsetof(smp_pool_stats, frees),             offsetof(smp_pool_stats, pages),
        offsetof(smp_pool_stats, page_allocs),       offsetof(smp_pool_stats, page_frees),
        offsetof(smp_pool_stats, page_refusals),     offsetof(smp_pool_stats, release_failures),
        offsetof(smp_pool_stats, unordered_frees),   offsetof(smp_pool_stats, internal_waits),
        offsetof(smp_pool_stats, splits),            offsetof(smp_pool_stats, merges),
        offsetof(smp_pool_stats, reuse_same_stream), offsetof(smp_pool_stats, reuse_observed),
        offsetof(smp_pool_stats, reuse_event),       offsetof(smp_pool_stats, reuse_opportunistic),
        offsetof(smp_pool_stats, reuse_internal),    offsetof(smp_pool_stats, reuse_fresh),
        offsetof(smp_pool_stats, metadata_bytes),    offsetof(smp_pool_stats, chunk_moves),
        offsetof(smp_pool_stats, ranges),
    };
    static const size_t marks[] = { offsetof(smp_pool_stats, used_high), offsetof(smp_pool_stats, reserved_high),
                                    offsetof(smp_pool_stats, pages_high) };
    static const size_t of_the_pool[] = { offsetof(smp_pool_stats, failures), offsetof(smp_pool_stats, racing_frees),
                                          offsetof(smp_pool_stats, progress_queries),
                                          offsetof(smp_pool_stats, host_syncs) };
    smp_pool_stats all = pool_stats(pool), entries[8];
    uint64_t wrong = 0, calls = 0, largest = 0;
    size_t f;
    uint32_t e;
    for (e = 0; e < all.entry_count; ++e) {
        entries[e] = entry_stats(pool, e);
        wrong += entries[e].entry_count != all.entry_count;
        calls += entries[e].device_calls;
        if (entries[e].largest_free > largest)
            largest = entries[e].largest_free;
        for (f = 0; f < sizeof of_the_pool / sizeof *of_the_pool; ++f)
            wrong += figure(&entries[e], of_the_pool[f]) != 0;
    }
    wrong += all.device_calls != calls + all.progress_queries + all.host_syncs;
    wrong += all.largest_free != largest;
    for (f = 0; f < sizeof added / sizeof *added; ++f)
        wrong += figure(&all, added[f]) != sum_of(entries, all.entry_count, added[f]);
    for (f = 0; f < sizeof marks / sizeof *marks; ++f) {
        for (e = 0; e < all.entry_count; ++e)
            wrong += figure(&entries[e], marks[f]) > figure(&all, marks[f]);
        wrong += figure(&all, marks[f]) > sum_of(entries, all.entry_count, marks[f]);
    }
    return wrong;
}

/* Calls at random on a pool of several entries, with its figures looked at after each. */
static smp_pool_stats figures_after_calls_at_random(const char *spec)
{
    enum { HELD = 64 };
    struct scene t = lazy(spec);
    smp_allocation held[HELD];
    smp_stream s[3];
    uint64_t state = UINT64_C(0x9E3779B97F4A7C15), implausible = 0;
    smp_pool_stats all;
    int i;
    s[0] = t.s1;
    s[1] = t.s2;
    s[2] = LEGACY;
    memset(held, 0, sizeof held);
    set_capacity(t.device, 12 * MIB);
    for (i = 0; i < 8000; ++i) {
        uint64_t dice = test_random(&state) % 100;
        smp_allocation *slot = &held[test_random(&state) % HELD];
        smp_stream stream = s[test_random(&state) % 3];
        uint32_t e;
        if (dice < 70 && *slot == NULL) {
            smp_status status = smp_alloc_async(t.pool, test_random(&state) % (dice < 8 ? 3000000 : 10000), stream, slot);
            CHECK(status == SMP_SUCCESS || status == SMP_ERROR_OUT_OF_MEMORY);
        } else if (dice < 70) {
            if (dice < 5)
                must(smp_free(*slot));
            else
                free_on(*slot, stream);
            *slot = NULL;
        } else if (dice < 80) {
            advance(t.device, stream, test_random(&state) % 20);
        } else if (dice < 84) {
            sync(t.device, stream);
        } else if (dice < 86) {
            must(smp_pool_trim_to(t.pool, test_random(&state) % (4 * MIB)));
        } else if (dice < 88) {
            refuse_releases(t.device, test_random(&state) % 3);
        } else {
            wait_for(t.device, s[test_random(&state) % 3], record_on(t.device, stream));
        }
        all = pool_stats(t.pool);
        implausible += !plausible(&all);
        for (e = 0; e < all.entry_count; ++e) {
            smp_pool_stats entry = entry_stats(t.pool, e);
            implausible += !plausible(&entry);
        }
        implausible += entries_that_do_not_add_up(t.pool);
    }
    CHECK_EQ(implausible, 0);
    all = pool_stats(t.pool);
    scene_end(&t);
    return all;
}

static void figures_never_underflow_and_always_add_up(void)
{
    smp_pool_stats all = figures_after_calls_at_random(
        "sliced(page_size=64KiB, max_slice_size=8KiB, max_pool_size=256KiB, dealloc_period=9); direct(reclaim_at=6MiB); "
        "exclusive(dealloc_period=20)");
    CHECK(all.release_failures > 0);
    CHECK(all.failures > 0);
    CHECK(all.progress_queries > 0);
    all = figures_after_calls_at_random("sliced(page_size=2MiB, max_slice_size=64KiB, max_pool_size=2MiB); "
                                        "mapped(max_pool_size=8MiB); direct(); sync_on_oom(on)");
    CHECK(all.host_syncs > 0);
    CHECK(all.ranges > 0);
}

/* ---- mapped ---------------------------------------------------------------------------------------------------- */

/* Three blocks of twelve chunks of 2 MiB, the middle one freed on s1: of 44 chunks held 24 are live, twelve are idle in
 * the middle, and eight, which a pool this small may hold beyond what it uses, lie at the end. */
static void make_a_hole(struct scene *t)
{
    smp_allocation middle;
    alloc_on(t->pool, 24 * MIB, t->s1);
    middle = alloc_on(t->pool, 24 * MIB, t->s1);
    alloc_on(t->pool, 24 * MIB, t->s1);
    CHECK_EQ(pool_stats(t->pool).reserved, 88 * MIB);
    free_on(middle, t->s1);
}

static void a_mapped_pool_moves_idle_chunks_before_it_asks_for_more(void)
{
    struct scene t = lazy("mapped(); policies(internal_dependencies=off)");
    make_a_hole(&t);
    /* 40 chunks are the most used now, and eight more may be held: of eight missing ones four are moved. */
    CHECK_EQ(address(alloc_on(t.pool, 32 * MIB, t.s1)), BASE + 72 * MIB);
    CHECK_EQ(pool_stats(t.pool).reserved, 96 * MIB);
    CHECK_EQ(pool_stats(t.pool).chunk_moves, 4);
    scene_end(&t);
}

static void a_place_that_a_chunk_left_is_for_that_chunk_alone(void)
{
    struct scene t = lazy("mapped(); policies(internal_dependencies=off)");
    smp_allocation wide, low;
    uint64_t calls;
    make_a_hole(&t);
    wide = alloc_on(t.pool, 32 * MIB, t.s1);
    low = alloc_on(t.pool, 16 * MIB, t.s1);
    CHECK_EQ(address(low), BASE + 32 * MIB); /* the chunks that stayed */
    /* The chunks of the four places from BASE + 24 MiB on are in use elsewhere; a synchronise changes nothing. */
    CHECK_EQ(address(alloc_on(t.pool, 8 * MIB, t.s1)), BASE + 104 * MIB);
    must(smp_stream_synchronize(t.device, t.s1));
    CHECK_EQ(address(alloc_on(t.pool, 16 * MIB, t.s1)), BASE + 112 * MIB);
    /* Once they are free they come back, without a call to the device. */
    free_on(wide, t.s1);
    CHECK_EQ(address(alloc_on(t.pool, 16 * MIB, t.s1)), BASE + 72 * MIB);
    free_on(low, t.s1);
    calls = pool_stats(t.pool).device_calls;
    CHECK_EQ(address(alloc_on(t.pool, 24 * MIB, t.s1)), BASE + 24 * MIB);
    CHECK_EQ(pool_stats(t.pool).device_calls, calls);
    CHECK_EQ(pool_stats(t.pool).chunk_moves, 4);
    scene_end(&t);
}

static void what_is_done_again_on_the_only_stream_makes_no_call_to_the_device(void)
{
    struct scene t = lazy("mapped(); policies(internal_dependencies=off)");
    smp_allocation blocks[5];
    uint64_t places[5] = {0}, calls = 0;
    int round, i;
    for (round = 0; round < 5; ++round) {
        for (i = 0; i < 3; ++i) blocks[i] = alloc_on(t.pool, 24 * MIB, t.s1);
        free_on(blocks[1], t.s1);
        blocks[3] = alloc_on(t.pool, 32 * MIB, t.s1);
        blocks[4] = alloc_on(t.pool, 16 * MIB, t.s1);
        blocks[1] = blocks[4];
        if (round == 1) calls = pool_stats(t.pool).device_calls;
        for (i = 0; i < 4; ++i) {
            if (round == 1) places[i] = address(blocks[i]);
            if (round > 1) CHECK_EQ(address(blocks[i]), places[i]);
        }
        for (i = 0; i < 4; ++i) free_on(blocks[i], t.s1);
    }
    CHECK(pool_stats(t.pool).chunk_moves > 0);
    CHECK_EQ(pool_stats(t.pool).device_calls, calls);
    scene_end(&t);
}

/* s2 frees a block of s1's, and more beside it later. */
static void a_block_that_was_handed_over_is_ready_when_its_own_free_is_whatever_is_freed_beside_it(void)
{
    struct scene t = lazy("mapped(); policies(internal_dependencies=off)");
    smp_allocation batch = alloc_on(t.pool, 12 * MIB, t.s1), beside = alloc_on(t.pool, 2 * MIB, t.s2), again;
    smp_event ready, done;
    must(smp_event_create(t.device, 0, &ready));
    must(smp_event_create(t.device, 0, &done));
    must(smp_event_record(t.device, ready, t.s1));
    must(smp_stream_wait_event(t.device, t.s2, ready));
    free_on(batch, t.s2);
    must(smp_event_record(t.device, done, t.s2));
    free_on(beside, t.s2);
    /* Together they would be large enough, and what of s2's can merge does; but what was never used serves. */
    CHECK_EQ(address(alloc_on(t.pool, 14 * MIB, t.s2)), BASE + 14 * MIB);
    must(smp_event_synchronize(done));
    again = alloc_on(t.pool, 12 * MIB, t.s1);
    CHECK_EQ(address(again), BASE);
    CHECK_EQ(reason(again), SMP_REASON_OBSERVED);
    must(smp_event_destroy(ready));
    must(smp_event_destroy(done));
    scene_end(&t);
}

/* s2 frees two blocks of s1's, and s1 follows that. */
static void handed_over_blocks_come_back_together_to_a_stream_that_follows_their_frees(void)
{
    struct scene t = lazy("mapped(); policies(opportunistic=off, internal_dependencies=off)");
    smp_allocation one = alloc_on(t.pool, 4 * MIB, t.s1), two, again, other;
    smp_event done;
    alloc_on(t.pool, 2 * MIB, t.s1);
    two = alloc_on(t.pool, 6 * MIB, t.s1);
    must(smp_event_create(t.device, 0, &done));
    free_on(one, t.s2);
    free_on(two, t.s2);
    must(smp_event_record(t.device, done, t.s2));
    must(smp_stream_wait_event(t.device, t.s1, done));
    again = alloc_on(t.pool, 4 * MIB, t.s1);
    other = alloc_on(t.pool, 6 * MIB, t.s1);
    CHECK_EQ(address(again), BASE);
    CHECK_EQ(reason(again), SMP_REASON_EVENT);
    CHECK_EQ(address(other), BASE + 6 * MIB);
    CHECK_EQ(reason(other), SMP_REASON_SAME_STREAM);
    must(smp_event_destroy(done));
    scene_end(&t);
}

static void a_stream_waits_for_a_free_before_a_mapped_pool_holds_twice_what_it_ever_used(void)
{
    struct scene t = lazy("mapped()");
    smp_event ready;
    int i;
    must(smp_event_create(t.device, 0, &ready));
    for (i = 0; i < 20; ++i) {
        smp_allocation batch = alloc_on(t.pool, 32 * MIB, t.s1);
        must(smp_event_record(t.device, ready, t.s1));
        must(smp_stream_wait_event(t.device, t.s2, ready));
        free_on(batch, t.s2);
    }
    /* 64 MiB, and the room beyond: 16 MiB and a 32nd. */
    CHECK(pool_stats(t.pool).reserved <= 84 * MIB);
    CHECK_EQ(pool_stats(t.pool).used_high, 32 * MIB);
    must(smp_event_destroy(ready));
    scene_end(&t);
}

/* Blocks of one to four chunks come and go on s1 where at most twelve chunks may be held, so that chunks move all the time, in
 * ranges of four places. Returns how many ranges that took: with `runs`, what s1 was given has executed now and then. */
static uint64_t ranges_after_many_moves(int runs)
{
    struct scene t = lazy("mapped(range_size=8MiB, max_pool_size=24MiB)");
    smp_allocation live[16];
    uint32_t state = 7, count = 0, step;
    uint64_t ranges;
    for (step = 0; step < 3000; ++step) {
        state = state * 1664525u + 1013904223u;
        if (count > 0 && (state >> 16 & 1)) {
            uint32_t at = (state >> 20) % count;
            free_on(live[at], t.s1);
            live[at] = live[--count];
        } else if (count < 16) {
            smp_status status = smp_alloc_async(t.pool, ((state >> 17 & 3) + 1) * 2 * MIB, t.s1, &live[count]);
            if (status == SMP_SUCCESS) ++count;
        }
        if (runs && step % 40 == 0) must(smp_stream_synchronize(t.device, t.s1));
    }
    CHECK(pool_stats(t.pool).chunk_moves > 30);
    ranges = pool_stats(t.pool).ranges;
    while (count > 0) free_on(live[--count], t.s1);
    scene_end(&t);
    return ranges;
}

/* (As many as half a range has places, two, a chunk may keep.) */
static void of_many_places_left_a_chunk_drops_those_whose_points_have_executed(void)
{
    CHECK(ranges_after_many_moves(1) < ranges_after_many_moves(0));
}

/* A thousand chunks of 2 MiB stay; of single ones every other is free again. 1128 chunks are the most used, 24 more may be held,
 * and all but one at the end are live or single. */
static void a_mapped_pool_that_often_lacks_a_chunk_gets_a_little_more_room(void)
{
    struct scene t = lazy("mapped(range_size=16GiB); policies(internal_dependencies=off)");
    smp_allocation single[128], block;
    uint32_t i;
    alloc_on(t.pool, 2000 * MIB, t.s1);
    for (i = 0; i < 128; ++i) single[i] = alloc_on(t.pool, 2 * MIB, t.s1);
    for (i = 0; i < 128; i += 2) free_on(single[i], t.s1);
    alloc_on(t.pool, 42 * MIB, t.s1);
    alloc_on(t.pool, 6 * MIB, t.s1);
    CHECK_EQ(pool_stats(t.pool).reserved, 1153 * 2 * MIB);
    for (i = 0; i < 16; ++i) {
        block = alloc_on(t.pool, (2 + i) * 2 * MIB, t.s1);
        CHECK_EQ(pool_stats(t.pool).chunk_moves, i + 1);
        free_on(block, t.s1);
    }
    CHECK_EQ(pool_stats(t.pool).reserved, 1153 * 2 * MIB);
    /* A 32nd of what was ever used: 35 chunks. */
    alloc_on(t.pool, 36 * MIB, t.s1);
    CHECK_EQ(pool_stats(t.pool).chunk_moves, 16);
    CHECK_EQ(pool_stats(t.pool).reserved, 1163 * 2 * MIB);
    scene_end(&t);
}

static void what_a_block_leaves_of_a_moved_chunk_keeps_its_points(void)
{
    struct scene t = lazy("mapped(max_pool_size=20MiB); policies(internal_dependencies=off, opportunistic=off)");
    smp_allocation blocks[5], refused = NULL;
    smp_event event;
    int i;
    for (i = 0; i < 5; ++i) blocks[i] = alloc_on(t.pool, 4 * MIB, t.s1);
    free_on(blocks[1], t.s1);
    free_on(blocks[3], t.s1);
    event = record_on(t.device, t.s1);
    wait_for(t.device, t.s2, event);
    /* Three chunks come from two holes; of the third, half is left over. */
    CHECK_EQ(address(alloc_on(t.pool, 5 * MIB, t.s2)), BASE + 20 * MIB);
    CHECK_EQ(pool_stats(t.pool).chunk_moves, 3);
    /* Another stream is not ordered after s1's frees; s1 is. */
    CHECK_STATUS(smp_alloc_async(t.pool, 512, new_stream(t.device), &refused), SMP_ERROR_CAPACITY_EXCEEDED);
    CHECK_EQ(address(alloc_on(t.pool, MIB, t.s1)), BASE + 25 * MIB);
    must(smp_event_destroy(event));
    scene_end(&t);
}

/* ---- presets --------------------------------------------------------------------------------------------------- */

static void the_sub_slices_preset_is_a_ladder_of_slices_with_an_exclusive_tail(void)
{
    struct scene t = lazy("preset(sub-slices)");
    smp_allocation a;
    CHECK_EQ(entry_of(alloc_on(t.pool, 64 * KIB, t.s1)), 0);
    CHECK_EQ(pool_stats(t.pool).reserved, 2 * MIB);
    CHECK_EQ(entry_of(alloc_on(t.pool, 64 * KIB + 1, t.s1)), 1);
    CHECK_EQ(entry_stats(t.pool, 1).reserved, 32 * MIB);
    CHECK_EQ(entry_of(alloc_on(t.pool, 16 * MIB + 1, t.s1)), 2);
    CHECK_EQ(entry_stats(t.pool, 2).reserved, 256 * MIB);
    a = alloc_on(t.pool, 128 * MIB + 1, t.s1);
    CHECK_EQ(entry_of(a), 3);
    CHECK_EQ(block_size(a), 130 * MIB);
    CHECK_EQ(attribute(t.pool, 4), UINT64_MAX);
    scene_end(&t);
}

static void the_default_preset_maps_chunks_under_one_range(void)
{
    struct scene t = lazy("direct()");
    smp_pool pool = NULL;
    smp_pool_config config = SMP_POOL_CONFIG_INIT;
    smp_allocation a, b;
    must(smp_pool_create(t.device, NULL, &pool));
    a = alloc_on(pool, 16 * MIB + 1, t.s1);
    b = alloc_on(pool, 100, t.s1);
    CHECK_EQ(pool_stats(pool).entry_count, 1);
    CHECK_EQ(pool_stats(pool).ranges, 1);
    CHECK_EQ(address(b), address(a) + 16 * MIB + 512);
    CHECK_EQ(pool_stats(pool).reserved, 32 * MIB); /* chunks of 2 MiB: nine, and seven ahead */
    CHECK_EQ(pool_stats(pool).pages, 16);
    CHECK_EQ(attribute(pool, 4), UINT64_MAX);
    free_on(a, t.s1);
    must(smp_stream_synchronize(t.device, t.s1));
    must(smp_pool_trim_to(pool, 0));
    CHECK_EQ(pool_stats(pool).reserved, 2 * MIB); /* the last chunk holds b */
    must(smp_pool_destroy(pool));
    config.preset = SMP_PRESET_MAPPED;
    must(smp_pool_create(t.device, &config, &pool));
    CHECK_EQ(pool_stats(pool).entry_count, 1);
    must(smp_pool_destroy(pool));
    scene_end(&t);
}

static int keep_text(void *user, const char *text, uint64_t length)
{
    char *kept = (char *)user;
    memcpy(kept, text, length < 4095 ? (size_t)length : 4095);
    return 0;
}

static void on_a_device_that_cannot_map_the_default_preset_is_the_ladder_and_says_so(void)
{
    static char text[4096];
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_device_info info = SMP_DEVICE_INFO_INIT;
    smp_pool_entry entry = SMP_ENTRY_MAPPED_INIT(8 * MIB);
    smp_pool_config config = SMP_POOL_CONFIG_INIT;
    smp_device device = NULL;
    smp_pool pool = NULL, capped = NULL;
    desc.kind = SMP_DEVICE_MODEL;
    desc.flags = SMP_DEVICE_NO_MAPPING;
    must(smp_device_open(&desc, &device));
    must(smp_device_get_info(device, &info));
    CHECK_EQ(info.flags, SMP_DEVICE_NO_MAPPING);
    must(smp_pool_create(device, NULL, &pool));
    CHECK_EQ(pool_stats(pool).entry_count, 4);
    must(smp_pool_report(pool, SMP_REPORT_TEXT, keep_text, text));
    CHECK(strstr(text, "cannot map") != NULL);
    config.entries = &entry;
    config.entry_count = 1;
    must(smp_pool_create(device, &config, &capped));
    CHECK_EQ(pool_stats(capped).entry_count, 1);
    CHECK_EQ(attribute(capped, SMP_ATTRIBUTE_MAX_POOL_SIZE), 8 * MIB); /* a cap stays a cap */
    must(smp_pool_destroy(capped));
    must(smp_pool_destroy(pool));
    must(smp_device_close(device));
}

static void the_exclusive_pages_preset_has_size_buckets(void)
{
    struct scene t = lazy("preset(exclusive-pages)");
    smp_allocation a = alloc_on(t.pool, 2 * MIB, t.s1), b = alloc_on(t.pool, 2 * MIB + 1, t.s1);
    CHECK_EQ(entry_of(a), 0);
    CHECK_EQ(entry_of(b), 1);
    CHECK_EQ(block_size(b), 4 * MIB);
    CHECK_EQ(entry_of(alloc_on(t.pool, 8 * MIB + 1, t.s1)), 2);
    free_on(b, t.s1);
    CHECK_EQ(address(alloc_on(t.pool, 1, t.s1)), BASE + 16 * MIB); /* a bucket serves its own sizes only: a + b + 10 */
    scene_end(&t);
}

static void a_cuda_pool_gives_a_large_request_a_page_of_its_own_rounded_up_to_32_mib(void)
{
    struct scene t = lazy("preset(cuda)");
    alloc_on(t.pool, 32 * MIB, t.s1);
    CHECK_EQ(attribute(t.pool, 5), 32 * MIB);
    alloc_on(t.pool, 32 * MIB + 1, t.s1);
    CHECK_EQ(attribute(t.pool, 5), 96 * MIB);
    CHECK_EQ(attribute(t.pool, 7), 64 * MIB + 512);
    scene_end(&t);
}

TEST_MAIN(RUN_ANY_PACE(an_exclusive_block_is_its_whole_page)
          RUN_ANY_PACE(an_exclusive_page_may_serve_a_smaller_request_and_the_smallest_that_fits_is_taken)
          RUN_ANY_PACE(an_exclusive_page_too_small_is_not_used)
          RUN_ANY_PACE(max_alloc_size_is_judged_on_the_request_against_the_rounded_bound)
          RUN_ANY_PACE(an_exclusive_entry_of_zero_serves_zero_sized_requests_only)
          RUN(exclusive_pages_unused_for_a_whole_dealloc_period_go_back)
          RUN_ANY_PACE(without_a_dealloc_period_nothing_goes_back_by_itself)
          RUN(dealloc_period_is_looked_at_by_trim_and_synchronise_whatever_keep_and_threshold_say)
          RUN_ANY_PACE(a_direct_block_is_reused_by_exact_rounded_size_only)
          RUN(above_reclaim_at_free_pages_go_back_just_enough_and_the_longest_unused_first)
          RUN_ANY_PACE(reclaim_at_is_a_watermark_and_not_a_budget)
          RUN_ANY_PACE(reclaim_takes_no_page_whose_free_has_not_executed)
          RUN_ANY_PACE(without_reclaim_at_only_a_trim_gives_direct_pages_back)
          RUN_ANY_PACE(slices_are_cut_from_the_low_end_of_the_page)
          RUN_ANY_PACE(the_smallest_slice_that_fits_is_taken_and_among_equals_the_lowest_address)
          RUN_ANY_PACE(the_streams_own_frees_come_before_observed_ones)
          RUN_ANY_PACE(a_tiny_request_never_occupies_a_whole_big_free_block)
          RUN_ANY_PACE(neighbours_freed_on_one_stream_merge)
          RUN_ANY_PACE(neighbours_freed_on_different_streams_are_joined_only_when_all_their_points_allow)
          RUN_ANY_PACE(a_request_that_fits_a_span_of_neighbours_is_served_in_whatever_order_they_were_freed)
          RUN_ANY_PACE(max_slice_size_is_judged_on_the_request_against_the_rounded_bound)
          RUN_ANY_PACE(max_slice_size_defaults_to_the_page_size)
          RUN_ANY_PACE(max_pool_size_counts_whole_pages_and_can_be_reached)
          RUN_ANY_PACE(at_its_cap_an_entry_is_full_and_the_next_accepting_one_serves)
          RUN(with_every_entry_at_its_cap_policy_3_looks_across_the_entries)
          RUN_ANY_PACE(sliced_pages_unused_for_a_whole_dealloc_period_go_back)
          RUN_ANY_PACE(a_synchronise_releases_down_to_the_threshold_and_no_further)
          RUN(trim_goes_from_the_last_entry_the_longest_unused_page_then_the_highest_address)
          RUN(trim_passes_over_a_page_that_would_leave_too_little)
          RUN_ANY_PACE(a_pool_has_the_threshold_never_and_policies_on_outside_the_cuda_preset)
          RUN(the_cap_of_a_pool_is_the_sum_of_its_entries_caps_if_each_has_one)
          RUN(a_released_pages_address_is_not_given_out_again)
          RUN_ANY_PACE(an_alignment_that_every_block_has_changes_nothing_and_a_bad_one_is_refused_though_a_block_is_at_hand)
          RUN_ANY_PACE(a_larger_alignment_is_given_and_its_padding_is_used)
          RUN_ANY_PACE(a_request_whose_alignment_makes_it_outgrow_the_page_is_not_accepted)
          RUN_ANY_PACE(zero_bytes_get_a_distinct_block_of_one_alignment_unit)
          RUN_ANY_PACE(host_ordered_zero_bytes_are_invalid_value_in_pools_as_cudas_own_only)
          MODEL_ONLY(another_alignment_and_granularity_of_the_device_are_kept,
                     "CUDA's own alignment is 256 at least, and its mappings 2 MiB")
          RUN(each_reuse_is_counted_under_its_reason)
          RUN_ANY_PACE(a_refused_policy_leaves_the_block_alone)
          RUN_ANY_PACE(opportunistic_reuse_asks_once_per_stream_and_makes_nothing_observed)
          RUN_ANY_PACE(opportunistic_reuse_asks_at_most_eight_streams)
          RUN_ANY_PACE(figures_never_underflow_and_always_add_up)
          RUN_ANY_PACE(the_sub_slices_preset_is_a_ladder_of_slices_with_an_exclusive_tail)
          RUN_ANY_PACE(the_default_preset_maps_chunks_under_one_range)
          RUN_ANY_PACE(a_mapped_pool_moves_idle_chunks_before_it_asks_for_more)
          RUN_ANY_PACE(a_place_that_a_chunk_left_is_for_that_chunk_alone)
          RUN_ANY_PACE(what_is_done_again_on_the_only_stream_makes_no_call_to_the_device)
          RUN_ANY_PACE(a_block_that_was_handed_over_is_ready_when_its_own_free_is_whatever_is_freed_beside_it)
          RUN_ANY_PACE(handed_over_blocks_come_back_together_to_a_stream_that_follows_their_frees)
          RUN_ANY_PACE(a_stream_waits_for_a_free_before_a_mapped_pool_holds_twice_what_it_ever_used)
          RUN(of_many_places_left_a_chunk_drops_those_whose_points_have_executed)
          RUN_ANY_PACE(a_mapped_pool_that_often_lacks_a_chunk_gets_a_little_more_room)
          RUN_ANY_PACE(what_a_block_leaves_of_a_moved_chunk_keeps_its_points)
          RUN_ANY_PACE(on_a_device_that_cannot_map_the_default_preset_is_the_ladder_and_says_so)
          RUN_ANY_PACE(the_exclusive_pages_preset_has_size_buckets)
          RUN_ANY_PACE(a_cuda_pool_gives_a_large_request_a_page_of_its_own_rounded_up_to_32_mib))
