/* Conformance with CUDA's stream-ordered allocator, statement by statement, on the *cuda* preset.
 *
 * The statements (S1 to S49) are facts of the CUDA documentation and of programs run on the real driver; each test is
 * named for the one it checks. The device is lazy: a "kernel" is an operation that runs only when the stream is
 * advanced or synchronised, so that "the work is still pending" is a fact here and not a race. Statements about default
 * pools, the driver's pointers and graphs (S9, S32, S36 to S45) need the driver and are not here.
 *
 * On CUDA a kernel that is pending is one that stands behind the stand-in's gate, and what the library does not see
 * ordered is unproven, since the caller may have ordered it: no fault, but the point that is missing is named (S48, S49).
 *
 * One difference is meant: a null pool is an invalid handle here (S31), as every other null handle is.
 */
#include "support.h"

/* Two blocking streams, a lazy device, a cuda pool that keeps what it has reserved. */
struct scene {
    smp_device device;
    smp_pool pool;
    smp_stream s1, s2;
};

static struct scene scene_with(uint32_t policies, uint64_t threshold)
{
    struct scene t;
    t.device = lazy_device();
    t.pool = cuda_pool(t.device, policies, threshold);
    t.s1 = new_stream(t.device);
    t.s2 = new_stream(t.device);
    return t;
}

static void scene_end(struct scene *t)
{
    must(smp_pool_destroy(t->pool));
    must(smp_device_close(t->device));
}

static void s01_a_new_pool_has_all_policies_on_and_threshold_zero(void)
{
    smp_device device = lazy_device();
    smp_pool pool = pool_of(device, "preset(cuda)");
    CHECK_EQ(attribute(pool, 1), 1);
    CHECK_EQ(attribute(pool, 2), 1);
    CHECK_EQ(attribute(pool, 3), 1);
    CHECK_EQ(attribute(pool, 4), 0);
    must(smp_pool_destroy(pool));
    must(smp_device_close(device));
}

static void s02_a_new_pool_has_reserved_and_used_zero(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    uint32_t id;
    for (id = 5; id <= 8; ++id)
        CHECK_EQ(attribute(t.pool, id), 0);
    scene_end(&t);
}

static void s03_setting_a_read_only_attribute_is_invalid_value_and_changes_nothing(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    uint32_t id;
    alloc_on(t.pool, 4096, t.s1);
    CHECK_STATUS(smp_pool_set_attribute(t.pool, 5, 0), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_pool_set_attribute(t.pool, 7, 0), SMP_ERROR_INVALID_VALUE);
    for (id = 9; id <= 15; ++id)
        CHECK_STATUS(smp_pool_set_attribute(t.pool, id, 0), SMP_ERROR_INVALID_VALUE);
    CHECK_EQ(attribute(t.pool, 5), 32 * MIB);
    CHECK_EQ(attribute(t.pool, 7), 4096);
    scene_end(&t);
}

static void s04_setting_a_high_mark_to_non_zero_is_invalid_value(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    CHECK_STATUS(smp_pool_set_attribute(t.pool, 6, 1), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_pool_set_attribute(t.pool, 8, 1), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_pool_set_attribute(t.pool, 8, UINT64_MAX), SMP_ERROR_INVALID_VALUE);
    CHECK_EQ(attribute(t.pool, 6), 0);
    CHECK_EQ(attribute(t.pool, 8), 0);
    scene_end(&t);
}

static void s05_a_high_mark_set_to_zero_becomes_the_current_value(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    smp_allocation big;
    alloc_on(t.pool, 1 * MIB, t.s1);
    big = alloc_on(t.pool, 40 * MIB, t.s1); /* a page of its own, rounded up to 64 MiB */
    free_on(big, t.s1);
    sync(t.device, t.s1); /* threshold 0: the 64 MiB page goes back */
    CHECK_EQ(attribute(t.pool, 5), 32 * MIB);
    CHECK_EQ(attribute(t.pool, 6), 96 * MIB);
    CHECK_EQ(attribute(t.pool, 7), 1 * MIB);
    CHECK_EQ(attribute(t.pool, 8), 41 * MIB);
    set_attribute(t.pool, 6, 0);
    set_attribute(t.pool, 8, 0);
    CHECK_EQ(attribute(t.pool, 6), 32 * MIB);
    CHECK_EQ(attribute(t.pool, 8), 1 * MIB);
    scene_end(&t);
}

