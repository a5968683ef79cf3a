/* Out of memory: which status it is, the steps taken before giving up, the callback, and what the message tells.
 *
 * The steps, in order: give back what is free and executed (sibling pools too) and ask again; policy 3; a device
 * synchronise, if the pool opted in; the callback; fail with no block changed.
 */
#include "support.h"

struct scene {
    smp_device device;
    smp_pool pool;
    smp_stream s1, s2;
};

static struct scene scene_of(smp_device device, const char *spec, uint64_t capacity)
{
    struct scene t;
    t.device = device;
    t.pool = pool_of(device, spec);
    t.s1 = new_stream(device);
    t.s2 = new_stream(device);
    set_capacity(device, capacity);
    return t;
}

static struct scene lazy(const char *spec, uint64_t capacity)
{
    return scene_of(lazy_device(), spec, capacity);
}

static struct scene eager(const char *spec, uint64_t capacity)
{
    return scene_of(eager_device(), spec, capacity);
}

static void scene_end(struct scene *t)
{
    must(smp_pool_destroy(t->pool));
    must(smp_device_close(t->device));
}

static smp_status try_alloc(smp_pool pool, uint64_t size, smp_stream stream)
{
    smp_allocation a = NULL;
    smp_status status = smp_alloc_async(pool, size, stream, &a);
    CHECK((status == SMP_SUCCESS) == (a != NULL));
    return status;
}

/* ---- which status ---------------------------------------------------------------------------------------------- */

static void a_device_that_refuses_makes_out_of_memory(void)
{
    struct scene t = eager("sliced(page_size=2MiB)", 3 * MIB);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(pool_stats(t.pool).failures, 1);
    CHECK(pool_stats(t.pool).page_refusals >= 1);
    scene_end(&t);
}

static void only_caps_in_the_way_make_capacity_exceeded(void)
{
    struct scene t = eager("sliced(page_size=2MiB, max_pool_size=2MiB)", UINT64_MAX);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_ERROR_CAPACITY_EXCEEDED);
    CHECK_EQ(pool_stats(t.pool).page_refusals, 0);
    CHECK_HAS(last_message(), "cap");
    scene_end(&t);
}

static void a_cap_and_a_refusal_together_are_out_of_memory(void)
{
    struct scene t = eager("sliced(page_size=2MiB, max_pool_size=2MiB); sliced(page_size=4MiB)", 2 * MIB);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    scene_end(&t);
}

static void the_cuda_preset_answers_out_of_memory_at_its_cap(void)
{
    struct scene t = eager("direct()", UINT64_MAX);
    must(smp_pool_destroy(t.pool));
    t.pool = cuda_pool_capped(t.device, 1 * MIB);
    CHECK_STATUS(try_alloc(t.pool, 32 * MIB, t.s1), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(t.pool, 512, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(pool_stats(t.pool).page_refusals, 0);
    scene_end(&t);
}

static void a_size_no_entry_accepts_is_size_not_accepted_and_asks_nobody(void)
{
    struct scene t = eager("sliced(page_size=2MiB)", 0);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB + 1, t.s1), SMP_ERROR_SIZE_NOT_ACCEPTED);
    CHECK_HAS(last_message(), "2097153");
    CHECK_HAS(last_message(), "largest has 2097152");
    CHECK_STATUS(try_alloc(t.pool, UINT64_MAX, t.s1), SMP_ERROR_SIZE_NOT_ACCEPTED);
    CHECK_EQ(pool_stats(t.pool).page_refusals, 0);
    scene_end(&t);
}

