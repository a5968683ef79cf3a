/* Accesses: small programs over one block, right and wrong, with the verdict of each access written by hand.
 *
 * An access is in order when it follows the allocation, precedes the free, stays inside the bytes asked for, and follows
 * every earlier access to the same bytes if one of the two writes. The device is lazy, so nothing is in order by chance;
 * on a model device every verdict is PROVED or REFUTED.
 */
#include "support.h"

#define R SMP_ACCESS_READ
#define W SMP_ACCESS_WRITE
#define RW SMP_ACCESS_READ_WRITE

/* One block of 4096 bytes, allocated on s1 as its operation 1. */
struct scene {
    smp_device device;
    smp_pool pool;
    smp_stream s1, s2, s3;
    smp_allocation block;
    char *bytes;
};

static struct scene t;

static void begin(void)
{
    t.device = lazy_device();
    t.pool = pool_of(t.device, "sliced(page_size=2MiB)");
    t.s1 = new_stream(t.device);
    t.s2 = new_stream(t.device);
    t.s3 = new_stream(t.device);
    t.block = alloc_on(t.pool, 4096, t.s1);
    t.bytes = (char *)smp_allocation_ptr(t.block);
}

static void end(void)
{
    must(smp_pool_destroy(t.pool));
    must(smp_device_close(t.device));
}

/* `after` comes after all that `before` holds so far, through an event. */
static void order(smp_stream before, smp_stream after)
{
    wait_for(t.device, after, record_on(t.device, before));
}

static void access_at(uint64_t offset, uint64_t size, smp_stream stream, uint32_t access, uint32_t faults, int line)
{
    smp_access_verdict v = verdict_of(t.device, t.bytes + offset, size, stream, access);
    unsigned long failures = test_failures;
    /* On CUDA the caller may have made an order that the library does not see: those are no faults. */
    const uint32_t unseen = SMP_FAULT_BEFORE_ALLOCATION | SMP_FAULT_RACE;
    uint32_t shown = on_cuda() ? faults & ~unseen : faults;
    CHECK_EQ(v.faults, shown);
    CHECK_EQ(v.order, faults == 0 ? SMP_ORDER_PROVED : shown != 0 ? SMP_ORDER_REFUTED : SMP_ORDER_UNPROVEN);
    CHECK(faults == 0 || strlen(v.text) > 0);
    if (test_failures != failures)
        printf("  ... at line %d: \"%s\"\n", line, v.text);
}

/* The whole block, or a part of it, is accessed on the stream; these faults are found. */
#define FINE(stream, access) access_at(0, 4096, stream, access, 0, __LINE__)
#define FAULT(stream, access, faults) access_at(0, 4096, stream, access, faults, __LINE__)
#define PART(offset, size, stream, access, faults) access_at(offset, size, stream, access, faults, __LINE__)

static int warnings;

static void on_log(void *user, uint32_t level, const char *message)
{
    (void)user;
    if (level == SMP_LOG_WARNING && message != NULL)
        ++warnings;
}

/* Frees the block; returns how many warnings that made. */
static int warnings_of_free(smp_stream stream)
{
    CHECK_EQ(pool_stats(t.pool).racing_frees, 0);
    warnings = 0;
    must(smp_set_log_callback(SMP_LOG_WARNING, on_log, NULL));
    free_on(t.block, stream);
    must(smp_set_log_callback(SMP_LOG_OFF, NULL, NULL));
    return warnings;
}

/* ---- right ------------------------------------------------------------------------------------------------------ */

static void p01_one_stream_may_do_anything_in_its_own_order(void)
{
    begin();
    FINE(t.s1, W);
    FINE(t.s1, R);
    FINE(t.s1, RW);
    CHECK_EQ(warnings_of_free(t.s1), 0);
    CHECK_EQ(pool_stats(t.pool).racing_frees, 0);
    end();
}

static void p02_another_stream_may_use_it_after_an_event_recorded_after_the_allocation(void)
{
    begin();
    order(t.s1, t.s2);
    FINE(t.s2, W);
    end();
}

static void p03_a_reader_that_waited_for_the_writer(void)
{
    begin();
    FINE(t.s1, W);
    order(t.s1, t.s2);
    FINE(t.s2, R);
    end();
}