static void s06_an_unknown_attribute_or_a_null_value_is_invalid_value(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    static const uint32_t unknown[] = {0, 16, 99, 0x7FFFFFFF, 0xFFFFFFFF};
    size_t i;
    for (i = 0; i < sizeof unknown / sizeof *unknown; ++i) {
        uint64_t value = 77;
        CHECK_STATUS(smp_pool_get_attribute(t.pool, unknown[i], &value), SMP_ERROR_INVALID_VALUE);
        CHECK_EQ(value, 77);
        CHECK_STATUS(smp_pool_set_attribute(t.pool, unknown[i], 0), SMP_ERROR_INVALID_VALUE);
    }
    CHECK_STATUS(smp_pool_get_attribute(t.pool, 1, NULL), SMP_ERROR_INVALID_VALUE);
    scene_end(&t);
}

static void s07_twelve_bytes_use_512_and_reserve_32_mib(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    alloc_on(t.pool, 12, t.s1);
    CHECK_EQ(attribute(t.pool, 7), 512);
    CHECK_EQ(attribute(t.pool, 5), 33554432);
    scene_end(&t);
}

static void s08_used_rises_by_exactly_the_size_of_aligned_requests(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    alloc_on(t.pool, 2048, t.s1);
    CHECK_EQ(attribute(t.pool, 7), 2048);
    alloc_on(t.pool, 4096, t.s1);
    CHECK_EQ(attribute(t.pool, 7), 2048 + 4096);
    alloc_on(t.pool, 65536, t.s1);
    CHECK_EQ(attribute(t.pool, 7), 2048 + 4096 + 65536);
    scene_end(&t);
}

static void s10_used_drops_when_the_free_returns_before_any_synchronise(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    smp_allocation big;
    alloc_on(t.pool, 4 * KIB, t.s1);
    big = alloc_on(t.pool, 32 * MIB, t.s1);
    sync(t.device, t.s1);
    CHECK_EQ(attribute(t.pool, 7), 32 * MIB + 4096);
    free_on(big, t.s1);
    CHECK_EQ(attribute(t.pool, 7), 4096);
    CHECK_EQ(attribute(t.pool, 5), 64 * MIB);
    scene_end(&t);
}

static void s11_with_threshold_zero_a_synchronise_gives_the_free_page_back(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    smp_allocation a = alloc_on(t.pool, 1 * MIB, t.s1);
    free_on(a, t.s1);
    CHECK_EQ(attribute(t.pool, 5), 32 * MIB);
    sync(t.device, t.s1);
    CHECK_EQ(attribute(t.pool, 7), 0);
    CHECK_EQ(attribute(t.pool, 5), 0);
    scene_end(&t);
}

static void s12_with_threshold_max_a_synchronise_gives_nothing_back(void)
{
    struct scene t = scene_with(POLICIES_ALL, UINT64_MAX);
    smp_allocation a = alloc_on(t.pool, 1 * MIB, t.s1);
    free_on(a, t.s1);
    sync(t.device, t.s1);
    must(smp_device_synchronize(t.device));
    CHECK_EQ(attribute(t.pool, 5), 32 * MIB);
    CHECK_EQ(attribute(t.pool, 7), 0);
    scene_end(&t);
}

static void s13_trim_gives_back_only_what_the_host_has_seen_complete(void)
{
    struct scene t = scene_with(POLICIES_ALL, 128 * MIB);
    smp_allocation big;
    alloc_on(t.pool, 4 * KIB, t.s1);
    big = alloc_on(t.pool, 32 * MIB, t.s1);
    kernel(t.device, t.s1, 1);
    free_on(big, t.s1);
    CHECK_EQ(attribute(t.pool, 5), 64 * MIB);
    must(smp_pool_trim_to(t.pool, 0)); /* the free has not run */
    CHECK_EQ(attribute(t.pool, 5), 64 * MIB);
    advance(t.device, t.s1, UINT64_MAX); /* it has run, but the host has not seen it */
    must(smp_pool_trim_to(t.pool, 0));
    CHECK_EQ(attribute(t.pool, 5), 64 * MIB);
    sync(t.device, t.s1); /* below the threshold: nothing goes back */
    CHECK_EQ(attribute(t.pool, 5), 64 * MIB);
    must(smp_pool_trim_to(t.pool, 0));
    CHECK_EQ(attribute(t.pool, 5), 32 * MIB);
    CHECK_EQ(attribute(t.pool, 7), 4096);
    scene_end(&t);
}