static void a_size_above_2_to_the_47_is_out_of_memory_where_an_entry_accepts_it(void)
{
    struct scene t = eager("exclusive()", UINT64_MAX);
    CHECK_STATUS(try_alloc(t.pool, (UINT64_C(1) << 47) + 1, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_STATUS(try_alloc(t.pool, UINT64_MAX, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_STATUS(try_alloc(t.pool, UINT64_MAX - 511, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(pool_stats(t.pool).reserved, 0);
    CHECK_EQ(pool_stats(t.pool).failures, 3);
    scene_end(&t);
}

static void a_failure_changes_no_block_and_no_figure_but_the_counts_of_failures(void)
{
    struct scene t = lazy("sliced(page_size=2MiB)", 2 * MIB);
    smp_allocation a = alloc_on(t.pool, 1 * MIB, t.s1);
    smp_pool_stats before, after;
    before = pool_stats(t.pool);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    after = pool_stats(t.pool);
    CHECK_EQ(after.failures, before.failures + 1);
    CHECK_EQ(after.used, before.used);
    CHECK_EQ(after.used_high, before.used_high);
    CHECK_EQ(after.requested, before.requested);
    CHECK_EQ(after.reserved, before.reserved);
    CHECK_EQ(after.reserved_high, before.reserved_high);
    CHECK_EQ(after.live, before.live);
    CHECK_EQ(after.allocs, before.allocs);
    CHECK_EQ(after.pending, before.pending);
    CHECK_EQ(submitted(t.device, t.s1), 1);
    CHECK_EQ(address(a), BASE);
    scene_end(&t);
}

/* ---- the steps ------------------------------------------------------------------------------------------------- */

static void a_refused_page_is_asked_for_again_after_free_pages_went_back(void)
{
    struct scene t = eager("exclusive()", UINT64_MAX);
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1);
    refuse_pages(t.device, 0, 1);
    CHECK_STATUS(try_alloc(t.pool, 4 * MIB, t.s1), SMP_SUCCESS);
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    CHECK_EQ(pool_stats(t.pool).page_refusals, 1);
    CHECK_EQ(pool_stats(t.pool).page_frees, 1);
    CHECK_EQ(pool_stats(t.pool).failures, 0);
    scene_end(&t);
}

static void refusals_begin_after_the_pages_skipped(void)
{
    struct scene t = eager("sliced(page_size=2MiB)", UINT64_MAX);
    refuse_pages(t.device, 2, 1);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_SUCCESS);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_SUCCESS);
    scene_end(&t);
}

static void a_sibling_pools_free_pages_go_back_too(void)
{
    struct scene t = eager("exclusive()", 4 * MIB);
    smp_pool sibling = pool_of(t.device, "sliced(page_size=4MiB)");
    free_on(alloc_on(sibling, 512, t.s2), t.s2);
    CHECK_EQ(pool_stats(sibling).reserved, 4 * MIB);
    CHECK_STATUS(try_alloc(t.pool, 4 * MIB, t.s1), SMP_SUCCESS);
    CHECK_EQ(pool_stats(sibling).reserved, 0);
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    must(smp_pool_destroy(sibling));
    scene_end(&t);
}

static void what_is_live_or_pending_does_not_go_back(void)
{
    struct scene t = lazy("exclusive()", 6 * MIB);
    smp_pool sibling = pool_of(t.device, "sliced(page_size=4MiB)");
    alloc_on(sibling, 512, t.s2);
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1); /* has not executed */
    CHECK_STATUS(try_alloc(t.pool, 4 * MIB, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(pool_stats(sibling).reserved, 4 * MIB);
    CHECK_EQ(pool_stats(t.pool).reserved, 2 * MIB);
    must(smp_pool_destroy(sibling));
    scene_end(&t);
}

static void policy_3_serves_what_the_device_refused(void)
{
    struct scene t = lazy("sliced(page_size=2MiB)", 2 * MIB);
    smp_allocation a = alloc_on(t.pool, 2 * MIB, t.s1), b = NULL;
    wanted(a);
    free_on(a, t.s1);
    set_attribute(t.pool, 3, 0);
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s2), SMP_ERROR_OUT_OF_MEMORY);
    set_attribute(t.pool, 3, 1);
    CHECK_STATUS(smp_alloc_async(t.pool, 2 * MIB, t.s2, &b), SMP_SUCCESS);
    CHECK_EQ(reason(b), SMP_REASON_INTERNAL);
    CHECK_EQ(advance(t.device, t.s2, 10), 0);
    advance(t.device, t.s1, 2);
    CHECK_EQ(advance(t.device, t.s2, 10), BY_DEVICE(2, 1)); /* the wait, and on the model device the allocation */
    scene_end(&t);
}

static void policy_3_is_not_for_host_ordered_allocations(void)
{
    struct scene t = lazy("sliced(page_size=2MiB)", 2 * MIB);
    smp_allocation a = NULL;
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1);
    CHECK_STATUS(smp_alloc(t.pool, 2 * MIB, &a), SMP_ERROR_OUT_OF_MEMORY);
    sync(t.device, t.s1);
    CHECK_STATUS(smp_alloc(t.pool, 2 * MIB, &a), SMP_SUCCESS);
    CHECK_EQ(address(a), BASE);
    scene_end(&t);
}

static void policy_3_picks_the_fewest_waits_then_the_best_fit_then_the_oldest(void)
{
    struct scene t = lazy("exclusive()", 10 * MIB);
    smp_stream s3 = new_stream(t.device);
    smp_allocation two_users = alloc_on(t.pool, 2 * MIB, t.s2); /* the lowest address */
    smp_allocation large = alloc_on(t.pool, 4 * MIB, t.s2);
    smp_allocation younger = alloc_on(t.pool, 2 * MIB, t.s2);
    smp_allocation older = alloc_on(t.pool, 2 * MIB, t.s2);
    smp_allocation got;
    uint64_t of_older = address(older), of_large = address(large);
    wanted(two_users);
    kernel(t.device, s3, 1);
    must(smp_allocation_add_user(two_users, s3));
    free_on(two_users, t.s2);
    free_on(large, t.s2);
    free_on(older, t.s2);
    free_on(younger, t.s2);
    got = alloc_on(t.pool, 2 * MIB, t.s1);
    CHECK_EQ(address(got), of_older);
    CHECK_EQ(reason(got), SMP_REASON_INTERNAL);
    /* The edge made stays: what was freed on s2 before is reusable by dependency, without another wait. */
    CHECK_EQ(submitted(t.device, t.s1), 2);
    set_attribute(t.pool, 1, 0);
    set_attribute(t.pool, 2, 0);
    got = alloc_on(t.pool, 2 * MIB, t.s1);
    CHECK_EQ(reason(got), SMP_REASON_INTERNAL);
    CHECK_EQ(address(got), of_large); /* no wait needed for it; the younger 2 MiB block needs one */
    CHECK_EQ(submitted(t.device, t.s1), 3);
    if (!on_cuda()) { /* there s3 frees nothing, so that no event of it can be waited for */
        got = alloc_on(t.pool, 2 * MIB, t.s1);
        CHECK_EQ(address(got), BASE); /* one wait each, for s3 or for s2; the block with two users is the older */
        CHECK_EQ(submitted(t.device, t.s1), 5);
    }
    scene_end(&t);
}

static void sync_on_oom_synchronises_once_and_starts_again(void)
{
    smp_pool_entry entry = SMP_ENTRY_EXCLUSIVE_INIT(SMP_NONE);
    smp_pool_config config = SMP_POOL_CONFIG_INIT;
    struct scene t = lazy("direct()", 4 * MIB);
    must(smp_pool_destroy(t.pool));
    config.entries = &entry;
    config.entry_count = 1;
    config.flags = SMP_POOL_SYNC_ON_OOM;
    must(smp_pool_create(t.device, &config, &t.pool));
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1); /* pending, and too small */
    CHECK_STATUS(try_alloc(t.pool, 4 * MIB, t.s2), SMP_SUCCESS);
    CHECK_EQ(pool_stats(t.pool).host_syncs, 1);
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    CHECK_EQ(observed(t.device, t.s1), 2);
    CHECK_STATUS(try_alloc(t.pool, 4 * MIB, t.s2), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(pool_stats(t.pool).host_syncs, 2);
    scene_end(&t);
}

static void without_sync_on_oom_nothing_is_synchronised(void)
{
    struct scene t = lazy("exclusive()", 4 * MIB);
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1);
    CHECK_STATUS(try_alloc(t.pool, 4 * MIB, t.s2), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(pool_stats(t.pool).host_syncs, 0);
    CHECK_EQ(observed(t.device, t.s1), 0);
    scene_end(&t);
}

static void a_page_whose_release_is_refused_stays_reserved_and_is_counted(void)
{
    struct scene t = eager("sliced(page_size=2MiB)", UINT64_MAX);
    free_on(alloc_on(t.pool, 512, t.s1), t.s1);
    refuse_releases(t.device, 1);
    must(smp_pool_trim_to(t.pool, 0));
    CHECK_EQ(pool_stats(t.pool).reserved, 2 * MIB);
    CHECK_EQ(pool_stats(t.pool).release_failures, 1);
    CHECK_EQ(address(alloc_on(t.pool, 512, t.s1)), BASE); /* and is used on */
    scene_end(&t);
}

/* ---- the callback ---------------------------------------------------------------------------------------------- */

struct helper {
    int calls;
    int answers[32];       /* what to answer, call by call */
    smp_allocation victim; /* freed in the first call, if set */
    smp_stream stream;     /* ... on this stream */
    smp_pool trims;        /* trimmed, if set */
    smp_device syncs;      /* synchronised, if set */
    smp_pool allocates;    /* allocated from, if set: not allowed */
    smp_status refused;
    int broken; /* calls that failed and must not */
    smp_out_of_memory seen;
};

static int on_oom(void *user, const smp_out_of_memory *info)
{
    struct helper *h = (struct helper *)user;
    h->seen = *info;
    if (h->victim != NULL) {
        h->broken += smp_free_async(h->victim, h->stream) != SMP_SUCCESS;
        h->victim = NULL;
    }
    if (h->syncs != NULL)
        h->broken += smp_device_synchronize(h->syncs) != SMP_SUCCESS;
    if (h->trims != NULL)
        h->broken += smp_pool_trim_to(h->trims, 0) != SMP_SUCCESS;
    if (h->allocates != NULL) {
        smp_allocation a = NULL;
        h->refused = smp_alloc_async(h->allocates, 512, h->stream, &a);
    }
    return h->answers[h->calls++ % 32];
}

static void a_callback_that_frees_and_answers_yes_lets_the_allocation_succeed(void)
{
    struct scene t = eager("exclusive()", 4 * MIB);
    struct helper h;
    memset(&h, 0, sizeof h);
    h.victim = alloc_on(t.pool, 4 * MIB, t.s1);
    h.stream = t.s1;
    h.answers[0] = 1;
    must(smp_pool_set_out_of_memory_callback(t.pool, on_oom, &h));
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_SUCCESS);
    CHECK_EQ(h.calls, 1);
    CHECK_EQ(h.broken, 0);
    CHECK_EQ(pool_stats(t.pool).failures, 0);
    scene_end(&t);
}

