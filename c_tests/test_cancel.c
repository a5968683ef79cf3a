/* Threads that are to be cancelled (pthread_cancel, deferred). The library's calls are no cancellation points: a call that is made with
 * a cancellation pending is done as any other, and the thread ends at the next point of its own.
 *
 * Each call is made as a thread's first, and as a later one; while a trace is recorded, and while none is.
 */
#include "support.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

/* A call of the library. */
enum call {
    ALLOC,
    ALLOC_PER_THREAD,
    ALLOC_EX,
    ALLOC_HOST,
    ALLOC_POINTER,
    FREE_OTHERS,
    FREE_HOST,
    FREE_POINTER,
    FREE_UNORDERED,
    FREE_BAD,
    POOL,
    POOL_SPEC,
    TRIM,
    STATS,
    REPORT,
    STREAM,
    STREAM_SYNC,
    STREAM_QUERY,
    STREAM_WAIT,
    EVENT,
    EVENT_RECORD,
    EVENT_SYNC,
    DEVICE,
    DEVICE_SYNC,
    NOTE_ACCESS,
    FIND,
    TRACE,
    REPLAY,
    CALLS
};

struct scene {
    smp_device device;
    smp_pool pool;
    smp_stream stream, other;
    smp_event event;
    smp_allocation allocation;
    enum call call;
    int before; /* so many pairs are made before the cancellation */
    int returned; /* the call has returned */
    smp_status status;
    const char *file;
    const char *trace;
};

/* A cancellation point. */
static void point(void)
{
    const struct timespec moment = { 0, 1000 };
    nanosleep(&moment, NULL);
}

static int written(void *user, const char *text, uint64_t length)
{
    (void)user;
    (void)text;
    (void)length;
    point();
    return 0;
}

static void logged(void *user, uint32_t level, const char *text)
{
    (void)level;
    (void)text;
    ++*(int *)user;
    point();
}

static int refuse(void *user, const smp_out_of_memory *info)
{
    (void)info;
    ++*(int *)user;
    point();
    return 0;
}

static smp_status made(struct scene *t)
{
    smp_status status = SMP_SUCCESS;
    smp_allocation a = NULL;
    smp_pool pool = NULL;
    smp_stream stream = NULL;
    smp_event event = NULL;
    smp_device device = NULL;
    void *pointer = NULL;
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_pool_stats stats = SMP_POOL_STATS_INIT;
    smp_device_desc model = SMP_DEVICE_DESC_INIT;
    smp_replay_result result = SMP_REPLAY_RESULT_INIT;
    switch (t->call) {
    case ALLOC:
        return smp_alloc_async(t->pool, 3000, t->stream, &a);
    case ALLOC_PER_THREAD:
        return smp_alloc_async(t->pool, 3000, SMP_STREAM_PER_THREAD, &a);
    case ALLOC_EX:
        desc.size = 5000;
        desc.stream = t->other;
        desc.name = "named";
        return smp_alloc_async_ex(t->pool, &desc, &a);
    case ALLOC_HOST:
        return smp_alloc(t->pool, 3000, &a);
    case ALLOC_POINTER:
        return smp_alloc_ptr_async(t->pool, 3000, t->stream, &pointer);
    case FREE_OTHERS:
        return smp_free_async(t->allocation, t->stream);
    case FREE_HOST:
        return smp_free(t->allocation);
    case FREE_POINTER:
        return smp_free_ptr_async(t->device, smp_allocation_ptr(t->allocation), t->stream);
    case FREE_UNORDERED: /* it is logged */
        return smp_free_async(t->allocation, t->other);
    case FREE_BAD:
        return smp_free((smp_allocation)t->stream) == SMP_ERROR_INVALID_HANDLE ? SMP_SUCCESS : SMP_ERROR_INTERNAL;
    case POOL:
        return smp_pool_create(t->device, NULL, &pool);
    case POOL_SPEC:
        return smp_pool_create_from_spec(t->device, "preset(sub-slices)", &pool);
    case TRIM:
        return smp_pool_trim_to(t->pool, 0);
    case STATS:
        return smp_pool_get_stats(t->pool, &stats);
    case REPORT:
        return smp_pool_report(t->pool, SMP_REPORT_JSON, written, NULL);
    case STREAM:
        return smp_stream_create(t->device, 0, &stream);
    case STREAM_SYNC:
        return smp_stream_synchronize(t->device, t->stream);
    case STREAM_QUERY:
        status = smp_stream_query(t->device, t->stream);
        return status == SMP_NOT_READY ? SMP_SUCCESS : status;
    case STREAM_WAIT:
        return smp_stream_wait_event(t->device, t->other, t->event);
    case EVENT:
        return smp_event_create(t->device, 0, &event);
    case EVENT_RECORD:
        return smp_event_record(t->device, t->event, t->stream);
    case EVENT_SYNC:
        return smp_event_synchronize(t->event);
    case DEVICE:
        model.kind = SMP_DEVICE_MODEL;
        status = smp_device_open(&model, &device);
        return status == SMP_SUCCESS ? smp_device_close(device) : status;
    case DEVICE_SYNC:
        return smp_device_synchronize(t->device);
    case NOTE_ACCESS:
        return smp_note_access(t->device, smp_allocation_ptr(t->allocation), 100, t->stream, SMP_ACCESS_WRITE, NULL);
    case FIND:
        return smp_allocation_find(t->device, smp_allocation_ptr(t->allocation), &a, NULL);
    case TRACE:
        model.kind = SMP_DEVICE_MODEL;
        status = smp_device_open(&model, &device);
        if (status == SMP_SUCCESS)
            status = smp_trace_start(device, t->trace, 0);
        return status == SMP_SUCCESS ? smp_trace_stop(device) : status;
    case REPLAY:
        return smp_trace_replay(t->file, NULL, &result);
    case CALLS:
        break;
    }
    return SMP_ERROR_INTERNAL;
}