static void p04_two_readers_at_the_same_time(void)
{
    begin();
    FINE(t.s1, W);
    order(t.s1, t.s2);
    order(t.s1, t.s3);
    FINE(t.s2, R);
    FINE(t.s3, R);
    FINE(t.s1, R);
    end();
}

static void p05_a_writer_that_waited_for_all_readers(void)
{
    begin();
    FINE(t.s1, W);
    order(t.s1, t.s2);
    order(t.s1, t.s3);
    FINE(t.s2, R);
    FINE(t.s3, R);
    order(t.s2, t.s1);
    order(t.s3, t.s1);
    FINE(t.s1, W);
    end();
}

static void p06_order_through_a_third_stream(void)
{
    begin();
    FINE(t.s1, W);
    order(t.s1, t.s2);
    order(t.s2, t.s3);
    FINE(t.s3, RW);
    end();
}

static void p07_a_host_synchronise_orders_everybody(void)
{
    begin();
    FINE(t.s1, W);
    sync(t.device, t.s1);
    FINE(t.s2, W);
    sync(t.device, t.s2);
    FINE(t.s3, R);
    end();
}

static void p08_an_event_synchronise_orders_what_came_before_the_event(void)
{
    smp_event e;
    begin();
    FINE(t.s1, W);
    e = record_on(t.device, t.s1);
    must(smp_event_synchronize(e));
    FINE(t.s2, R);
    end();
}

static void p09_two_writers_of_different_bytes(void)
{
    begin();
    order(t.s1, t.s2);
    PART(0, 2048, t.s1, W, 0);
    PART(2048, 2048, t.s2, W, 0);
    end();
}

static void p10_a_legacy_operation_between_two_blocking_streams(void)
{
    begin();
    FINE(t.s1, W);
    kernel(t.device, LEGACY, 1);
    FINE(t.s2, W);
    end();
}

static void p11_work_on_the_legacy_stream_itself_follows_blocking_streams(void)
{
    begin();
    FINE(t.s1, W);
    if (on_cuda()) /* what was noted may not have reached the driver: there only a call that did is a barrier */
        kernel(t.device, LEGACY, 1);
    FINE(LEGACY, W); /* an access is work, hence a barrier */
    if (on_cuda())
        kernel(t.device, LEGACY, 1);
    FINE(t.s2, R);
    end();
}

static void p12_a_host_ordered_allocation_is_usable_by_every_stream(void)
{
    begin();
    must(smp_alloc(t.pool, 4096, &t.block));
    t.bytes = (char *)smp_allocation_ptr(t.block);
    FINE(t.s3, W);
    end();
}

static void p13_memory_used_again_in_the_same_stream(void)
{
    begin();
    FINE(t.s1, W);
    free_on(t.block, t.s1);
    t.block = alloc_on(t.pool, 4096, t.s1);
    CHECK_SAME(smp_allocation_ptr(t.block), t.bytes);
    FINE(t.s1, W);
    end();
}

static void p14_a_free_that_follows_every_use(void)
{
    begin();
    order(t.s1, t.s2);
    FINE(t.s2, R);
    order(t.s2, t.s1);
    CHECK_EQ(warnings_of_free(t.s1), 0);
    CHECK_EQ(pool_stats(t.pool).racing_frees, 0);
    end();
}

static void p15_a_free_on_the_stream_of_the_last_user(void)
{
    begin();
    FINE(t.s1, W);
    order(t.s1, t.s2);
    FINE(t.s2, R);
    CHECK_EQ(warnings_of_free(t.s2), 0);
    CHECK_EQ(pool_stats(t.pool).racing_frees, 0);
    end();
}

static void p16_a_free_after_a_device_synchronise(void)
{
    begin();
    order(t.s1, t.s2);
    order(t.s1, t.s3);
    FINE(t.s2, R);
    FINE(t.s3, R);
    must(smp_device_synchronize(t.device));
    CHECK_EQ(warnings_of_free(t.s1), 0);
    CHECK_EQ(pool_stats(t.pool).racing_frees, 0);
    end();
}

/* ---- wrong ------------------------------------------------------------------------------------------------------ */

static void p17_use_before_ready_another_stream_without_any_order(void)
{
    begin();
    FAULT(t.s2, R, SMP_FAULT_BEFORE_ALLOCATION);
    end();
}