static void s14_trim_to_at_least_reserved_changes_nothing(void)
{
    struct scene t = scene_with(POLICIES_ALL, UINT64_MAX);
    smp_allocation big;
    alloc_on(t.pool, 4 * KIB, t.s1);
    big = alloc_on(t.pool, 32 * MIB, t.s1);
    free_on(big, t.s1);
    sync(t.device, t.s1);
    must(smp_pool_trim_to(t.pool, 64 * MIB));
    CHECK_EQ(attribute(t.pool, 5), 64 * MIB);
    must(smp_pool_trim_to(t.pool, 65 * MIB));
    CHECK_EQ(attribute(t.pool, 5), 64 * MIB);
    must(smp_pool_trim_to(t.pool, UINT64_MAX));
    CHECK_EQ(attribute(t.pool, 5), 64 * MIB);
    must(smp_pool_trim_to(t.pool, 64 * MIB - 1)); /* a page may go only if 64 MiB - 1 remain: none may */
    CHECK_EQ(attribute(t.pool, 5), 64 * MIB);
    must(smp_pool_trim_to(t.pool, 32 * MIB));
    CHECK_EQ(attribute(t.pool, 5), 32 * MIB);
    scene_end(&t);
}

static void s15_trim_with_a_live_block_in_the_only_page_changes_nothing(void)
{
    struct scene t = scene_with(POLICIES_ALL, UINT64_MAX);
    smp_allocation a = alloc_on(t.pool, 4 * KIB, t.s1);
    smp_allocation b = alloc_on(t.pool, 4 * MIB, t.s1);
    free_on(b, t.s1);
    sync(t.device, t.s1);
    must(smp_pool_trim_to(t.pool, 0));
    CHECK_EQ(attribute(t.pool, 5), 32 * MIB);
    CHECK_EQ(attribute(t.pool, 7), 4096);
    CHECK(smp_allocation_ptr(a) != NULL);
    scene_end(&t);
}

static void s16_same_stream_free_then_alloc_gives_the_same_address_with_policies_off(void)
{
    struct scene t = scene_with(0, 0);
    smp_allocation a, b;
    uint64_t first;
    a = alloc_on(t.pool, 1 * MIB, t.s1);
    first = address(a);
    kernel(t.device, t.s1, 1);
    free_on(a, t.s1);
    b = alloc_on(t.pool, 1 * MIB, t.s1);
    CHECK_EQ(address(b), first);
    CHECK_EQ(reason(b), SMP_REASON_SAME_STREAM);
    scene_end(&t);
}

static void s17_after_a_synchronise_another_stream_gets_the_same_address_with_policies_off(void)
{
    struct scene t = scene_with(0, UINT64_MAX);
    smp_allocation a, b;
    uint64_t first;
    a = alloc_on(t.pool, 1 * MIB, t.s1);
    first = address(a);
    kernel(t.device, t.s1, 1);
    free_on(a, t.s1);
    sync(t.device, t.s1);
    b = alloc_on(t.pool, 1 * MIB, t.s2);
    CHECK_EQ(address(b), first);
    CHECK_EQ(reason(b), SMP_REASON_OBSERVED);
    scene_end(&t);
}

/* s1: alloc, kernel, free, record e. s2: wait e, alloc. Returns whether s2 got s1's address, work still pending. */
static int after_an_event(unsigned policies, uint32_t *why)
{
    struct scene t = scene_with(policies, 0);
    smp_allocation a, b;
    smp_event e;
    uint64_t first;
    int same;
    a = alloc_on(t.pool, 1 * MIB, t.s1);
    first = address(a);
    kernel(t.device, t.s1, 1);
    free_on(a, t.s1);
    e = record_on(t.device, t.s1);
    wait_for(t.device, t.s2, e);
    b = alloc_on(t.pool, 1 * MIB, t.s2);
    same = address(b) == first;
    *why = reason(b);
    CHECK_EQ(executed(t.device, t.s1), 0); /* the work is pending all along */
    scene_end(&t);
    return same;
}

static void s18_a_free_before_an_event_waited_on_is_reused_by_policy_1_alone(void)
{
    uint32_t why = 99;
    CHECK(after_an_event(POLICY_EVENT, &why));
    CHECK_EQ(why, SMP_REASON_EVENT);
}

