/* Order: what precedes what, and what the three-valued answers are.
 *
 * On the model device everything is visible, so every answer is proved (SUCCESS) or refuted (NOT_READY), never
 * UNPROVEN; on CUDA what is not proved is unproven, but for what an event of the library's own refutes. Unless a test says "eager" the device is lazy: nothing runs until a stream is advanced or synchronised.
 * Sequence numbers are counted by hand in the comments: an allocation, a free, a record and a wait take one each.
 */
#include "support.h"

#include <pthread.h>

struct scene {
    smp_device device;
    smp_pool pool;
    smp_stream s1, s2, s3;
};

static struct scene scene_on(smp_device device)
{
    struct scene t;
    t.device = device;
    t.pool = pool_of(device, "sliced(page_size=32MiB)");
    t.s1 = new_stream(device);
    t.s2 = new_stream(device);
    t.s3 = new_stream(device);
    return t;
}

static struct scene scene(void)
{
    return scene_on(lazy_device());
}

static void scene_end(struct scene *t)
{
    must(smp_pool_destroy(t->pool));
    must(smp_device_close(t->device));
}

/* ---- is_ready ------------------------------------------------------------------------------------------------- */

static void an_allocation_is_ready_when_its_stream_has_executed_it(void)
{
    struct scene t = scene();
    smp_allocation a;
    kernel(t.device, t.s1, 2);
    a = alloc_on(t.pool, 512, t.s1); /* 3 */
    CHECK_STATUS(smp_is_ready(a), REFUTED);
    if (on_cuda()) {
        /* The stream was quiet; from its own next call on an event tells of it. */
        kernel(t.device, t.s1, 1); /* 4 */
        CHECK_STATUS(smp_is_ready(a), SMP_UNPROVEN); /* that event comes after the allocation: it refutes nothing */
        CHECK_EQ(advance(t.device, t.s1, 3), 3); /* the kernels */
        CHECK_STATUS(smp_is_ready(a), SMP_UNPROVEN);
        CHECK_EQ(advance(t.device, t.s1, 1), 1); /* the event */
    } else {
        CHECK_EQ(advance(t.device, t.s1, 2), 2);
        CHECK_STATUS(smp_is_ready(a), SMP_NOT_READY);
        CHECK_EQ(advance(t.device, t.s1, 1), 1);
    }
    CHECK_STATUS(smp_is_ready(a), SMP_SUCCESS);
    scene_end(&t);
}

static void an_allocation_on_an_eager_stream_is_ready_at_once(void)
{
    struct scene t = scene_on(eager_device());
    smp_allocation a;
    kernel(t.device, t.s1, 2);
    a = alloc_on(t.pool, 512, t.s1);
    CHECK_STATUS(smp_is_ready(a), SMP_SUCCESS);
    scene_end(&t);
}

static void a_host_ordered_allocation_is_ready_everywhere_at_once(void)
{
    struct scene t = scene();
    smp_allocation a = NULL;
    kernel(t.device, t.s1, 1);
    must(smp_alloc(t.pool, 512, &a));
    CHECK_STATUS(smp_is_ready(a), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, t.s1), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, LEGACY), SMP_SUCCESS);
    scene_end(&t);
}

/* ---- is_ready_on: stream order and events --------------------------------------------------------------------- */

static void later_work_on_the_same_stream_is_ordered_and_on_another_it_is_refuted(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    CHECK_STATUS(smp_is_ready_on(a, t.s1), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), REFUTED);
    CHECK_STATUS(smp_is_ready(a), REFUTED); /* order is not progress */
    scene_end(&t);
}

static void having_executed_is_not_being_ordered(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    advance(t.device, t.s1, UINT64_MAX);
    CHECK_STATUS(smp_is_ready(a), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), REFUTED);
    CHECK_STATUS(smp_stream_query(t.device, t.s1), SMP_SUCCESS); /* a query does not make anything observed */
    CHECK_STATUS(smp_is_ready_on(a, t.s2), REFUTED);
    sync(t.device, t.s1);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), SMP_SUCCESS);
    scene_end(&t);
}

static void an_event_recorded_after_the_allocation_and_waited_on_orders(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    smp_event e = record_on(t.device, t.s1);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), REFUTED); /* recorded, not waited on */
    wait_for(t.device, t.s2, e);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, t.s3), REFUTED);
    scene_end(&t);
}