static void p18_use_before_ready_the_event_was_recorded_before_the_allocation(void)
{
    smp_event e;
    begin();
    e = record_on(t.device, t.s1);
    t.block = alloc_on(t.pool, 4096, t.s1);
    t.bytes = (char *)smp_allocation_ptr(t.block);
    wait_for(t.device, t.s2, e);
    FAULT(t.s2, W, SMP_FAULT_BEFORE_ALLOCATION);
    end();
}

static void p19_use_before_ready_the_event_was_recorded_again_after_the_wait(void)
{
    smp_event e;
    begin();
    e = new_event(t.device);
    wait_for(t.device, t.s2, e); /* never recorded: complete */
    must(smp_event_record(t.device, e, t.s1));
    FAULT(t.s2, W, SMP_FAULT_BEFORE_ALLOCATION);
    end();
}

static void p20_use_before_ready_a_non_blocking_stream_and_the_legacy_stream(void)
{
    smp_stream exempt;
    begin();
    exempt = new_non_blocking_stream(t.device);
    kernel(t.device, LEGACY, 1);
    FAULT(exempt, R, SMP_FAULT_BEFORE_ALLOCATION);
    end();
}

static void p21_use_after_free_on_the_same_stream(void)
{
    begin();
    FINE(t.s1, W);
    free_on(t.block, t.s1);
    FAULT(t.s1, R, SMP_FAULT_AFTER_FREE);
    end();
}

static void p22_use_after_free_on_a_stream_that_is_ordered_after_the_allocation(void)
{
    begin();
    order(t.s1, t.s2);
    free_on(t.block, t.s1);
    FAULT(t.s2, R, SMP_FAULT_AFTER_FREE);
    end();
}

static void p23_use_after_free_the_memory_serves_another_allocation(void)
{
    begin();
    order(t.s1, t.s2);
    free_on(t.block, t.s1);
    CHECK_SAME(smp_allocation_ptr(alloc_on(t.pool, 4096, t.s1)), t.bytes);
    FAULT(t.s2, R, SMP_FAULT_BEFORE_ALLOCATION); /* before the allocation that has the memory now */
    end();
}

static void p24_write_write_race(void)
{
    begin();
    order(t.s1, t.s2);
    FINE(t.s1, W);
    FAULT(t.s2, W, SMP_FAULT_RACE);
    end();
}

static void p25_write_read_race(void)
{
    begin();
    order(t.s1, t.s2);
    FINE(t.s1, W);
    FAULT(t.s2, R, SMP_FAULT_RACE);
    end();
}

static void p26_read_write_race(void)
{
    begin();
    order(t.s1, t.s2);
    FINE(t.s1, R);
    FAULT(t.s2, W, SMP_FAULT_RACE);
    end();
}

static void p27_a_read_that_also_writes_races_a_reader(void)
{
    begin();
    order(t.s1, t.s2);
    FINE(t.s1, R);
    FAULT(t.s2, RW, SMP_FAULT_RACE);
    end();
}

static void p28_a_writer_that_waited_for_one_of_two_readers(void)
{
    begin();
    FINE(t.s1, W);
    order(t.s1, t.s2);
    order(t.s1, t.s3);
    FINE(t.s2, R);
    FINE(t.s3, R);
    order(t.s2, t.s1);
    FAULT(t.s1, W, SMP_FAULT_RACE);
    end();
}

static void p29_the_event_was_recorded_before_the_write(void)
{
    smp_event e;
    begin();
    e = record_on(t.device, t.s1);
    FINE(t.s1, W);
    wait_for(t.device, t.s2, e);
    FAULT(t.s2, R, SMP_FAULT_RACE);
    end();
}

static void p30_the_wait_came_after_the_event_that_was_passed_on(void)
{
    smp_event passed_on;
    begin();
    order(t.s1, t.s2);
    FINE(t.s1, W);
    passed_on = record_on(t.device, t.s2); /* s2 has not waited for the write yet */
    order(t.s1, t.s2);
    wait_for(t.device, t.s3, passed_on);
    FAULT(t.s3, R, SMP_FAULT_RACE);
    end();
}

static void p31_the_order_points_the_other_way(void)
{
    begin();
    order(t.s1, t.s2);
    FINE(t.s2, W);
    FAULT(t.s1, W, SMP_FAULT_RACE);
    end();
}