static void s19_with_policy_1_off_an_event_does_not_make_a_free_reusable(void)
{
    uint32_t why = 99;
    CHECK(!after_an_event(0, &why));
    CHECK_EQ(why, SMP_REASON_FRESH);
    CHECK(!after_an_event(POLICY_OPPORTUNISTIC | POLICY_INTERNAL, &why));
    CHECK_EQ(why, SMP_REASON_FRESH);
}

static void s20_an_event_recorded_before_the_free_is_no_dependency(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    smp_allocation a, b;
    smp_event e;
    a = alloc_on(t.pool, 1 * MIB, t.s1);
    kernel(t.device, t.s1, 1);
    e = record_on(t.device, t.s1);
    free_on(a, t.s1);
    wait_for(t.device, t.s2, e);
    {
        uint64_t first = BASE;
        b = alloc_on(t.pool, 1 * MIB, t.s2);
        CHECK_EQ(address(b), first + 1 * MIB); /* the never-used rest of the page */
    }
    CHECK_EQ(reason(b), SMP_REASON_FRESH);
    scene_end(&t);
}

static void s21_a_dependency_through_a_third_stream_counts(void)
{
    struct scene t = scene_with(POLICY_EVENT, 0);
    smp_stream s3 = new_stream(t.device);
    smp_allocation a = alloc_on(t.pool, 1 * MIB, t.s1), b;
    uint64_t first = address(a);
    kernel(t.device, t.s1, 1);
    free_on(a, t.s1);
    wait_for(t.device, t.s2, record_on(t.device, t.s1));
    wait_for(t.device, s3, record_on(t.device, t.s2));
    b = alloc_on(t.pool, 1 * MIB, s3);
    CHECK_EQ(address(b), first);
    CHECK_EQ(reason(b), SMP_REASON_EVENT);
    CHECK_EQ(executed(t.device, t.s1), 0);
    scene_end(&t);
}

static void s22_finished_work_is_reused_by_policy_2_alone(void)
{
    struct scene t = scene_with(POLICY_OPPORTUNISTIC, 0);
    smp_allocation a = alloc_on(t.pool, 1 * MIB, t.s1), b;
    uint64_t first = address(a);
    kernel(t.device, t.s1, 1);
    free_on(a, t.s1);
    /* Allocation, kernel, free; on CUDA the kernel, and the event that the free records. */
    CHECK_EQ(advance(t.device, t.s1, UINT64_MAX), BY_DEVICE(3, 2));
    b = alloc_on(t.pool, 1 * MIB, t.s2);
    CHECK_EQ(address(b), first);
    CHECK_EQ(reason(b), SMP_REASON_OPPORTUNISTIC);
    scene_end(&t);
}

static void s23_finished_but_not_synchronised_is_another_address_with_policies_off(void)
{
    struct scene t = scene_with(0, 0);
    smp_allocation a = alloc_on(t.pool, 1 * MIB, t.s1), b;
    uint64_t first = address(a);
    kernel(t.device, t.s1, 1);
    free_on(a, t.s1);
    advance(t.device, t.s1, UINT64_MAX);
    CHECK_STATUS(smp_stream_query(t.device, t.s1), SMP_SUCCESS); /* a query's success is no synchronise */
    b = alloc_on(t.pool, 1 * MIB, t.s2);
    CHECK_EQ(address(b), first + 1 * MIB);
    CHECK_EQ(reason(b), SMP_REASON_FRESH);
    scene_end(&t);
}

static void s24_a_pending_free_without_dependency_is_not_reused_while_there_is_room(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    smp_allocation a = alloc_on(t.pool, 32 * MIB, t.s1), b;
    uint64_t first = address(a);
    kernel(t.device, t.s1, 1);
    free_on(a, t.s1);
    b = alloc_on(t.pool, 32 * MIB, t.s2);
    CHECK_EQ(address(b), first + 32 * MIB);
    CHECK_EQ(reason(b), SMP_REASON_FRESH);
    CHECK_EQ(attribute(t.pool, 5), 64 * MIB);
    scene_end(&t);
}