static void a_callback_may_synchronise_and_trim_its_pool(void)
{
    struct scene t = lazy("exclusive()", 4 * MIB);
    struct helper h;
    memset(&h, 0, sizeof h);
    free_on(alloc_on(t.pool, 2 * MIB, t.s1), t.s1);
    h.syncs = t.device;
    h.trims = t.pool;
    h.answers[0] = 1;
    must(smp_pool_set_out_of_memory_callback(t.pool, on_oom, &h));
    CHECK_STATUS(try_alloc(t.pool, 4 * MIB, t.s2), SMP_SUCCESS);
    CHECK_EQ(h.calls, 1);
    CHECK_EQ(h.broken, 0);
    CHECK_EQ(pool_stats(t.pool).reserved, 4 * MIB);
    scene_end(&t);
}

static void a_callback_that_answers_no_lets_the_allocation_fail(void)
{
    struct scene t = eager("exclusive()", 4 * MIB);
    struct helper h;
    memset(&h, 0, sizeof h);
    alloc_on(t.pool, 4 * MIB, t.s1);
    must(smp_pool_set_out_of_memory_callback(t.pool, on_oom, &h));
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(h.calls, 1);
    CHECK_EQ(h.broken, 0);
    must(smp_pool_set_out_of_memory_callback(t.pool, NULL, NULL)); /* taken away again */
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(h.calls, 1);
    CHECK_EQ(h.broken, 0);
    scene_end(&t);
}