static void an_event_recorded_before_the_allocation_does_not_order(void)
{
    struct scene t = scene();
    smp_event e = record_on(t.device, t.s1);
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    wait_for(t.device, t.s2, e);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), REFUTED);
    scene_end(&t);
}

static void an_order_through_two_other_streams_counts(void)
{
    struct scene t = scene();
    smp_stream s4 = new_stream(t.device);
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    wait_for(t.device, t.s2, record_on(t.device, t.s1));
    wait_for(t.device, t.s3, record_on(t.device, t.s2));
    wait_for(t.device, s4, record_on(t.device, t.s3));
    CHECK_STATUS(smp_is_ready_on(a, t.s3), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, s4), SMP_SUCCESS);
    scene_end(&t);
}

static void an_event_recorded_before_its_stream_waited_carries_nothing_on(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    smp_event early = record_on(t.device, t.s2); /* before s2 waits for s1 */
    wait_for(t.device, t.s2, record_on(t.device, t.s1));
    wait_for(t.device, t.s3, early);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, t.s3), REFUTED);
    scene_end(&t);
}

static void order_has_a_direction(void)
{
    struct scene t = scene();
    smp_allocation on_s2 = alloc_on(t.pool, 512, t.s2);
    wait_for(t.device, t.s2, record_on(t.device, t.s1));
    CHECK_STATUS(smp_is_ready_on(on_s2, t.s1), REFUTED);
    scene_end(&t);
}

/* ---- the life of an event ------------------------------------------------------------------------------------- */

static void recording_again_replaces_the_point_and_earlier_waits_keep_theirs(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1), b;
    smp_event e = record_on(t.device, t.s1);
    wait_for(t.device, t.s2, e);
    b = alloc_on(t.pool, 512, t.s1);
    must(smp_event_record(t.device, e, t.s1));
    CHECK_STATUS(smp_is_ready_on(a, t.s2), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(b, t.s2), REFUTED);
    wait_for(t.device, t.s3, e);
    CHECK_STATUS(smp_is_ready_on(b, t.s3), SMP_SUCCESS);
    scene_end(&t);
}

static void an_event_recorded_again_on_another_stream_no_longer_stands_for_the_first(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1), b = alloc_on(t.pool, 512, t.s2);
    smp_event e = record_on(t.device, t.s1);
    must(smp_event_record(t.device, e, t.s2));
    wait_for(t.device, t.s3, e);
    CHECK_STATUS(smp_is_ready_on(a, t.s3), REFUTED);
    CHECK_STATUS(smp_is_ready_on(b, t.s3), SMP_SUCCESS);
    scene_end(&t);
}

static void a_never_recorded_event_counts_as_complete(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    smp_event e = new_event(t.device);
    CHECK_STATUS(smp_event_query(e), SMP_SUCCESS);
    CHECK_STATUS(smp_event_synchronize(e), SMP_SUCCESS);
    wait_for(t.device, t.s2, e);
    /* The wait takes a sequence number all the same; on CUDA only the driver knows of it. */
    CHECK_EQ(submitted(t.device, t.s2), BY_DEVICE(1, 0));
    CHECK_EQ(advance(t.device, t.s2, UINT64_MAX), 1);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), REFUTED);
    scene_end(&t);
}

static void a_destroyed_event_is_refused_and_waits_made_before_keep_their_point(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    smp_event e = record_on(t.device, t.s1);
    wait_for(t.device, t.s2, e);
    must(smp_event_destroy(e));
    CHECK_STATUS(smp_is_ready_on(a, t.s2), SMP_SUCCESS);
    /* On CUDA the driver owns the value, and no longer knows it. */
    CHECK_STATUS(smp_stream_wait_event(t.device, t.s3, e), BY_DEVICE(SMP_ERROR_DESTROYED, SMP_ERROR_INVALID_HANDLE));
    CHECK_EQ(submitted(t.device, t.s3), 0);
    CHECK_EQ(advance(t.device, t.s2, UINT64_MAX), 0); /* s2 still waits for s1 ... */
    CHECK_EQ(advance(t.device, t.s1, UINT64_MAX), BY_DEVICE(2, 1)); /* (the allocation and) the event */
    CHECK_EQ(advance(t.device, t.s2, UINT64_MAX), 1); /* ... and then goes on */
    scene_end(&t);
}