/* The device has one page's worth; s1's free of it is pending. Gives the status of s2's allocation. */
static smp_status with_the_pool_full(struct scene *t, unsigned policies, smp_allocation *b)
{
    smp_allocation a;
    *t = scene_with(policies, 0);
    set_capacity(t->device, 32 * MIB);
    a = alloc_on(t->pool, 32 * MIB, t->s1); /* s1: 1 */
    kernel(t->device, t->s1, 1);            /* s1: 2 */
    free_on(a, t->s1);                      /* s1: 3 */
    *b = (smp_allocation)(uintptr_t)1;
    return smp_alloc_async(t->pool, 32 * MIB, t->s2, b);
}

static void s25_with_the_pool_full_policy_3_alone_makes_the_stream_wait_for_the_free(void)
{
    struct scene t;
    smp_allocation b;
    CHECK_STATUS(with_the_pool_full(&t, POLICY_INTERNAL, &b), SMP_SUCCESS);
    CHECK_EQ(address(b), BASE);
    CHECK_EQ(reason(b), SMP_REASON_INTERNAL);
    kernel(t.device, t.s2, 1);
    CHECK_EQ(advance(t.device, t.s2, UINT64_MAX), 0); /* s2's later work waits */
    if (on_cuda()) {
        CHECK_EQ(advance(t.device, t.s1, 1), 1); /* the kernel ran, the event of the free has not */
        CHECK_EQ(advance(t.device, t.s2, UINT64_MAX), 0);
        CHECK_EQ(advance(t.device, t.s1, 1), 1);
        CHECK_EQ(advance(t.device, t.s2, UINT64_MAX), 2); /* the inserted wait, the kernel */
    } else {
        CHECK_EQ(advance(t.device, t.s1, 2), 2); /* the kernel ran, the free has not */
        CHECK_EQ(advance(t.device, t.s2, UINT64_MAX), 0);
        CHECK_EQ(advance(t.device, t.s1, 1), 1);
        CHECK_EQ(advance(t.device, t.s2, UINT64_MAX), 3); /* the inserted wait, the allocation, the kernel */
    }
    CHECK_EQ(pool_stats(t.pool).internal_waits, 1);
    scene_end(&t);
}