static void *to_be_cancelled(void *argument)
{
    struct scene *t = (struct scene *)argument;
    int i;
    for (i = 0; i < t->before; ++i) {
        smp_allocation a;
        if (smp_alloc_async(t->pool, 4096, t->stream, &a) != SMP_SUCCESS || smp_free_async(a, t->stream) != SMP_SUCCESS)
            return NULL;
    }
    pthread_cancel(pthread_self());
    t->status = made(t);
    t->returned = 1;
    pthread_testcancel();
    return NULL;
}

/* The call returns with a cancellation pending, which takes effect where the thread lets it. */
static int survives(struct scene *t)
{
    pthread_t thread;
    void *ended = NULL;
    t->returned = 0;
    t->status = SMP_ERROR_INTERNAL;
    if (pthread_create(&thread, NULL, to_be_cancelled, t) != 0 || pthread_join(thread, &ended) != 0)
        return 0;
    if (!t->returned || t->status != SMP_SUCCESS)
        printf("call %d after %d pairs: returned %d, status %s\n", (int)t->call, t->before, t->returned,
               smp_status_name((uint32_t)t->status));
    return t->returned && t->status == SMP_SUCCESS && ended == PTHREAD_CANCELED;
}

static char file[256], trace[256], own_trace[256];

static void name_files(void)
{
    const char *folder = getenv("TMPDIR");
    folder = folder != NULL ? folder : "/tmp";
    snprintf(file, sizeof file, "%s/smp_test_cancel.%ld.v1", folder, (long)getpid());
    snprintf(trace, sizeof trace, "%s/smp_test_cancel.%ld.trace", folder, (long)getpid());
    snprintf(own_trace, sizeof own_trace, "%s/smp_test_cancel.%ld.own", folder, (long)getpid());
}