static void an_event_is_done_when_its_point_has_executed(void)
{
    struct scene t = scene();
    smp_event e;
    kernel(t.device, t.s1, 1);
    e = record_on(t.device, t.s1); /* 2 */
    kernel(t.device, t.s1, 1);
    CHECK_STATUS(smp_event_query(e), SMP_NOT_READY);
    advance(t.device, t.s1, 1);
    CHECK_STATUS(smp_event_query(e), SMP_NOT_READY);
    advance(t.device, t.s1, 1);
    CHECK_STATUS(smp_event_query(e), SMP_SUCCESS);
    scene_end(&t);
}

/* ---- synchronise ---------------------------------------------------------------------------------------------- */

static void a_synchronise_runs_what_the_stream_depends_on_and_no_further(void)
{
    struct scene t = scene();
    smp_event e;
    kernel(t.device, t.s1, 1);
    e = record_on(t.device, t.s1); /* 2 */
    kernel(t.device, t.s1, 3);     /* 3 to 5: after the event */
    wait_for(t.device, t.s2, e);
    kernel(t.device, t.s2, 1);
    kernel(t.device, t.s3, 1);
    sync(t.device, t.s2);
    CHECK_EQ(executed(t.device, t.s2), 2);
    CHECK_EQ(executed(t.device, t.s1), 2);
    CHECK_EQ(executed(t.device, t.s3), 0);
    CHECK_EQ(observed(t.device, t.s2), 2);
    CHECK_EQ(observed(t.device, t.s1), 2);
    CHECK_EQ(observed(t.device, t.s3), 0);
    scene_end(&t);
}

static void a_synchronise_observes_through_a_chain_of_streams(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    wait_for(t.device, t.s2, record_on(t.device, t.s1));
    wait_for(t.device, t.s3, record_on(t.device, t.s2));
    sync(t.device, t.s3);
    CHECK_EQ(observed(t.device, t.s1), 2);
    CHECK_EQ(observed(t.device, t.s2), 2);
    CHECK_STATUS(smp_is_ready_on(a, LEGACY), SMP_SUCCESS); /* observed: ordered before all that is submitted now */
    scene_end(&t);
}

static void an_event_synchronise_observes_the_events_point_only(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1), b; /* 1 */
    smp_event e = record_on(t.device, t.s1);           /* 2 */
    b = alloc_on(t.pool, 512, t.s1);                   /* 3 */
    must(smp_event_synchronize(e));
    CHECK_EQ(executed(t.device, t.s1), 2);
    CHECK_EQ(observed(t.device, t.s1), 2);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(b, t.s2), REFUTED);
    scene_end(&t);
}

static void a_device_synchronise_observes_every_stream(void)
{
    struct scene t = scene();
    kernel(t.device, t.s1, 2);
    kernel(t.device, t.s2, 3);
    kernel(t.device, LEGACY, 1);
    must(smp_device_synchronize(t.device));
    CHECK_EQ(observed(t.device, t.s1), 2);
    CHECK_EQ(observed(t.device, t.s2), 3);
    CHECK_EQ(observed(t.device, LEGACY), 1);
    CHECK_STATUS(smp_stream_query(t.device, t.s1), SMP_SUCCESS);
    scene_end(&t);
}

static void a_query_changes_nothing(void)
{
    struct scene t = scene();
    kernel(t.device, t.s1, 1);
    CHECK_STATUS(smp_stream_query(t.device, t.s1), SMP_NOT_READY);
    CHECK_EQ(executed(t.device, t.s1), 0);
    CHECK_EQ(submitted(t.device, t.s1), 1);
    advance(t.device, t.s1, 1);
    CHECK_STATUS(smp_stream_query(t.device, t.s1), SMP_SUCCESS);
    CHECK_EQ(observed(t.device, t.s1), 0);
    scene_end(&t);
}

/* ---- lazy and eager ------------------------------------------------------------------------------------------- */