static void s26_with_the_pool_full_and_policy_3_off_it_is_out_of_memory(void)
{
    struct scene t;
    smp_allocation b;
    CHECK_STATUS(with_the_pool_full(&t, POLICY_EVENT | POLICY_OPPORTUNISTIC, &b), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_NULL(b);
    CHECK_EQ(attribute(t.pool, 5), 32 * MIB);
    CHECK_EQ(attribute(t.pool, 7), 0);
    CHECK_EQ(submitted(t.device, t.s2), 0); /* a call that fails takes no sequence number */
    scene_end(&t);
}

/* s1: alloc, kernel, free. Legacy stream: one operation. `s2`: alloc. */
static void through_the_legacy_stream(int non_blocking, uint64_t expected, uint32_t why)
{
    struct scene t = scene_with(POLICY_EVENT, 0);
    smp_stream s2 = non_blocking ? new_non_blocking_stream(t.device) : t.s2;
    smp_allocation a = alloc_on(t.pool, 1 * MIB, t.s1), b;
    kernel(t.device, t.s1, 1);
    free_on(a, t.s1);
    kernel(t.device, LEGACY, 1);
    b = alloc_on(t.pool, 1 * MIB, s2);
    CHECK_EQ(address(b), expected);
    CHECK_EQ(reason(b), why);
    CHECK_EQ(executed(t.device, t.s1), 0);
    scene_end(&t);
}

static void s27_work_on_the_legacy_stream_orders_blocking_streams(void)
{
    through_the_legacy_stream(0, BASE, SMP_REASON_EVENT);
}

static void s28_a_non_blocking_stream_is_not_ordered_by_the_legacy_stream(void)
{
    through_the_legacy_stream(1, BASE + 1 * MIB, SMP_REASON_FRESH);
}

static void s29_a_maximum_of_1_mib_is_rounded_up_and_33_mib_are_out_of_memory(void)
{
    smp_device device = lazy_device();
    smp_pool pool = cuda_pool_capped(device, 1 * MIB);
    smp_stream s = new_stream(device);
    smp_allocation a = NULL;
    CHECK(attribute(pool, 13) >= 1 * MIB);
    CHECK_EQ(attribute(pool, 13), 32 * MIB);
    CHECK_STATUS(smp_alloc_async(pool, 33 * MIB, s, &a), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_NULL(a);
    CHECK_STATUS(smp_alloc_async(pool, 32 * MIB, s, &a), SMP_SUCCESS); /* what it was rounded up to is usable */
    CHECK_EQ(attribute(pool, 5), 32 * MIB);
    must(smp_pool_destroy(pool));
    must(smp_device_close(device));
}

static void s30_out_of_memory_sets_the_out_pointer_to_null(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    smp_allocation a = (smp_allocation)(uintptr_t)0x1234;
    void *ptr = &t;
    set_capacity(t.device, 0);
    CHECK_STATUS(smp_alloc_async(t.pool, 1 * MIB, t.s1, &a), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_NULL(a);
    CHECK_STATUS(smp_alloc_ptr_async(t.pool, 1 * MIB, t.s1, &ptr), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_NULL(ptr);
    a = (smp_allocation)(uintptr_t)0x1234;
    CHECK_STATUS(smp_alloc(t.pool, 1 * MIB, &a), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_NULL(a);
    scene_end(&t);
}

static void s31_size_max_is_out_of_memory_and_null_arguments_are_refused(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    smp_allocation a = (smp_allocation)(uintptr_t)0x1234;
    CHECK_STATUS(smp_alloc_async(t.pool, UINT64_MAX, t.s1, &a), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_NULL(a);
    CHECK_STATUS(smp_alloc_async(t.pool, 512, t.s1, NULL), SMP_ERROR_INVALID_VALUE);
    CHECK_STATUS(smp_alloc_async(NULL, 512, t.s1, &a), SMP_ERROR_INVALID_HANDLE);
    CHECK_EQ(pool_stats(t.pool).allocs, 0);
    CHECK_EQ(attribute(t.pool, 5), 0);
    CHECK_EQ(submitted(t.device, t.s1), 0);
    scene_end(&t);
}

static void s33_after_its_pool_is_destroyed_a_live_block_stays_usable_and_its_free_succeeds(void)
{
    smp_device device = host_backed_device();
    smp_pool pool = pool_of(device, "preset(cuda)");
    smp_stream s = new_stream(device);
    smp_allocation a = alloc_on(pool, 4 * KIB, s), none = NULL;
    unsigned char *bytes = (unsigned char *)smp_allocation_ptr(a), there[4 * KIB], back[4 * KIB];
    CHECK_STATUS(smp_pool_destroy(pool), SMP_SUCCESS);
    CHECK(bytes != NULL);
    memset(there, 0x5A, sizeof there);
    memset(back, 0, sizeof back);
    write_bytes(bytes, there, sizeof there, s);
    read_bytes(back, bytes, sizeof back, s);
    CHECK_EQ(memcmp(there, back, sizeof back), 0);
    CHECK_STATUS(smp_alloc_async(pool, 512, s, &none), SMP_ERROR_DESTROYED);
    CHECK_EQ(device_info(device).reserved, 32 * MIB);
    CHECK_STATUS(smp_free_async(a, s), SMP_SUCCESS);
    must(smp_device_synchronize(device));
    CHECK_EQ(device_info(device).reserved, 0); /* the memory went with the last block */
    must(smp_device_close(device));
}

static void s48_an_access_before_the_allocation_or_after_the_free_is_reported(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    smp_allocation a = alloc_on(t.pool, 4 * KIB, t.s1);
    const void *ptr = smp_allocation_ptr(a);
    smp_access_verdict v;
    v = verdict_of(t.device, ptr, 4 * KIB, t.s2, SMP_ACCESS_READ); /* s2 may run before the allocation does */
    CHECK_EQ(v.order, NOT_ORDERED);
    CHECK_EQ(v.faults, BY_DEVICE(SMP_FAULT_BEFORE_ALLOCATION, 0));
    CHECK_EQ(v.missing_stream_id, 1); /* s1 ... */
    CHECK_EQ(v.missing_seq, 1);       /* ... at the allocation */
    v = verdict_of(t.device, ptr, 4 * KIB, t.s1, SMP_ACCESS_READ);
    CHECK_EQ(v.order, SMP_ORDER_PROVED);
    CHECK_EQ(v.faults, 0);
    free_on(a, t.s1);
    v = verdict_of(t.device, ptr, 4 * KIB, t.s1, SMP_ACCESS_READ);
    CHECK_EQ(v.order, SMP_ORDER_REFUTED);
    CHECK_EQ(v.faults, SMP_FAULT_AFTER_FREE);
    scene_end(&t);
}

static void s49_an_access_on_a_second_stream_with_no_ordering_is_a_race(void)
{
    struct scene t = scene_with(POLICIES_ALL, 0);
    smp_allocation a = alloc_on(t.pool, 4 * KIB, t.s1);
    const void *ptr = smp_allocation_ptr(a);
    smp_access_verdict v;
    wait_for(t.device, t.s2, record_on(t.device, t.s1)); /* s2 comes after the allocation ... */
    v = verdict_of(t.device, ptr, 4 * KIB, t.s1, SMP_ACCESS_WRITE);
    CHECK_EQ(v.order, SMP_ORDER_PROVED);
    CHECK_EQ(v.faults, 0);
    v = verdict_of(t.device, ptr, 4 * KIB, t.s2, SMP_ACCESS_WRITE); /* ... but not after the write */
    CHECK_EQ(v.order, NOT_ORDERED);
    CHECK_EQ(v.faults, BY_DEVICE(SMP_FAULT_RACE, 0));
    scene_end(&t);
}

TEST_MAIN(RUN_ANY_PACE(s01_a_new_pool_has_all_policies_on_and_threshold_zero)
          RUN_ANY_PACE(s02_a_new_pool_has_reserved_and_used_zero)
          RUN_ANY_PACE(s03_setting_a_read_only_attribute_is_invalid_value_and_changes_nothing)
          RUN_ANY_PACE(s04_setting_a_high_mark_to_non_zero_is_invalid_value)
          RUN_ANY_PACE(s05_a_high_mark_set_to_zero_becomes_the_current_value)
          RUN_ANY_PACE(s06_an_unknown_attribute_or_a_null_value_is_invalid_value)
          RUN_ANY_PACE(s07_twelve_bytes_use_512_and_reserve_32_mib)
          RUN_ANY_PACE(s08_used_rises_by_exactly_the_size_of_aligned_requests)
          RUN_ANY_PACE(s10_used_drops_when_the_free_returns_before_any_synchronise)
          RUN_ANY_PACE(s11_with_threshold_zero_a_synchronise_gives_the_free_page_back)
          RUN_ANY_PACE(s12_with_threshold_max_a_synchronise_gives_nothing_back)
          RUN_ANY_PACE(s13_trim_gives_back_only_what_the_host_has_seen_complete)
          RUN_ANY_PACE(s14_trim_to_at_least_reserved_changes_nothing)
          RUN_ANY_PACE(s15_trim_with_a_live_block_in_the_only_page_changes_nothing)
          RUN_ANY_PACE(s16_same_stream_free_then_alloc_gives_the_same_address_with_policies_off)
          RUN_ANY_PACE(s17_after_a_synchronise_another_stream_gets_the_same_address_with_policies_off)
          RUN_ANY_PACE(s18_a_free_before_an_event_waited_on_is_reused_by_policy_1_alone)
          RUN(s19_with_policy_1_off_an_event_does_not_make_a_free_reusable)
          RUN(s20_an_event_recorded_before_the_free_is_no_dependency)
          RUN_ANY_PACE(s21_a_dependency_through_a_third_stream_counts)
          RUN(s22_finished_work_is_reused_by_policy_2_alone)
          RUN_ANY_PACE(s23_finished_but_not_synchronised_is_another_address_with_policies_off)
          RUN(s24_a_pending_free_without_dependency_is_not_reused_while_there_is_room)
          RUN(s25_with_the_pool_full_policy_3_alone_makes_the_stream_wait_for_the_free)
          RUN(s26_with_the_pool_full_and_policy_3_off_it_is_out_of_memory)
          RUN_ANY_PACE(s27_work_on_the_legacy_stream_orders_blocking_streams)
          RUN_ANY_PACE(s28_a_non_blocking_stream_is_not_ordered_by_the_legacy_stream)
          RUN_ANY_PACE(s29_a_maximum_of_1_mib_is_rounded_up_and_33_mib_are_out_of_memory)
          RUN_ANY_PACE(s30_out_of_memory_sets_the_out_pointer_to_null)
          RUN_ANY_PACE(s31_size_max_is_out_of_memory_and_null_arguments_are_refused)
          RUN_ANY_PACE(s33_after_its_pool_is_destroyed_a_live_block_stays_usable_and_its_free_succeeds)
          RUN_ANY_PACE(s48_an_access_before_the_allocation_or_after_the_free_is_reported)
          RUN_ANY_PACE(s49_an_access_on_a_second_stream_with_no_ordering_is_a_race))