static void each_call(int recorded)
{
    struct scene t;
    int call, before, logs = 0;
    FILE *v1;
    name_files();
    v1 = fopen(file, "w");
    CHECK(v1 != NULL && fputs("op,id,size,stream,thread\na,0,1000,0,0\nf,0,1000,0,0\n", v1) >= 0 && fclose(v1) == 0);
    must(smp_set_log_callback(SMP_LOG_INFO, logged, &logs));
    for (before = 0; before <= 100; before += 100) {
        t.device = eager_device();
        t.trace = trace;
        t.file = file;
        t.before = before;
        if (recorded)
            must(smp_trace_start(t.device, own_trace, 0));
        t.pool = pool_of(t.device, "preset(mapped)");
        must(smp_stream_create(t.device, SMP_STREAM_NON_BLOCKING, &t.stream));
        must(smp_stream_create(t.device, SMP_STREAM_NON_BLOCKING, &t.other));
        t.event = new_event(t.device);
        for (call = 0; call < CALLS; ++call) {
            t.call = (enum call)call;
            must(smp_alloc_async(t.pool, 100000, t.stream, &t.allocation));
            CHECK(survives(&t));
        }
        if (recorded)
            CHECK_STATUS(smp_trace_stop(t.device), SMP_SUCCESS);
        CHECK(smp_alloc_async(t.pool, 3000, t.stream, &t.allocation) == SMP_SUCCESS);
        must(smp_pool_destroy(t.pool));
        must(smp_device_close(t.device));
    }
    must(smp_set_log_callback(SMP_LOG_OFF, NULL, NULL));
    CHECK(logs > 0 || on_cuda()); /* there the order is not known, and nothing is said */
    remove(file);
    remove(trace);
    remove(own_trace);
}

static void a_call_is_no_cancellation_point(void)
{
    each_call(0);
}

static void nor_is_it_while_a_trace_is_recorded(void)
{
    each_call(1);
}

static void calls_go_on_while_a_trace_is_written(void)
{
    struct scene t;
    int i;
    name_files();
    t.device = eager_device();
    must(smp_trace_start(t.device, own_trace, 0));
    t.pool = pool_of(t.device, "preset(mapped)");
    must(smp_stream_create(t.device, 0, &t.stream));
    t.call = ALLOC;
    t.before = 0;
    /* More than the file's buffer holds. */
    for (i = 0; i < 3000; ++i)
        CHECK(survives(&t));
    CHECK_STATUS(smp_trace_stop(t.device), SMP_SUCCESS);
    remove(own_trace);
}

static void an_out_of_memory_callback_runs_without_cancellation(void)
{
    struct scene t;
    int called = 0;
    pthread_t thread;
    void *ended = NULL;
    t.device = device_with(0, 2 * MIB, 0, 0);
    t.pool = pool_of(t.device, "sliced(page_size=2MiB)");
    must(smp_stream_create(t.device, 0, &t.stream));
    must(smp_pool_set_out_of_memory_callback(t.pool, refuse, &called));
    must(smp_alloc_async(t.pool, 2 * MIB, t.stream, &t.allocation));
    t.call = ALLOC;
    t.before = 0;
    t.returned = 0;
    CHECK_EQ(pthread_create(&thread, NULL, to_be_cancelled, &t), 0);
    CHECK_EQ(pthread_join(thread, &ended), 0);
    CHECK_SAME(ended, PTHREAD_CANCELED);
    CHECK_EQ(t.status, SMP_ERROR_OUT_OF_MEMORY);
    CHECK(called > 0);
}

static void *disabled(void *argument)
{
    struct scene *t = (struct scene *)argument;
    int state = -1;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    t->status = made(t);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    t->returned = state;
    return NULL;
}

static void a_call_leaves_the_state_as_it_was(void)
{
    struct scene t;
    pthread_t thread;
    t.device = eager_device();
    t.pool = pool_of(t.device, "preset(mapped)");
    t.call = POOL;
    CHECK_EQ(pthread_create(&thread, NULL, disabled, &t), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(t.status, SMP_SUCCESS);
    CHECK_EQ(t.returned, PTHREAD_CANCEL_DISABLE);
}

TEST_MAIN(RUN_ANY_PACE(a_call_is_no_cancellation_point)
          RUN_ANY_PACE(nor_is_it_while_a_trace_is_recorded)
          RUN(calls_go_on_while_a_trace_is_written)
          RUN_ANY_PACE(an_out_of_memory_callback_runs_without_cancellation)
          RUN_ANY_PACE(a_call_leaves_the_state_as_it_was))