static void advance_stops_at_an_unmet_wait(void)
{
    struct scene t = scene();
    smp_event e;
    kernel(t.device, t.s1, 1);
    e = record_on(t.device, t.s1);
    kernel(t.device, t.s2, 2);
    wait_for(t.device, t.s2, e);
    kernel(t.device, t.s2, 1);
    CHECK_EQ(advance(t.device, t.s2, 10), 2);
    CHECK_EQ(advance(t.device, t.s2, 10), 0);
    CHECK_EQ(advance(t.device, t.s1, 1), 1);
    CHECK_EQ(advance(t.device, t.s2, 10), 0); /* the kernel ran, the record has not */
    CHECK_EQ(advance(t.device, t.s1, 1), 1);
    CHECK_EQ(advance(t.device, t.s2, 1), 1);
    CHECK_EQ(advance(t.device, t.s2, 10), 1);
    scene_end(&t);
}

static void an_eager_stream_held_up_by_a_lazy_one_continues_when_that_one_runs(void)
{
    struct scene t = scene();
    smp_stream eager = new_eager_stream(t.device);
    smp_event e;
    kernel(t.device, eager, 1);
    CHECK_EQ(executed(t.device, eager), 1);
    kernel(t.device, t.s1, 1);
    e = record_on(t.device, t.s1);
    wait_for(t.device, eager, e);
    kernel(t.device, eager, 4);
    CHECK_EQ(executed(t.device, eager), 1);
    advance(t.device, t.s1, 2);
    CHECK_EQ(executed(t.device, eager), 6); /* nobody advanced it */
    scene_end(&t);
}

/* ---- the legacy default stream and the per-thread one --------------------------------------------------------- */

static void a_legacy_operation_waits_for_all_blocking_streams_and_holds_up_later_work_on_them(void)
{
    struct scene t = scene();
    smp_stream free_runner = new_non_blocking_stream(t.device);
    kernel(t.device, t.s1, 1);
    kernel(t.device, LEGACY, 1);
    kernel(t.device, t.s2, 1);
    kernel(t.device, free_runner, 1);
    CHECK_EQ(advance(t.device, LEGACY, 1), 0);      /* s1 has not run */
    CHECK_EQ(advance(t.device, t.s2, 1), 0);        /* the legacy operation has not run */
    CHECK_EQ(advance(t.device, free_runner, 1), 1); /* non-blocking: exempt */
    CHECK_EQ(advance(t.device, t.s1, 1), 1);
    CHECK_EQ(advance(t.device, t.s2, 1), 0);
    CHECK_EQ(advance(t.device, LEGACY, 1), 1);
    CHECK_EQ(advance(t.device, t.s2, 1), 1);
    scene_end(&t);
}

static void work_on_the_legacy_stream_orders_blocking_streams_and_not_the_others(void)
{
    struct scene t = scene();
    smp_stream exempt = new_non_blocking_stream(t.device);
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    smp_allocation b = alloc_on(t.pool, 512, exempt);
    CHECK_STATUS(smp_is_ready_on(a, LEGACY), SMP_SUCCESS); /* what is submitted there now is a barrier */
    CHECK_STATUS(smp_is_ready_on(a, t.s2), REFUTED); /* nothing has been submitted there yet */
    kernel(t.device, LEGACY, 1);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, exempt), REFUTED);
    CHECK_STATUS(smp_is_ready_on(b, LEGACY), REFUTED);
    CHECK_STATUS(smp_is_ready_on(b, t.s2), REFUTED);
    scene_end(&t);
}

static void event_records_and_waits_on_the_legacy_stream_are_barriers_too(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1), b;
    record_on(t.device, LEGACY);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), SMP_SUCCESS);
    b = alloc_on(t.pool, 512, t.s1);
    CHECK_STATUS(smp_is_ready_on(b, t.s2), REFUTED);
    wait_for(t.device, LEGACY, new_event(t.device));
    if (on_cuda()) /* a wait for what was never recorded is told to the driver only; another wait counts */
        wait_for(t.device, LEGACY, record_on(t.device, t.s3));
    CHECK_STATUS(smp_is_ready_on(b, t.s2), SMP_SUCCESS);
    scene_end(&t);
}

static void allocations_and_frees_on_the_legacy_stream_are_no_barrier(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1);
    smp_allocation b = alloc_on(t.pool, 512, LEGACY);
    free_on(b, LEGACY);
    CHECK_STATUS(smp_is_ready_on(a, t.s2), REFUTED);
    if (!on_cuda()) /* there they are no operations of the driver's */
        CHECK_EQ(advance(t.device, LEGACY, UINT64_MAX), 2); /* neither waits for s1 */
    scene_end(&t);
}