static void a_callback_that_always_answers_yes_is_asked_16_times(void)
{
    struct scene t = eager("exclusive()", 0);
    struct helper h;
    int i;
    memset(&h, 0, sizeof h);
    for (i = 0; i < 32; ++i)
        h.answers[i] = 1;
    must(smp_pool_set_out_of_memory_callback(t.pool, on_oom, &h));
    CHECK_STATUS(try_alloc(t.pool, 512, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(h.calls, 16);
    CHECK_EQ(pool_stats(t.pool).failures, 1);
    scene_end(&t);
}

static void a_callback_must_not_allocate_from_its_pool(void)
{
    struct scene t = eager("exclusive()", 0);
    struct helper h;
    memset(&h, 0, sizeof h);
    h.allocates = t.pool;
    h.stream = t.s2;
    must(smp_pool_set_out_of_memory_callback(t.pool, on_oom, &h));
    CHECK_STATUS(try_alloc(t.pool, 512, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(h.calls, 1);
    CHECK_EQ(h.broken, 0);
    CHECK_EQ(h.refused, SMP_ERROR_NOT_PERMITTED);
    set_capacity(t.device, UINT64_MAX);
    CHECK_STATUS(try_alloc(t.pool, 512, t.s1), SMP_SUCCESS); /* outside the callback it may again */
    scene_end(&t);
}

static void a_cap_calls_the_callback_too(void)
{
    struct scene t = eager("sliced(page_size=2MiB, max_pool_size=2MiB)", UINT64_MAX);
    struct helper h;
    memset(&h, 0, sizeof h);
    h.victim = alloc_on(t.pool, 2 * MIB, t.s1);
    h.stream = t.s1;
    h.answers[0] = 1;
    must(smp_pool_set_out_of_memory_callback(t.pool, on_oom, &h));
    CHECK_STATUS(try_alloc(t.pool, 2 * MIB, t.s1), SMP_SUCCESS);
    CHECK_EQ(h.calls, 1);
    CHECK_EQ(h.broken, 0);
    scene_end(&t);
}

static void the_callback_is_told_the_figures(void)
{
    struct scene t = lazy("sliced(page_size=4MiB)", 10 * MIB);
    struct helper h;
    memset(&h, 0, sizeof h);
    set_attribute(t.pool, 3, 0);
    alloc_on(t.pool, 3 * MIB, t.s1);                        /* page 1; 1 MiB never used */
    alloc_on(t.pool, 2 * MIB, t.s1);                        /* page 2 */
    free_on(alloc_on(t.pool, 1536 * KIB, t.s2), t.s2);      /* page 2, pending; 0.5 MiB never used */
    must(smp_pool_set_out_of_memory_callback(t.pool, on_oom, &h));
    CHECK_STATUS(try_alloc(t.pool, 4 * MIB, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(h.calls, 1);
    CHECK_EQ(h.broken, 0);
    CHECK_SAME(h.seen.pool, t.pool);
    CHECK_EQ(h.seen.asked, 4 * MIB);
    CHECK_EQ(h.seen.used, 5 * MIB);
    CHECK_EQ(h.seen.reserved, 8 * MIB);
    CHECK_EQ(h.seen.pending_bytes, 1536 * KIB);
    CHECK_EQ(h.seen.largest_free, 1536 * KIB);
    CHECK_EQ(h.seen.device_free, 2 * MIB);
    CHECK_EQ(h.seen.device_total, device_info(t.device).capacity);
    scene_end(&t);
}

/* ---- the message ----------------------------------------------------------------------------------------------- */

static void the_message_tells_asked_used_reserved_pending_largest_free_and_the_devices_memory(void)
{
    struct scene t = lazy("sliced(page_size=4MiB)", 10 * MIB);
    const char *text;
    char total[24];
    snprintf(total, sizeof total, "%" PRIu64, device_info(t.device).capacity);
    set_attribute(t.pool, 3, 0);
    alloc_on(t.pool, 3 * MIB, t.s1);
    alloc_on(t.pool, 2 * MIB, t.s1);
    free_on(alloc_on(t.pool, 1536 * KIB, t.s2), t.s2);
    CHECK_STATUS(try_alloc(t.pool, 4 * MIB, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    text = last_message();
    CHECK_HAS(text, "4194304");  /* asked */
    CHECK_HAS(text, "5242880");  /* used */
    CHECK_HAS(text, "8388608");  /* reserved */
    CHECK_HAS(text, "1572864");  /* pending, and the largest free block */
    CHECK_HAS(text, "2097152");  /* free on the device */
    CHECK_HAS(text, total);
    CHECK_HAS(text, "pending");
    CHECK_HAS(text, "largest");
    scene_end(&t);
}

static void a_failure_for_want_of_addresses_says_what_holds_them(void)
{
    struct scene t = eager("mapped(range_size=128TiB)", UINT64_MAX);
    smp_pool pools[33];
    smp_allocation a = NULL;
    int i, made = 0;
    if (on_cuda()) {
        must_drive(sim.fail("cuMemAddressReserve", 1, 2, 1), "simcuda_fail");
    } else {
        for (; made < 32; ++made) { /* 2^52 bytes: all there are */
            pools[made] = pool_of(t.device, "mapped(range_size=128TiB)");
            alloc_on(pools[made], 1, t.s1);
        }
    }
    CHECK_STATUS(try_alloc(t.pool, 100, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_HAS(last_message(), "addresses");
    CHECK_HAS(last_message(), "range_size");
    if (!on_cuda()) { /* other pages have none either */
        pools[made] = pool_of(t.device, "direct()");
        CHECK_STATUS(smp_alloc_async(pools[made], 100, t.s1, &a), SMP_ERROR_OUT_OF_MEMORY);
        CHECK_HAS(last_message(), "addresses");
        ++made;
    }
    for (i = 0; i < made; ++i)
        must(smp_pool_destroy(pools[i]));
    if (on_cuda())
        sim.clear_failures();
    scene_end(&t);
}

static void a_request_of_more_chunks_than_a_mapped_entry_serves_at_once_says_so(void)
{
    struct scene t = eager("mapped()", UINT64_MAX);
    CHECK_STATUS(try_alloc(t.pool, (UINT64_C(1) << 20) * (2 * MIB) + 1, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_HAS(last_message(), "2^20 chunks");
    scene_end(&t);
}

static void a_failure_for_want_of_a_whole_page_says_how_large_a_page_is(void)
{
    struct scene t = eager("mapped()", 1 * MIB);
    CHECK_STATUS(try_alloc(t.pool, 1, t.s1), SMP_ERROR_OUT_OF_MEMORY);
    CHECK_HAS(last_message(), "at least 2097152 bytes");
    scene_end(&t);
}

TEST_MAIN(RUN_ANY_PACE(a_device_that_refuses_makes_out_of_memory)
          RUN_ANY_PACE(only_caps_in_the_way_make_capacity_exceeded)
          RUN_ANY_PACE(a_cap_and_a_refusal_together_are_out_of_memory)
          RUN_ANY_PACE(the_cuda_preset_answers_out_of_memory_at_its_cap)
          RUN_ANY_PACE(a_size_no_entry_accepts_is_size_not_accepted_and_asks_nobody)
          RUN_ANY_PACE(a_size_above_2_to_the_47_is_out_of_memory_where_an_entry_accepts_it)
          RUN_ANY_PACE(a_failure_changes_no_block_and_no_figure_but_the_counts_of_failures)
          RUN(a_refused_page_is_asked_for_again_after_free_pages_went_back)
          RUN_ANY_PACE(refusals_begin_after_the_pages_skipped)
          RUN(a_sibling_pools_free_pages_go_back_too)
          RUN_ANY_PACE(what_is_live_or_pending_does_not_go_back)
          RUN(policy_3_serves_what_the_device_refused)
          RUN_ANY_PACE(policy_3_is_not_for_host_ordered_allocations)
          RUN(policy_3_picks_the_fewest_waits_then_the_best_fit_then_the_oldest)
          RUN_ANY_PACE(sync_on_oom_synchronises_once_and_starts_again)
          RUN_ANY_PACE(without_sync_on_oom_nothing_is_synchronised)
          RUN(a_page_whose_release_is_refused_stays_reserved_and_is_counted)
          RUN_ANY_PACE(a_callback_that_frees_and_answers_yes_lets_the_allocation_succeed)
          RUN_ANY_PACE(a_callback_may_synchronise_and_trim_its_pool)
          RUN_ANY_PACE(a_callback_that_answers_no_lets_the_allocation_fail)
          RUN_ANY_PACE(a_callback_that_always_answers_yes_is_asked_16_times)
          RUN_ANY_PACE(a_callback_must_not_allocate_from_its_pool)
          RUN_ANY_PACE(a_cap_calls_the_callback_too)
          RUN_ANY_PACE(the_callback_is_told_the_figures)
          RUN_ANY_PACE(the_message_tells_asked_used_reserved_pending_largest_free_and_the_devices_memory)
          RUN_ANY_PACE(a_failure_for_want_of_addresses_says_what_holds_them)
          RUN_ANY_PACE(a_request_of_more_chunks_than_a_mapped_entry_serves_at_once_says_so)
          RUN_ANY_PACE(a_failure_for_want_of_a_whole_page_says_how_large_a_page_is))
