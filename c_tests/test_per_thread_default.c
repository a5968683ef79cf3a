/* A caller compiled for per-thread default streams: by a null stream it means the thread's own, as with cuda.h.
 *
 * Every function that takes a stream has such a twin; each is called here with null and must have moved the thread's
 * stream and left the legacy default stream alone. SMP_STREAM_LEGACY still names the legacy one.
 */
#define CUDA_API_PER_THREAD_DEFAULT_STREAM 1
#include "support.h"

#define NULL_STREAM ((smp_stream)0)

struct scene {
    smp_device device;
    smp_pool pool;
};

static struct scene scene(void)
{
    struct scene t;
    t.device = lazy_device();
    t.pool = pool_of(t.device, "sliced(page_size=2MiB)");
    return t;
}

static void scene_end(struct scene *t)
{
    must(smp_pool_destroy(t->pool));
    must(smp_device_close(t->device));
}

static uint64_t own(struct scene *t)
{
    return submitted(t->device, SMP_STREAM_PER_THREAD);
}

static void a_null_stream_is_the_threads_own(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, NULL_STREAM);
    CHECK_EQ(own(&t), 1);
    CHECK_EQ(submitted(t.device, SMP_STREAM_LEGACY), 0);
    CHECK(stream_info(t.device, NULL_STREAM).stream_id != 0); /* 0 is the legacy default stream */
    CHECK_EQ(stream_info(t.device, NULL_STREAM).stream_id, stream_info(t.device, SMP_STREAM_PER_THREAD).stream_id);
    CHECK_STATUS(smp_is_ready_on(a, NULL_STREAM), SMP_SUCCESS);
    CHECK_STATUS(smp_is_ready_on(a, SMP_STREAM_PER_THREAD), SMP_SUCCESS);
    scene_end(&t);
}

static void the_legacy_stream_is_still_there_by_its_name(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, SMP_STREAM_LEGACY);
    CHECK_EQ(submitted(t.device, SMP_STREAM_LEGACY), 1);
    CHECK_EQ(own(&t), 0);
    CHECK_STATUS(smp_is_ready_on(a, NULL_STREAM), REFUTED); /* an allocation is no barrier */
    kernel(t.device, SMP_STREAM_LEGACY, 1);
    CHECK_STATUS(smp_is_ready_on(a, NULL_STREAM), SMP_SUCCESS);
    scene_end(&t);
}

/* Each line takes one place in the thread's stream; the count says that it was that stream. */
static void every_call_that_takes_a_stream_takes_null_for_the_threads_own(void)
{
    struct scene t = scene();
    smp_stream other = new_stream(t.device);
    smp_event e = new_event(t.device);
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_stream_info info = SMP_STREAM_INFO_INIT;
    smp_access_verdict v = SMP_ACCESS_VERDICT_INIT;
    smp_allocation a = NULL, b = NULL;
    void *p = NULL;
    uint64_t last = 0, ran = 0;

    CHECK_STATUS(smp_alloc_async(t.pool, 512, NULL_STREAM, &a), SMP_SUCCESS);
    CHECK_EQ(own(&t), 1);
    desc.size = 512;
    CHECK_STATUS(smp_alloc_async_ex(t.pool, &desc, &b), SMP_SUCCESS); /* its stream is null too */
    CHECK_EQ(own(&t), 2);
    CHECK_STATUS(smp_alloc_ptr_async(t.pool, 512, NULL_STREAM, &p), SMP_SUCCESS);
    CHECK_EQ(own(&t), 3);
    CHECK_STATUS(smp_note_access(t.device, p, 512, NULL_STREAM, SMP_ACCESS_WRITE, &v), SMP_SUCCESS);
    CHECK_EQ(own(&t), 4);
    CHECK_EQ(v.seq, 4);
    CHECK_STATUS(smp_free_ptr_async(t.device, p, NULL_STREAM), SMP_SUCCESS);
    CHECK_EQ(own(&t), 5);
    CHECK_STATUS(smp_free_async(b, NULL_STREAM), SMP_SUCCESS);
    CHECK_EQ(own(&t), 6);
    CHECK_STATUS(smp_event_record(t.device, e, NULL_STREAM), SMP_SUCCESS);
    CHECK_EQ(own(&t), 7);
    CHECK_STATUS(smp_stream_wait_event(t.device, NULL_STREAM, e), SMP_SUCCESS);
    CHECK_EQ(own(&t), 8);
    CHECK_STATUS(smp_note_event_record(t.device, e, NULL_STREAM), SMP_SUCCESS);
    CHECK_EQ(own(&t), 9);
    CHECK_STATUS(smp_note_stream_wait(t.device, NULL_STREAM, e), SMP_SUCCESS);
    CHECK_EQ(own(&t), 10);
    if (on_cuda()) {
        kernel(t.device, NULL_STREAM, 2);
        CHECK_EQ(own(&t), 12);
        CHECK_STATUS(smp_stream_query(t.device, NULL_STREAM), SMP_NOT_READY);
        CHECK_STATUS(smp_stream_get_info(t.device, NULL_STREAM, &info), SMP_SUCCESS);
        CHECK_EQ(info.submitted, 12);
        CHECK_EQ(submitted(t.device, SMP_STREAM_LEGACY), 0);
    } else {
        CHECK_STATUS(smp_model_stream_submit(t.device, NULL_STREAM, 2, &last), SMP_SUCCESS);
        CHECK_EQ(own(&t), 12);
        CHECK_EQ(last, 12);
        CHECK_STATUS(smp_stream_query(t.device, NULL_STREAM), SMP_NOT_READY);
        CHECK_STATUS(smp_model_stream_advance(t.device, NULL_STREAM, 3, &ran), SMP_SUCCESS);
        CHECK_EQ(ran, 3);
        CHECK_STATUS(smp_stream_get_info(t.device, NULL_STREAM, &info), SMP_SUCCESS);
        CHECK_EQ(info.executed, 3);
    }
    gates_open();
    CHECK_STATUS(smp_stream_synchronize(t.device, NULL_STREAM), SMP_SUCCESS);
    gates_close();
    CHECK_EQ(observed(t.device, SMP_STREAM_PER_THREAD), 12);
    kernel(t.device, NULL_STREAM, 1);
    CHECK_STATUS(smp_note_stream_synchronized(t.device, NULL_STREAM), SMP_SUCCESS);
    CHECK_EQ(observed(t.device, SMP_STREAM_PER_THREAD), 13);
    CHECK_REFUSED(smp_stream_release(t.device, NULL_STREAM), SMP_ERROR_INVALID_VALUE, "default");

    /* The thread's stream uses `a` too: freed on another stream, it stays pending until both have run. */
    kernel(t.device, NULL_STREAM, 1);
    CHECK_STATUS(smp_allocation_add_user(a, NULL_STREAM), SMP_SUCCESS);
    free_on(a, other);
    sync(t.device, other);
    CHECK_EQ(pool_stats(t.pool).pending, 1);
    sync(t.device, NULL_STREAM);
    CHECK_EQ(pool_stats(t.pool).pending, 0);

    CHECK_EQ(submitted(t.device, SMP_STREAM_LEGACY), 0);
    scene_end(&t);
}

TEST_MAIN(RUN_ANY_PACE(a_null_stream_is_the_threads_own)
          RUN_ANY_PACE(the_legacy_stream_is_still_there_by_its_name)
          RUN(every_call_that_takes_a_stream_takes_null_for_the_threads_own))