static void both_legacy_values_name_the_same_stream(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, LEGACY);
    CHECK_STATUS(smp_is_ready_on(a, SMP_STREAM_LEGACY), SMP_SUCCESS);
    CHECK_EQ(submitted(t.device, SMP_STREAM_LEGACY), 1);
    scene_end(&t);
}

struct other_thread {
    smp_allocation seen, made;
    smp_pool pool;
    smp_status on_own_default;
};

static void *use_default_stream(void *argument)
{
    struct other_thread *other = (struct other_thread *)argument;
    other->on_own_default = smp_is_ready_on(other->seen, SMP_STREAM_PER_THREAD);
    if (smp_alloc_async(other->pool, 512, SMP_STREAM_PER_THREAD, &other->made) != SMP_SUCCESS)
        other->made = NULL;
    return NULL;
}

static void the_per_thread_stream_is_one_per_thread_and_a_blocking_one(void)
{
    struct scene t = scene();
    struct other_thread other;
    pthread_t thread;
    smp_allocation a = alloc_on(t.pool, 512, SMP_STREAM_PER_THREAD);
    memset(&other, 0, sizeof other);
    other.seen = a;
    other.pool = t.pool;
    CHECK_STATUS(smp_is_ready_on(a, SMP_STREAM_PER_THREAD), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, t.s1), REFUTED);
    if (pthread_create(&thread, NULL, use_default_stream, &other) != 0)
        abort();
    pthread_join(thread, NULL);
    CHECK_EQ(other.on_own_default, REFUTED);
    CHECK_STATUS(smp_is_ready_on(other.made, SMP_STREAM_PER_THREAD), REFUTED);
    kernel(t.device, LEGACY, 1); /* blocking: the legacy stream orders both */
    CHECK_STATUS(smp_is_ready_on(other.made, SMP_STREAM_PER_THREAD), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, t.s1), SMP_SUCCESS);
    scene_end(&t);
}

/* ---- what order means for a free ------------------------------------------------------------------------------- */

static void a_free_not_ordered_after_its_allocation_succeeds_and_is_counted(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.s1), b;
    free_on(a, t.s2);
    CHECK_EQ(pool_stats(t.pool).unordered_frees, BY_DEVICE(1, 0)); /* on CUDA the caller may have ordered it */
    b = alloc_on(t.pool, 512, t.s1);
    wait_for(t.device, t.s2, record_on(t.device, t.s1));
    free_on(b, t.s2);
    CHECK_EQ(pool_stats(t.pool).unordered_frees, BY_DEVICE(1, 0));
    scene_end(&t);
}

static void a_host_ordered_free_follows_everything_submitted_so_far(void)
{
    struct scene t = scene();
    smp_allocation a = NULL, b;
    must(smp_alloc(t.pool, 32 * MIB, &a));
    kernel(t.device, t.s1, 1);
    kernel(t.device, t.s2, 1);
    must(smp_free(a));
    CHECK_EQ(pool_stats(t.pool).pending, 1);
    sync(t.device, t.s1);
    CHECK_EQ(pool_stats(t.pool).pending, 1); /* s2 may still use it */
    sync(t.device, t.s2);
    if (on_cuda()) /* a stream the library has not seen may use it too: only the whole device says that it is over */
        must(smp_device_synchronize(t.device));
    CHECK_EQ(pool_stats(t.pool).pending, 0);
    b = alloc_on(t.pool, 32 * MIB, t.s3);
    CHECK_EQ(address(b), BASE);
    CHECK_EQ(reason(b), SMP_REASON_OBSERVED);
    scene_end(&t);
}

static void a_host_ordered_allocation_reuses_observed_frees_only(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 32 * MIB, t.s1), b = NULL, c = NULL;
    free_on(a, t.s1);
    advance(t.device, t.s1, UINT64_MAX); /* executed, not observed */
    must(smp_alloc(t.pool, 32 * MIB, &b));
    CHECK_EQ(address(b), BASE + 32 * MIB);
    CHECK_EQ(reason(b), SMP_REASON_FRESH);
    sync(t.device, t.s1);
    must(smp_alloc(t.pool, 32 * MIB, &c));
    CHECK_EQ(address(c), BASE);
    CHECK_EQ(reason(c), SMP_REASON_OBSERVED);
    scene_end(&t);
}