static void p32_having_run_is_no_order(void)
{
    begin();
    order(t.s1, t.s2);
    FINE(t.s1, W);
    advance(t.device, t.s1, UINT64_MAX);
    CHECK_STATUS(smp_stream_query(t.device, t.s1), SMP_SUCCESS);
    FAULT(t.s2, R, SMP_FAULT_RACE);
    end();
}

static void p33_one_byte_in_common_is_enough(void)
{
    begin();
    order(t.s1, t.s2);
    PART(0, 2049, t.s1, W, 0);
    PART(2049, 10, t.s2, W, 0);
    PART(2048, 1, t.s2, R, SMP_FAULT_RACE);
    end();
}

static void p34_a_race_before_the_allocation_is_both(void)
{
    begin();
    FINE(t.s1, W);
    FAULT(t.s2, W, SMP_FAULT_BEFORE_ALLOCATION | SMP_FAULT_RACE);
    end();
}

static void p35_past_the_bytes_asked_for(void)
{
    begin();
    PART(4000, 96, t.s1, W, 0);
    PART(4000, 97, t.s1, W, SMP_FAULT_OUT_OF_BOUNDS);
    PART(1, 4096, t.s1, R, SMP_FAULT_OUT_OF_BOUNDS);
    PART(1, UINT64_MAX, t.s1, R, SMP_FAULT_OUT_OF_BOUNDS);
    end();
}

static void p36_memory_nobody_allocated(void)
{
    smp_access_verdict v;
    begin();
    v = verdict_of(t.device, t.bytes + MIB, 1, t.s1, R);
    CHECK_EQ(v.order, SMP_ORDER_REFUTED);
    CHECK_EQ(v.faults, SMP_FAULT_UNKNOWN_MEMORY);
    CHECK_NULL(v.allocation);
    v = verdict_of(t.device, &v, 1, t.s1, R);
    CHECK_EQ(v.faults, SMP_FAULT_UNKNOWN_MEMORY);
    v = verdict_of(t.device, NULL, 1, t.s1, R);
    CHECK_EQ(v.faults, SMP_FAULT_UNKNOWN_MEMORY);
    end();
}

static void p37_a_free_that_does_not_follow_a_use(void)
{
    begin();
    order(t.s1, t.s2);
    FINE(t.s2, R);
    CHECK_EQ(warnings_of_free(t.s1) >= 1, BY_DEVICE(1, 0)); /* on CUDA the caller may have ordered it */
    CHECK_EQ(pool_stats(t.pool).racing_frees, BY_DEVICE(1, 0));
    end();
}

static void p38_a_free_that_follows_the_writer_but_not_the_reader(void)
{
    begin();
    FINE(t.s1, W);
    order(t.s1, t.s2);
    order(t.s1, t.s3);
    FINE(t.s2, R);
    CHECK_EQ(warnings_of_free(t.s3) >= 1, BY_DEVICE(1, 0));
    CHECK_EQ(pool_stats(t.pool).racing_frees, BY_DEVICE(1, 0));
    CHECK_EQ(pool_stats(t.pool).unordered_frees, 0); /* it does follow the allocation */
    end();
}

/* ---- what the verdict tells -------------------------------------------------------------------------------------- */

static void the_verdict_names_the_block_the_place_and_what_is_missing(void)
{
    smp_access_verdict v;
    begin();              /* s1: 1 */
    order(t.s1, t.s2);    /* s1: 2; s2: 1 */
    FINE(t.s1, W);        /* s1: 3 */
    kernel(t.device, t.s2, 5);
    v = verdict_of(t.device, t.bytes + 100, 8, t.s2, R); /* s2: 7 */
    CHECK_EQ(v.faults, BY_DEVICE(SMP_FAULT_RACE, 0));
    CHECK_EQ(v.order, NOT_ORDERED);
    CHECK_EQ(v.other_access, W); /* named although on CUDA it is no fault */
    CHECK_SAME(v.allocation, t.block);
    CHECK_EQ(v.offset, 100);
    CHECK_EQ(v.stream_id, 2);
    CHECK_EQ(v.seq, 7);
    CHECK_EQ(v.missing_stream_id, 1);
    CHECK_EQ(v.missing_seq, 3);
    v = verdict_of(t.device, t.bytes, 8, t.s1, R);
    CHECK_EQ(v.order, SMP_ORDER_PROVED);
    CHECK_EQ(v.other_access, 0);
    CHECK_EQ(v.missing_stream_id, SMP_NONE);
    end();
}