static void a_block_with_an_added_user_is_reusable_only_after_every_users_point(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 32 * MIB, t.s1), b; /* s1: 1 */
    set_attribute(t.pool, 2, 0);
    wait_for(t.device, t.s2, record_on(t.device, t.s1)); /* s1: 2; s2: 1 */
    must(smp_allocation_add_user(a, t.s2));
    kernel(t.device, t.s2, 1); /* s2: 2, before the free: that is the user's point */
    free_on(a, t.s1);          /* s1: 3 */
    kernel(t.device, t.s2, 1);
    b = alloc_on(t.pool, 32 * MIB, t.s1); /* s2's use is pending: not even the freeing stream may have it */
    CHECK_EQ(address(b), BASE + 32 * MIB);
    free_on(b, t.s1);
    sync(t.device, t.s1); /* observes s1's point, not s2's */
    CHECK_EQ(pool_stats(t.pool).pending, 1);
    CHECK_EQ(observed(t.device, t.s2), 0);
    advance(t.device, t.s2, 1);
    sync(t.device, t.s2);
    CHECK_EQ(pool_stats(t.pool).pending, 0);
    b = alloc_on(t.pool, 32 * MIB, t.s3);
    CHECK_EQ(address(b), BASE);
    scene_end(&t);
}

/* ---- streams that go ------------------------------------------------------------------------------------------- */

static void the_work_of_a_destroyed_stream_completes_and_its_handle_is_refused(void)
{
    /* On CUDA the driver owns the value, and no longer knows it. */
    const smp_status gone = BY_DEVICE(SMP_ERROR_DESTROYED, SMP_ERROR_INVALID_HANDLE);
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 32 * MIB, t.s1), b;
    smp_event e;
    kernel(t.device, t.s1, 1);
    free_on(a, t.s1);
    e = record_on(t.device, t.s1);
    must(smp_stream_destroy(t.s1));
    CHECK_STATUS(smp_stream_query(t.device, t.s1), gone);
    CHECK_STATUS(smp_stream_synchronize(t.device, t.s1), gone);
    CHECK_STATUS(smp_alloc_async(t.pool, 512, t.s1, &b), SMP_ERROR_DESTROYED);
    CHECK_EQ(pool_stats(t.pool).pending, 1);
    wait_for(t.device, t.s2, e);
    sync(t.device, t.s2); /* pulls what is left on the destroyed stream */
    CHECK_EQ(pool_stats(t.pool).pending, 0);
    b = alloc_on(t.pool, 32 * MIB, t.s3);
    CHECK_EQ(address(b), BASE);
    scene_end(&t);
}

static void a_destroyed_stream_that_policy_2_finds_executed_is_forgotten(void)
{
    struct scene t = scene_on(eager_device());
    smp_allocation a = alloc_on(t.pool, 16 * MIB, t.s1), b = alloc_on(t.pool, 16 * MIB, t.s1);
    free_on(a, t.s1);
    free_on(b, t.s1);
    must(smp_stream_destroy(t.s1));
    CHECK_EQ(pool_stats(t.pool).pending_bytes, 32 * MIB); /* destroying it observes nothing */
    a = alloc_on(t.pool, 8 * MIB, t.s2);
    CHECK_EQ(address(a), BASE);
    CHECK_EQ(reason(a), SMP_REASON_OPPORTUNISTIC);
    CHECK_EQ(pool_stats(t.pool).pending_bytes, 0); /* nothing can be ordered after the answer but by the host */
    b = alloc_on(t.pool, 24 * MIB, t.s3);
    CHECK_EQ(address(b), BASE + 8 * MIB);
    CHECK_EQ(reason(b), SMP_REASON_OBSERVED);
    CHECK_EQ(pool_stats(t.pool).progress_queries, 1);
    scene_end(&t);
}

static void streams_made_and_destroyed_without_a_synchronise_do_not_pile_up(void)
{
    struct scene t = scene_on(eager_device());
    smp_device_info before = device_info(t.device), after;
    int i;
    for (i = 0; i < 100; ++i) {
        smp_stream s = new_stream(t.device);
        smp_allocation a = alloc_on(t.pool, 32 * MIB, s);
        smp_event e;
        free_on(a, s);
        e = record_on(t.device, s);
        CHECK_STATUS(smp_event_query(e), SMP_SUCCESS);
        must(smp_event_destroy(e));
        must(smp_stream_destroy(s));
    }
    after = device_info(t.device);
    CHECK(after.live_streams <= before.live_streams + 2);
    CHECK_EQ(pool_stats(t.pool).reserved, 32 * MIB);
    scene_end(&t);
}