static void either_kind_of_pointer_is_taken(void)
{
    smp_device device = host_backed_device();
    smp_pool pool = pool_of(device, "sliced(page_size=2MiB)");
    smp_stream s = new_stream(device);
    smp_allocation a = alloc_on(pool, 4096, s);
    smp_access_verdict v;
    v = verdict_of(device, (char *)smp_allocation_ptr(a) + 4, 8, s, W);
    CHECK_EQ(v.order, SMP_ORDER_PROVED);
    CHECK_SAME(v.allocation, a);
    CHECK_EQ(v.offset, 4);
    v = verdict_of(device, at(BASE + 4), 8, s, W);
    CHECK_EQ(v.order, SMP_ORDER_PROVED);
    CHECK_SAME(v.allocation, a);
    CHECK_EQ(v.offset, 4);
    must(smp_pool_destroy(pool));
    must(smp_device_close(device));
}

TEST_MAIN(RUN_ANY_PACE(p01_one_stream_may_do_anything_in_its_own_order)
          RUN_ANY_PACE(p02_another_stream_may_use_it_after_an_event_recorded_after_the_allocation)
          RUN_ANY_PACE(p03_a_reader_that_waited_for_the_writer)
          RUN_ANY_PACE(p04_two_readers_at_the_same_time)
          RUN_ANY_PACE(p05_a_writer_that_waited_for_all_readers)
          RUN_ANY_PACE(p06_order_through_a_third_stream)
          RUN_ANY_PACE(p07_a_host_synchronise_orders_everybody)
          RUN_ANY_PACE(p08_an_event_synchronise_orders_what_came_before_the_event)
          RUN_ANY_PACE(p09_two_writers_of_different_bytes)
          RUN_ANY_PACE(p10_a_legacy_operation_between_two_blocking_streams)
          RUN_ANY_PACE(p11_work_on_the_legacy_stream_itself_follows_blocking_streams)
          RUN_ANY_PACE(p12_a_host_ordered_allocation_is_usable_by_every_stream)
          RUN_ANY_PACE(p13_memory_used_again_in_the_same_stream)
          RUN_ANY_PACE(p14_a_free_that_follows_every_use)
          RUN_ANY_PACE(p15_a_free_on_the_stream_of_the_last_user)
          RUN_ANY_PACE(p16_a_free_after_a_device_synchronise)
          RUN_ANY_PACE(p17_use_before_ready_another_stream_without_any_order)
          RUN_ANY_PACE(p18_use_before_ready_the_event_was_recorded_before_the_allocation)
          RUN_ANY_PACE(p19_use_before_ready_the_event_was_recorded_again_after_the_wait)
          RUN_ANY_PACE(p20_use_before_ready_a_non_blocking_stream_and_the_legacy_stream)
          RUN_ANY_PACE(p21_use_after_free_on_the_same_stream)
          RUN_ANY_PACE(p22_use_after_free_on_a_stream_that_is_ordered_after_the_allocation)
          RUN_ANY_PACE(p23_use_after_free_the_memory_serves_another_allocation)
          RUN_ANY_PACE(p24_write_write_race)
          RUN_ANY_PACE(p25_write_read_race)
          RUN_ANY_PACE(p26_read_write_race)
          RUN_ANY_PACE(p27_a_read_that_also_writes_races_a_reader)
          RUN_ANY_PACE(p28_a_writer_that_waited_for_one_of_two_readers)
          RUN_ANY_PACE(p29_the_event_was_recorded_before_the_write)
          RUN_ANY_PACE(p30_the_wait_came_after_the_event_that_was_passed_on)
          RUN_ANY_PACE(p31_the_order_points_the_other_way)
          RUN_ANY_PACE(p32_having_run_is_no_order)
          RUN_ANY_PACE(p33_one_byte_in_common_is_enough)
          RUN_ANY_PACE(p34_a_race_before_the_allocation_is_both)
          RUN_ANY_PACE(p35_past_the_bytes_asked_for)
          RUN_ANY_PACE(p36_memory_nobody_allocated)
          RUN_ANY_PACE(p37_a_free_that_does_not_follow_a_use)
          RUN_ANY_PACE(p38_a_free_that_follows_the_writer_but_not_the_reader)
          RUN_ANY_PACE(the_verdict_names_the_block_the_place_and_what_is_missing)
          RUN_ANY_PACE(either_kind_of_pointer_is_taken))