static void a_live_stream_that_policy_2_finds_executed_stays_unobserved(void)
{
    struct scene t = scene_on(eager_device());
    smp_allocation a = alloc_on(t.pool, 32 * MIB, t.s1);
    free_on(a, t.s1);
    a = alloc_on(t.pool, 8 * MIB, t.s2);
    CHECK_EQ(reason(a), SMP_REASON_OPPORTUNISTIC);
    CHECK_EQ(pool_stats(t.pool).pending_bytes, 24 * MIB);
    CHECK_EQ(observed(t.device, t.s1), 0);
    scene_end(&t);
}

TEST_MAIN(RUN(an_allocation_is_ready_when_its_stream_has_executed_it)
          RUN(an_allocation_on_an_eager_stream_is_ready_at_once)
          RUN_ANY_PACE(a_host_ordered_allocation_is_ready_everywhere_at_once)
          RUN_ANY_PACE(later_work_on_the_same_stream_is_ordered_and_on_another_it_is_refuted)
          RUN_ANY_PACE(having_executed_is_not_being_ordered)
          RUN_ANY_PACE(an_event_recorded_after_the_allocation_and_waited_on_orders)
          RUN_ANY_PACE(an_event_recorded_before_the_allocation_does_not_order)
          RUN_ANY_PACE(an_order_through_two_other_streams_counts)
          RUN_ANY_PACE(an_event_recorded_before_its_stream_waited_carries_nothing_on)
          RUN_ANY_PACE(order_has_a_direction)
          RUN_ANY_PACE(recording_again_replaces_the_point_and_earlier_waits_keep_theirs)
          RUN_ANY_PACE(an_event_recorded_again_on_another_stream_no_longer_stands_for_the_first)
          RUN(a_never_recorded_event_counts_as_complete)
          RUN(a_destroyed_event_is_refused_and_waits_made_before_keep_their_point)
          RUN(an_event_is_done_when_its_point_has_executed)
          RUN_ANY_PACE(a_synchronise_runs_what_the_stream_depends_on_and_no_further)
          RUN_ANY_PACE(a_synchronise_observes_through_a_chain_of_streams)
          RUN_ANY_PACE(an_event_synchronise_observes_the_events_point_only)
          RUN_ANY_PACE(a_device_synchronise_observes_every_stream)
          RUN(a_query_changes_nothing)
          RUN(advance_stops_at_an_unmet_wait)
          MODEL_ONLY(an_eager_stream_held_up_by_a_lazy_one_continues_when_that_one_runs,
                     "streams of one driver run at one pace")
          RUN(a_legacy_operation_waits_for_all_blocking_streams_and_holds_up_later_work_on_them)
          RUN_ANY_PACE(work_on_the_legacy_stream_orders_blocking_streams_and_not_the_others)
          RUN_ANY_PACE(event_records_and_waits_on_the_legacy_stream_are_barriers_too)
          RUN_ANY_PACE(allocations_and_frees_on_the_legacy_stream_are_no_barrier)
          RUN_ANY_PACE(both_legacy_values_name_the_same_stream)
          RUN_ANY_PACE(the_per_thread_stream_is_one_per_thread_and_a_blocking_one)
          RUN_ANY_PACE(a_free_not_ordered_after_its_allocation_succeeds_and_is_counted)
          RUN_ANY_PACE(a_host_ordered_free_follows_everything_submitted_so_far)
          RUN_ANY_PACE(a_host_ordered_allocation_reuses_observed_frees_only)
          RUN_ANY_PACE(a_block_with_an_added_user_is_reusable_only_after_every_users_point)
          RUN_ANY_PACE(the_work_of_a_destroyed_stream_completes_and_its_handle_is_refused)
          RUN(a_destroyed_stream_that_policy_2_finds_executed_is_forgotten)
          RUN(streams_made_and_destroyed_without_a_synchronise_do_not_pile_up)
          RUN(a_live_stream_that_policy_2_finds_executed_stays_unobserved))
