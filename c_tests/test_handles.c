/* Handles: any value, at any time, gets an error and a text, and changes nothing.
 *
 * One table holds every function that takes a handle, as a small call of one argument; for each the wrong values are
 * tried: null, never given out, of another kind, of the same kind but destroyed, freed or closed. After each, the
 * figures of an innocent pool, its allocation, its stream and its device must be what they were.
 *
 * On CUDA a stream or event is the driver's pointer, which only the driver can judge: the stand-in does, and the library
 * passes its word on. What the library tells no driver (notes, smp_stream_release) takes such a value as it is.
 */
#include "support.h"

/* What must not change, and the good handles that stand beside the wrong one. */
struct world {
    smp_device device;
    smp_pool pool;
    smp_stream stream;
    smp_event event;
    smp_allocation allocation;
};

static struct world w;

static struct world new_world(void)
{
    struct world made;
    made.device = lazy_device();
    made.pool = pool_of(made.device, "sliced(page_size=2MiB)");
    made.stream = new_stream(made.device);
    made.event = record_on(made.device, made.stream);
    made.allocation = alloc_on(made.pool, 1000, made.stream);
    stream_info(made.device, LEGACY); /* counted among the device's streams once used: let that be now */
    return made;
}

static void end_world(struct world *old)
{
    must(smp_pool_destroy(old->pool));
    must(smp_device_close(old->device));
}

struct figures {
    smp_pool_stats pool;
    smp_device_info device;
    smp_stream_info stream;
    smp_stream_info legacy;
    smp_allocation_info allocation;
    smp_status event;
};

static void take_figures(struct figures *f)
{
    memset(f, 0, sizeof *f);
    f->pool = pool_stats(w.pool);
    f->device = device_info(w.device);
    f->stream = stream_info(w.device, w.stream);
    f->legacy = stream_info(w.device, LEGACY);
    f->allocation = allocation_info(w.allocation);
    f->event = smp_event_query(w.event);
}

static int write_nothing(void *user, const char *text, uint64_t length)
{
    (void)user;
    (void)text;
    (void)length;
    return 0;
}

/* ---- every function that takes a handle, by kind of handle ------------------------------------------------------ */

typedef void *value;

static smp_status device_get_info(value h)
{
    smp_device_info info = SMP_DEVICE_INFO_INIT;
    return smp_device_get_info((smp_device)h, &info);
}
static smp_status device_synchronize(value h) { return smp_device_synchronize((smp_device)h); }
static smp_status device_close(value h) { return smp_device_close((smp_device)h); }
static smp_status device_pool_create(value h)
{
    smp_pool out = NULL;
    return smp_pool_create((smp_device)h, NULL, &out);
}
static smp_status device_pool_create_from_spec(value h)
{
    smp_pool out = NULL;
    return smp_pool_create_from_spec((smp_device)h, "direct()", &out);
}
static smp_status device_stream_create(value h)
{
    smp_stream out = NULL;
    return smp_stream_create((smp_device)h, 0, &out);
}
static smp_status device_event_create(value h)
{
    smp_event out = NULL;
    return smp_event_create((smp_device)h, 0, &out);
}
static smp_status device_free_ptr(value h)
{
    return smp_free_ptr_async((smp_device)h, smp_allocation_ptr(w.allocation), w.stream);
}
static smp_status device_free_null(value h) { return smp_free_ptr_async((smp_device)h, NULL, w.stream); }
static smp_status device_host_free_ptr(value h)
{
    return smp_free_ptr((smp_device)h, smp_allocation_ptr(w.allocation));
}
static smp_status device_host_free_null(value h) { return smp_free_ptr((smp_device)h, NULL); }
static smp_status device_find(value h)
{
    smp_allocation out = NULL;
    uint64_t offset = 0;
    return smp_allocation_find((smp_device)h, smp_allocation_ptr(w.allocation), &out, &offset);
}
static smp_status device_default_stream_synchronize(value h) { return smp_stream_synchronize((smp_device)h, LEGACY); }
static smp_status device_default_stream_query(value h) { return smp_stream_query((smp_device)h, LEGACY); }
static smp_status device_default_stream_record(value h) { return smp_event_record((smp_device)h, w.event, LEGACY); }
static smp_status device_default_stream_wait(value h) { return smp_stream_wait_event((smp_device)h, LEGACY, w.event); }
static smp_status device_note_synchronized(value h) { return smp_note_device_synchronized((smp_device)h); }
static smp_status device_note_access(value h)
{
    smp_access_verdict v = SMP_ACCESS_VERDICT_INIT;
    return smp_note_access((smp_device)h, smp_allocation_ptr(w.allocation), 1, LEGACY, SMP_ACCESS_READ, &v);
}
static smp_status device_note_event_synchronized(value h)
{
    return smp_note_event_synchronized((smp_device)h, w.event);
}
static smp_status device_note_event_destroyed(value h) { return smp_note_event_destroyed((smp_device)h, w.event); }
static smp_status device_submit(value h) { return smp_model_stream_submit((smp_device)h, LEGACY, 1, NULL); }
static smp_status device_advance(value h) { return smp_model_stream_advance((smp_device)h, LEGACY, 1, NULL); }
static smp_status device_set_capacity(value h) { return smp_model_set_capacity((smp_device)h, 1); }
static smp_status device_refuse_pages(value h) { return smp_model_refuse_pages((smp_device)h, 0, 1); }
static smp_status device_refuse_releases(value h) { return smp_model_refuse_releases((smp_device)h, 1); }
static smp_status device_trace_start(value h) { return smp_trace_start((smp_device)h, "never-written.smptrace", 0); }
static smp_status device_trace_stop(value h) { return smp_trace_stop((smp_device)h); }

static smp_status pool_destroy(value h) { return smp_pool_destroy((smp_pool)h); }
static smp_status pool_trim(value h) { return smp_pool_trim_to((smp_pool)h, 0); }
static smp_status pool_get_attribute(value h)
{
    uint64_t out = 0;
    return smp_pool_get_attribute((smp_pool)h, 1, &out);
}
static smp_status pool_set_attribute(value h) { return smp_pool_set_attribute((smp_pool)h, 1, 0); }
static smp_status pool_get_stats(value h)
{
    smp_pool_stats out = SMP_POOL_STATS_INIT;
    return smp_pool_get_stats((smp_pool)h, &out);
}
static smp_status pool_get_entry_stats(value h)
{
    smp_pool_stats out = SMP_POOL_STATS_INIT;
    return smp_pool_get_entry_stats((smp_pool)h, 0, &out);
}
static smp_status pool_report(value h) { return smp_pool_report((smp_pool)h, SMP_REPORT_TEXT, write_nothing, NULL); }
static smp_status pool_set_callback(value h) { return smp_pool_set_out_of_memory_callback((smp_pool)h, NULL, NULL); }
static smp_status pool_alloc_async(value h)
{
    smp_allocation out = (smp_allocation)(void *)&w;
    smp_status status = smp_alloc_async((smp_pool)h, 512, w.stream, &out);
    CHECK_NULL(out);
    return status;
}
static smp_status pool_alloc_async_ex(value h)
{
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation out = (smp_allocation)(void *)&w;
    smp_status status;
    desc.size = 512;
    desc.stream = w.stream;
    status = smp_alloc_async_ex((smp_pool)h, &desc, &out);
    CHECK_NULL(out);
    return status;
}
static smp_status pool_alloc(value h)
{
    smp_allocation out = (smp_allocation)(void *)&w;
    smp_status status = smp_alloc((smp_pool)h, 512, &out);
    CHECK_NULL(out);
    return status;
}
static smp_status pool_alloc_ex(value h)
{
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation out = (smp_allocation)(void *)&w;
    smp_status status;
    desc.size = 512;
    status = smp_alloc_ex((smp_pool)h, &desc, &out);
    CHECK_NULL(out);
    return status;
}
static smp_status pool_alloc_ptr(value h)
{
    void *out = &w;
    smp_status status = smp_alloc_ptr_async((smp_pool)h, 512, w.stream, &out);
    CHECK_NULL(out);
    return status;
}

static smp_status allocation_free_async(value h) { return smp_free_async((smp_allocation)h, w.stream); }
static smp_status allocation_free(value h) { return smp_free((smp_allocation)h); }
static smp_status allocation_get_info(value h)
{
    smp_allocation_info out = SMP_ALLOCATION_INFO_INIT;
    return smp_allocation_get_info((smp_allocation)h, &out);
}
static smp_status allocation_add_user(value h) { return smp_allocation_add_user((smp_allocation)h, w.stream); }
static smp_status allocation_is_ready(value h) { return smp_is_ready((smp_allocation)h); }
static smp_status allocation_is_ready_on(value h) { return smp_is_ready_on((smp_allocation)h, w.stream); }

static smp_status stream_destroy(value h) { return smp_stream_destroy((smp_stream)h); }
static smp_status stream_release(value h) { return smp_stream_release(w.device, (smp_stream)h); }
static smp_status stream_synchronize(value h) { return smp_stream_synchronize(w.device, (smp_stream)h); }
static smp_status stream_query(value h) { return smp_stream_query(w.device, (smp_stream)h); }
static smp_status stream_get_info(value h)
{
    smp_stream_info out = SMP_STREAM_INFO_INIT;
    return smp_stream_get_info(w.device, (smp_stream)h, &out);
}
static smp_status stream_wait_event(value h) { return smp_stream_wait_event(w.device, (smp_stream)h, w.event); }
static smp_status stream_record(value h) { return smp_event_record(w.device, w.event, (smp_stream)h); }
static smp_status stream_alloc_async(value h)
{
    smp_allocation out = NULL;
    return smp_alloc_async(w.pool, 512, (smp_stream)h, &out);
}
static smp_status stream_alloc_ptr_async(value h)
{
    void *out = NULL;
    return smp_alloc_ptr_async(w.pool, 512, (smp_stream)h, &out);
}
static smp_status stream_alloc_async_ex(value h)
{
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation out = NULL;
    desc.size = 512;
    desc.stream = (smp_stream)h;
    return smp_alloc_async_ex(w.pool, &desc, &out);
}
static smp_status stream_free_async(value h) { return smp_free_async(w.allocation, (smp_stream)h); }
static smp_status stream_free_ptr_async(value h)
{
    return smp_free_ptr_async(w.device, smp_allocation_ptr(w.allocation), (smp_stream)h);
}
static smp_status stream_add_user(value h) { return smp_allocation_add_user(w.allocation, (smp_stream)h); }
static smp_status stream_is_ready_on(value h) { return smp_is_ready_on(w.allocation, (smp_stream)h); }
static smp_status stream_submit(value h) { return smp_model_stream_submit(w.device, (smp_stream)h, 1, NULL); }
static smp_status stream_advance(value h) { return smp_model_stream_advance(w.device, (smp_stream)h, 1, NULL); }
static smp_status stream_note_record(value h) { return smp_note_event_record(w.device, w.event, (smp_stream)h); }
static smp_status stream_note_wait(value h) { return smp_note_stream_wait(w.device, (smp_stream)h, w.event); }
static smp_status stream_note_synchronized(value h)
{
    return smp_note_stream_synchronized(w.device, (smp_stream)h);
}
static smp_status stream_note_access(value h)
{
    smp_access_verdict v = SMP_ACCESS_VERDICT_INIT;
    return smp_note_access(w.device, smp_allocation_ptr(w.allocation), 1, (smp_stream)h, SMP_ACCESS_READ, &v);
}

static smp_status event_record(value h) { return smp_event_record(w.device, (smp_event)h, w.stream); }
static smp_status event_query(value h) { return smp_event_query((smp_event)h); }
static smp_status event_synchronize(value h) { return smp_event_synchronize((smp_event)h); }
static smp_status event_destroy(value h) { return smp_event_destroy((smp_event)h); }
static smp_status event_wait(value h) { return smp_stream_wait_event(w.device, w.stream, (smp_event)h); }
static smp_status event_note_record(value h) { return smp_note_event_record(w.device, (smp_event)h, w.stream); }
static smp_status event_note_wait(value h) { return smp_note_stream_wait(w.device, w.stream, (smp_event)h); }
static smp_status event_note_synchronized(value h) { return smp_note_event_synchronized(w.device, (smp_event)h); }
static smp_status event_note_destroyed(value h) { return smp_note_event_destroyed(w.device, (smp_event)h); }

enum kind { DEVICE, POOL, ALLOCATION, STREAM, EVENT, KINDS };

struct function {
    const char *name;
    enum kind kind;
    smp_status (*call)(value);
};

#define F(kind, name) {#name, kind, name}
static const struct function functions[] = {
    F(DEVICE, device_get_info), F(DEVICE, device_synchronize), F(DEVICE, device_close),
    F(DEVICE, device_pool_create), F(DEVICE, device_pool_create_from_spec), F(DEVICE, device_stream_create),
    F(DEVICE, device_event_create), F(DEVICE, device_free_ptr), F(DEVICE, device_free_null),
    F(DEVICE, device_host_free_ptr), F(DEVICE, device_host_free_null), F(DEVICE, device_find),
    F(DEVICE, device_default_stream_synchronize), F(DEVICE, device_default_stream_query),
    F(DEVICE, device_default_stream_record), F(DEVICE, device_default_stream_wait),
    F(DEVICE, device_note_synchronized), F(DEVICE, device_note_access), F(DEVICE, device_note_event_synchronized),
    F(DEVICE, device_note_event_destroyed), F(DEVICE, device_submit), F(DEVICE, device_advance),
    F(DEVICE, device_set_capacity), F(DEVICE, device_refuse_pages), F(DEVICE, device_refuse_releases),
    F(DEVICE, device_trace_start), F(DEVICE, device_trace_stop),
    F(POOL, pool_destroy), F(POOL, pool_trim), F(POOL, pool_get_attribute), F(POOL, pool_set_attribute),
    F(POOL, pool_get_stats), F(POOL, pool_get_entry_stats), F(POOL, pool_report), F(POOL, pool_set_callback),
    F(POOL, pool_alloc_async), F(POOL, pool_alloc_async_ex), F(POOL, pool_alloc), F(POOL, pool_alloc_ex), F(POOL, pool_alloc_ptr),
    F(ALLOCATION, allocation_free_async), F(ALLOCATION, allocation_free), F(ALLOCATION, allocation_get_info),
    F(ALLOCATION, allocation_add_user), F(ALLOCATION, allocation_is_ready), F(ALLOCATION, allocation_is_ready_on),
    F(STREAM, stream_destroy), F(STREAM, stream_release), F(STREAM, stream_synchronize), F(STREAM, stream_query),
    F(STREAM, stream_get_info), F(STREAM, stream_wait_event), F(STREAM, stream_record), F(STREAM, stream_alloc_async),
    F(STREAM, stream_alloc_ptr_async), F(STREAM, stream_alloc_async_ex), F(STREAM, stream_free_async),
    F(STREAM, stream_free_ptr_async), F(STREAM, stream_add_user), F(STREAM, stream_is_ready_on),
    F(STREAM, stream_submit), F(STREAM, stream_advance), F(STREAM, stream_note_record), F(STREAM, stream_note_wait),
    F(STREAM, stream_note_synchronized), F(STREAM, stream_note_access),
    F(EVENT, event_record), F(EVENT, event_query), F(EVENT, event_synchronize), F(EVENT, event_destroy),
    F(EVENT, event_wait), F(EVENT, event_note_record), F(EVENT, event_note_wait), F(EVENT, event_note_synchronized),
    F(EVENT, event_note_destroyed),
};
#define FUNCTIONS (sizeof functions / sizeof *functions)

static const char *const words[KINDS] = {"device", "pool", "allocation", "stream", "event"};

/* Whether only the driver can judge the value: a stream or event on CUDA that could be a pointer of its. */
static int is_the_drivers(enum kind kind, value v)
{
    return on_cuda() && (kind == STREAM || kind == EVENT) && (uint64_t)(uintptr_t)v > 2 &&
           (uint64_t)(uintptr_t)v >> 60 == 0;
}

/* By the driver's word: refused where the driver is asked, whatever the text. */
static void refused_by_the_driver(const struct function *function, value wrong)
{
    smp_status status;
    if (strstr(function->name, "note") != NULL || strcmp(function->name, "stream_release") == 0)
        return;
    status = function->call(wrong);
    CHECK(status == SMP_ERROR_INVALID_HANDLE || status == SMP_ERROR_DESTROYED || status == SMP_ERROR_NOT_SUPPORTED);
    if (status == SMP_SUCCESS)
        printf("  ... in %s of %p\n", function->name, wrong);
}

/* Calls every function that takes this kind with the wrong value: the status, a text that names the kind, no change. */
static void refused_everywhere(enum kind kind, value wrong, smp_status expected)
{
    struct figures before, after;
    size_t i;
    for (i = 0; i < FUNCTIONS; ++i) {
        unsigned long failures = test_failures;
        if (functions[i].kind != kind)
            continue;
        if (is_the_drivers(kind, wrong)) {
            refused_by_the_driver(&functions[i], wrong);
            continue;
        }
        take_figures(&before);
        CHECK_STATUS(functions[i].call(wrong), expected);
        CHECK_EQ(last_status(), expected);
        CHECK_HAS(last_message(), words[kind]);
        take_figures(&after);
        CHECK(memcmp(&before, &after, sizeof before) == 0);
        if (test_failures != failures)
            printf("  ... in %s of %p\n", functions[i].name, wrong);
    }
}

/* ---- the wrong values ------------------------------------------------------------------------------------------- */

static void null_is_an_invalid_handle(void)
{
    w = new_world();
    refused_everywhere(DEVICE, NULL, SMP_ERROR_INVALID_HANDLE);
    refused_everywhere(POOL, NULL, SMP_ERROR_INVALID_HANDLE);
    refused_everywhere(ALLOCATION, NULL, SMP_ERROR_INVALID_HANDLE);
    refused_everywhere(EVENT, NULL, SMP_ERROR_INVALID_HANDLE);
    /* A null stream is the legacy default stream: of no device it names nothing. */
    CHECK_REFUSED(smp_stream_synchronize(NULL, LEGACY), SMP_ERROR_INVALID_HANDLE, "device");
    CHECK(smp_allocation_ptr(NULL) == NULL);
    end_world(&w);
}

static void a_value_never_given_out_is_an_invalid_handle(void)
{
    static const uint64_t never[] = {
        3,      4,     7,    0xFF, 0x1000, 0xDEADBEEF, UINT64_C(0x7FFFFFFFFFFFFFFF), UINT64_C(0x8000000000000000),
        UINT64_C(0xFFFFFFFFFFFFFFFF), BASE, BASE + 512, UINT64_C(0x0123456789ABCDEF), UINT64_C(0xAAAAAAAAAAAAAAAA),
    };
    size_t i;
    int kind;
    w = new_world();
    for (i = 0; i < sizeof never / sizeof *never; ++i)
        for (kind = 0; kind < KINDS; ++kind)
            refused_everywhere((enum kind)kind, at(never[i]), SMP_ERROR_INVALID_HANDLE);
    end_world(&w);
}

static void an_address_of_the_program_is_an_invalid_handle(void)
{
    int kind;
    void *heap = malloc(64);
    w = new_world();
    for (kind = 0; kind < KINDS; ++kind) {
        refused_everywhere((enum kind)kind, &w, SMP_ERROR_INVALID_HANDLE);
        refused_everywhere((enum kind)kind, heap, SMP_ERROR_INVALID_HANDLE);
    }
    free(heap);
    end_world(&w);
}

static void a_handle_of_another_kind_is_an_invalid_handle(void)
{
    value good[KINDS];
    int kind, other;
    w = new_world();
    good[DEVICE] = w.device;
    good[POOL] = w.pool;
    good[ALLOCATION] = w.allocation;
    good[STREAM] = w.stream;
    good[EVENT] = w.event;
    for (kind = 0; kind < KINDS; ++kind)
        for (other = 0; other < KINDS; ++other)
            if (kind != other)
                refused_everywhere((enum kind)kind, good[other], SMP_ERROR_INVALID_HANDLE);
    end_world(&w);
}

static void a_freed_allocation_answers_freed_from_every_call(void)
{
    smp_allocation freed, host;
    w = new_world();
    freed = alloc_on(w.pool, 512, w.stream);
    free_on(freed, w.stream);
    refused_everywhere(ALLOCATION, freed, SMP_ERROR_FREED);
    must(smp_alloc(w.pool, 512, &host));
    must(smp_free(host));
    refused_everywhere(ALLOCATION, host, SMP_ERROR_FREED);
    CHECK_NULL(smp_allocation_ptr(freed));
    CHECK_NULL(smp_allocation_ptr(host));
    end_world(&w);
}

static void a_freed_allocation_stays_freed_after_its_memory_is_given_out_again(void)
{
    smp_allocation freed, next;
    int i;
    w = new_world();
    freed = alloc_on(w.pool, 512, w.stream);
    free_on(freed, w.stream);
    for (i = 0; i < 1000; ++i) {
        next = alloc_on(w.pool, 512, w.stream);
        CHECK(next != freed);
        free_on(next, w.stream);
    }
    next = alloc_on(w.pool, 512, w.stream);
    CHECK_STATUS(smp_free_async(freed, w.stream), SMP_ERROR_FREED);
    CHECK_EQ(pool_stats(w.pool).live, 2); /* the world's and `next` */
    CHECK(smp_allocation_ptr(next) != NULL);
    end_world(&w);
}

static void a_double_free_never_hands_the_block_out_twice(void)
{
    smp_allocation a, b, c;
    w = new_world();
    a = alloc_on(w.pool, 4096, w.stream);
    free_on(a, w.stream);
    CHECK_STATUS(smp_free_async(a, w.stream), SMP_ERROR_FREED);
    CHECK_STATUS(smp_free(a), SMP_ERROR_FREED);
    b = alloc_on(w.pool, 4096, w.stream);
    c = alloc_on(w.pool, 4096, w.stream);
    CHECK(address(b) != address(c));
    CHECK_EQ(pool_stats(w.pool).frees, 1);
    end_world(&w);
}

static void a_destroyed_pool_answers_destroyed(void)
{
    smp_pool gone;
    w = new_world();
    gone = pool_of(w.device, "direct()");
    must(smp_pool_destroy(gone));
    refused_everywhere(POOL, gone, SMP_ERROR_DESTROYED);
    end_world(&w);
}

static void a_destroyed_pool_with_live_blocks_answers_destroyed_and_its_blocks_do_not(void)
{
    smp_pool gone;
    smp_allocation a;
    w = new_world();
    gone = pool_of(w.device, "direct()");
    a = alloc_on(gone, 512, w.stream);
    must(smp_pool_destroy(gone));
    refused_everywhere(POOL, gone, SMP_ERROR_DESTROYED);
    CHECK_STATUS(smp_is_ready_on(a, w.stream), SMP_SUCCESS);
    CHECK_STATUS(smp_free_async(a, w.stream), SMP_SUCCESS);
    refused_everywhere(ALLOCATION, a, SMP_ERROR_FREED);
    end_world(&w);
}

static void a_destroyed_stream_answers_destroyed(void)
{
    smp_stream gone, released;
    w = new_world();
    gone = new_stream(w.device);
    must(smp_stream_destroy(gone));
    refused_everywhere(STREAM, gone, SMP_ERROR_DESTROYED);
    released = new_stream(w.device);
    kernel(w.device, released, 1);
    must(smp_stream_release(w.device, released));
    if (!on_cuda()) /* there the driver's stream lives on, to be adopted again */
        refused_everywhere(STREAM, released, SMP_ERROR_DESTROYED);
    end_world(&w);
}

static void a_destroyed_event_answers_destroyed(void)
{
    smp_event gone;
    w = new_world();
    gone = record_on(w.device, w.stream);
    must(smp_event_destroy(gone));
    refused_everywhere(EVENT, gone, SMP_ERROR_DESTROYED);
    gone = new_event(w.device);
    must(smp_note_event_destroyed(w.device, gone));
    if (!on_cuda()) /* there the driver's event lives on until the caller's own destroy */
        refused_everywhere(EVENT, gone, SMP_ERROR_DESTROYED);
    end_world(&w);
}

static void a_closed_device_answers_destroyed_and_its_pools_live_on(void)
{
    struct world other;
    w = new_world();
    other = new_world();
    must(smp_device_close(other.device));
    refused_everywhere(DEVICE, other.device, SMP_ERROR_DESTROYED);
    CHECK_STATUS(smp_free_async(other.allocation, other.stream), SMP_SUCCESS);
    CHECK_EQ(pool_stats(other.pool).live, 0);
    CHECK_STATUS(smp_stream_synchronize(NULL, other.stream), SMP_SUCCESS);
    CHECK_STATUS(smp_pool_destroy(other.pool), SMP_SUCCESS);
    end_world(&w);
}

static void a_stream_of_another_device_is_refused(void)
{
    struct world other;
    smp_access_verdict v = SMP_ACCESS_VERDICT_INIT;
    smp_allocation out = NULL;
    struct figures before, after;
    w = new_world();
    other = new_world();
    take_figures(&before);
    CHECK_REFUSED(smp_alloc_async(w.pool, 512, other.stream, &out), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_free_async(w.allocation, other.stream), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_allocation_add_user(w.allocation, other.stream), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_is_ready_on(w.allocation, other.stream), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_event_record(w.device, w.event, other.stream), SMP_ERROR_WRONG_DEVICE, "device");
    CHECK_REFUSED(smp_stream_wait_event(w.device, other.stream, w.event), SMP_ERROR_WRONG_DEVICE, "device");
    CHECK_REFUSED(smp_stream_synchronize(w.device, other.stream), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_stream_query(w.device, other.stream), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_model_stream_submit(w.device, other.stream, 1, NULL), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_model_stream_advance(w.device, other.stream, 1, NULL), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_note_access(w.device, smp_allocation_ptr(w.allocation), 1, other.stream, SMP_ACCESS_READ, &v),
                  SMP_ERROR_WRONG_DEVICE, "stream");
    take_figures(&after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    end_world(&other);
    end_world(&w);
}

/* Streams go by small numbers inside, which two devices may give to streams in one slot, one after the other. */
static void a_stream_in_the_place_of_a_blocks_own_former_one_is_still_of_another_device(void)
{
    smp_device a = lazy_device(), b = lazy_device();
    smp_pool pool = pool_of(a, "sliced(page_size=2MiB)"), other = pool_of(b, "sliced(page_size=2MiB)");
    smp_stream s = new_stream(a), t, u;
    smp_allocation x = alloc_on(pool, 4096, s);
    must(smp_stream_destroy(s));
    must(smp_device_synchronize(a));
    t = new_stream(b);
    u = new_stream(b);
    free_on(alloc_on(other, 4096, t), t);
    free_on(alloc_on(other, 4096, u), u);
    CHECK_REFUSED(smp_allocation_add_user(x, t), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_allocation_add_user(x, u), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_free_async(x, t), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_REFUSED(smp_free_async(x, u), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_STATUS(smp_free(x), SMP_SUCCESS);
    must(smp_pool_destroy(pool));
    must(smp_pool_destroy(other));
    must(smp_device_close(a));
    must(smp_device_close(b));
}

/* On CUDA streams and events go by the driver's names, and what the library calls them inside is no handle. */
static void on_cuda_what_goes_by_the_drivers_name_has_no_other(void)
{
    uintptr_t number, generation;
    w = new_world();
    free_on(alloc_on(w.pool, 512, SMP_STREAM_PER_THREAD), SMP_STREAM_PER_THREAD);
    for (number = 0; number < 64; ++number) {
        smp_stream made_up = (smp_stream)((uintptr_t)0xe << 60 | number);
        smp_allocation out = NULL;
        CHECK_REFUSED(smp_alloc_async(w.pool, 512, made_up, &out), SMP_ERROR_INVALID_HANDLE, "stream");
        CHECK_REFUSED(smp_free_async(w.allocation, made_up), SMP_ERROR_INVALID_HANDLE, "stream");
        for (generation = 1; on_cuda() && generation < 4; ++generation) {
            smp_event alias = (smp_event)((uintptr_t)0xc << 60 | generation << 28 | number);
            CHECK_REFUSED(smp_event_query(alias), SMP_ERROR_INVALID_HANDLE, "event");
            CHECK_REFUSED(smp_event_record(w.device, alias, w.stream), SMP_ERROR_INVALID_HANDLE, "event");
            CHECK_REFUSED(smp_stream_wait_event(w.device, w.stream, alias), SMP_ERROR_INVALID_HANDLE, "event");
            CHECK_REFUSED(smp_event_destroy(alias), SMP_ERROR_INVALID_HANDLE, "event");
        }
    }
    CHECK_STATUS(smp_event_record(w.device, w.event, w.stream), SMP_SUCCESS);
    end_world(&w);
}

static void an_event_of_another_device_is_refused_and_goes_on(void)
{
    struct world other;
    smp_event pending;
    w = new_world();
    other = new_world();
    must(smp_event_create(other.device, 0, &pending));
    must(smp_event_record(other.device, pending, other.stream));
    CHECK_REFUSED(smp_note_event_synchronized(w.device, pending), SMP_ERROR_WRONG_DEVICE, "event");
    CHECK_STATUS(smp_event_query(pending), SMP_NOT_READY);
    CHECK_REFUSED(smp_note_event_destroyed(w.device, pending), SMP_ERROR_WRONG_DEVICE, "event");
    CHECK_STATUS(smp_note_event_synchronized(other.device, pending), SMP_SUCCESS);
    CHECK_STATUS(smp_event_query(pending), SMP_SUCCESS);
    CHECK_STATUS(smp_note_event_destroyed(other.device, pending), SMP_SUCCESS);
    CHECK_STATUS(smp_event_query(pending), SMP_ERROR_DESTROYED);
    CHECK_REFUSED(smp_stream_release(w.device, other.stream), SMP_ERROR_WRONG_DEVICE, "stream");
    CHECK_STATUS(smp_stream_synchronize(other.device, other.stream), SMP_SUCCESS);
    end_world(&other);
    end_world(&w);
}

static void a_default_stream_cannot_be_destroyed(void)
{
    w = new_world();
    CHECK_REFUSED(smp_stream_destroy(LEGACY), SMP_ERROR_INVALID_VALUE, "default");
    CHECK_REFUSED(smp_stream_destroy(SMP_STREAM_LEGACY), SMP_ERROR_INVALID_VALUE, "default");
    CHECK_REFUSED(smp_stream_destroy(SMP_STREAM_PER_THREAD), SMP_ERROR_INVALID_VALUE, "default");
    CHECK_REFUSED(smp_stream_release(w.device, LEGACY), SMP_ERROR_INVALID_VALUE, "default");
    CHECK_STATUS(smp_stream_synchronize(w.device, LEGACY), SMP_SUCCESS);
    end_world(&w);
}

static void a_created_stream_needs_no_device_beside_it(void)
{
    smp_stream_info info = SMP_STREAM_INFO_INIT;
    w = new_world();
    if (on_cuda())
        must(smp_event_record(NULL, w.event, w.stream));
    else
        CHECK_STATUS(smp_model_stream_submit(NULL, w.stream, 1, NULL), SMP_SUCCESS);
    CHECK_STATUS(smp_stream_query(NULL, w.stream), SMP_NOT_READY);
    CHECK_STATUS(smp_stream_synchronize(NULL, w.stream), SMP_SUCCESS);
    CHECK_STATUS(smp_stream_get_info(NULL, w.stream, &info), SMP_SUCCESS);
    CHECK_EQ(info.submitted, 3); /* record, allocation, kernel */
    CHECK_EQ(info.observed, 3);
    end_world(&w);
}

static void a_wrong_device_beside_a_created_stream_is_refused_all_the_same(void)
{
    struct world closed;
    struct figures before, after;
    smp_access_verdict v = SMP_ACCESS_VERDICT_INIT;
    smp_stream_info info = SMP_STREAM_INFO_INIT;
    smp_device wrong[3];
    smp_status expected[3] = {SMP_ERROR_INVALID_HANDLE, SMP_ERROR_INVALID_HANDLE, SMP_ERROR_DESTROYED};
    int i;
    w = new_world();
    closed = new_world();
    must(smp_pool_destroy(closed.pool));
    must(smp_device_close(closed.device));
    wrong[0] = (smp_device)at(0x1234);
    wrong[1] = (smp_device)(void *)w.pool;
    wrong[2] = closed.device;
    take_figures(&before);
    for (i = 0; i < 3; ++i) {
        CHECK_REFUSED(smp_stream_synchronize(wrong[i], w.stream), expected[i], "device");
        CHECK_REFUSED(smp_stream_query(wrong[i], w.stream), expected[i], "device");
        CHECK_REFUSED(smp_stream_get_info(wrong[i], w.stream, &info), expected[i], "device");
        CHECK_REFUSED(smp_stream_wait_event(wrong[i], w.stream, w.event), expected[i], "device");
        CHECK_REFUSED(smp_event_record(wrong[i], w.event, w.stream), expected[i], "device");
        CHECK_REFUSED(smp_stream_release(wrong[i], w.stream), expected[i], "device");
        CHECK_REFUSED(smp_model_stream_submit(wrong[i], w.stream, 1, NULL), expected[i], "device");
        CHECK_REFUSED(smp_model_stream_advance(wrong[i], w.stream, 1, NULL), expected[i], "device");
        CHECK_REFUSED(smp_note_event_record(wrong[i], w.event, w.stream), expected[i], "device");
        CHECK_REFUSED(smp_note_stream_wait(wrong[i], w.stream, w.event), expected[i], "device");
        CHECK_REFUSED(smp_note_stream_synchronized(wrong[i], w.stream), expected[i], "device");
        CHECK_REFUSED(smp_note_access(wrong[i], smp_allocation_ptr(w.allocation), 1, w.stream, SMP_ACCESS_READ, &v),
                      expected[i], "device");
    }
    take_figures(&after);
    CHECK(memcmp(&before, &after, sizeof before) == 0);
    end_world(&w);
}

static void handles_are_never_given_out_twice(void)
{
    enum { MANY = 2000 };
    static uintptr_t seen[MANY];
    int i, j, repeated = 0;
    w = new_world();
    for (i = 0; i < MANY; ++i) {
        smp_stream s = new_stream(w.device);
        seen[i] = (uintptr_t)s;
        must(smp_stream_destroy(s));
    }
    for (i = 0; i < MANY; ++i)
        for (j = 0; j < i; ++j)
            repeated += seen[i] == seen[j];
    CHECK_EQ(repeated, 0);
    end_world(&w);
}

/* What a block's record holds in place of what is compared with a handle (where it has a name, an added user, or is free) looks
 * like no handle, however small. The stream is warm: its calls go the shortest way. */
static void no_value_but_a_live_handle_is_freed_whatever_blocks_there_are(void)
{
    enum { BLOCKS = 240 };
    const char *specs[] = { "preset(mapped)", "preset(sub-slices)", "preset(exclusive-pages)", "preset(cuda)", "direct()",
                            "sliced(page_size=2MiB)" };
    size_t which;
    for (which = 0; which < sizeof specs / sizeof *specs; ++which) {
        smp_device device = lazy_device();
        smp_pool pool = pool_of(device, specs[which]);
        smp_stream s = new_stream(device), user = new_stream(device);
        smp_allocation blocks[BLOCKS];
        smp_pool_stats before, after;
        uint64_t accepted = 0, i, bit;
        int kept = 0;
        for (i = 0; i < BLOCKS; ++i) {
            smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
            desc.size = 700 * (i % 7 + 1);
            desc.stream = s;
            desc.name = i % 6 == 1 ? "named" : NULL;
            desc.alignment = i % 6 == 2 ? 4096 : 0;
            must(smp_alloc_async_ex(pool, &desc, &blocks[i]));
            if (i % 6 == 3 || i % 6 == 4)
                must(smp_allocation_add_user(blocks[i], user));
            if (i % 6 == 4)
                must(smp_allocation_add_user(blocks[i], s));
        }
        for (i = 5; i < BLOCKS; i += 12)
            free_on(blocks[i], s);
        sync(device, s);
        for (i = 11; i < BLOCKS; i += 12)
            free_on(blocks[i], s);
        for (i = 0; i < 100; ++i)
            free_on(alloc_on(pool, 1000, s), s);
        before = pool_stats(pool);
        for (i = 0; i < 4 * BLOCKS; ++i) {
            accepted += smp_free_async((smp_allocation)(uintptr_t)i, s) == SMP_SUCCESS;
            for (bit = 28; bit < 64; ++bit)
                accepted += smp_free_async((smp_allocation)(uintptr_t)(UINT64_C(1) << bit | i), s) == SMP_SUCCESS;
        }
        for (i = 0; i < BLOCKS; ++i)
            for (bit = 28; bit < 64; ++bit)
                accepted += smp_free_async((smp_allocation)((uintptr_t)blocks[i] ^ (uintptr_t)1 << bit), s) == SMP_SUCCESS;
        CHECK_EQ(accepted, 0);
        after = pool_stats(pool);
        CHECK_EQ(after.live, before.live);
        CHECK_EQ(after.requested, before.requested);
        CHECK_EQ(after.frees, before.frees);
        for (i = 0; i < BLOCKS; ++i)
            if (i % 6 != 5) {
                kept += smp_is_ready_on(blocks[i], s) == SMP_SUCCESS;
                free_on(blocks[i], s);
            }
        CHECK_EQ((uint64_t)kept, BLOCKS / 6 * 5);
        must(smp_stream_destroy(s));
        must(smp_stream_destroy(user));
        must(smp_pool_destroy(pool));
        must(smp_device_close(device));
    }
}

TEST_MAIN(RUN(null_is_an_invalid_handle)
          MODEL_ONLY(a_stream_in_the_place_of_a_blocks_own_former_one_is_still_of_another_device,
                   "two devices opened on one context of the driver share its streams")
          RUN(on_cuda_what_goes_by_the_drivers_name_has_no_other)
          RUN(no_value_but_a_live_handle_is_freed_whatever_blocks_there_are)
          RUN(a_value_never_given_out_is_an_invalid_handle)
          RUN(an_address_of_the_program_is_an_invalid_handle)
          RUN(a_handle_of_another_kind_is_an_invalid_handle)
          RUN(a_freed_allocation_answers_freed_from_every_call)
          RUN_ANY_PACE(a_freed_allocation_stays_freed_after_its_memory_is_given_out_again)
          RUN_ANY_PACE(a_double_free_never_hands_the_block_out_twice)
          RUN(a_destroyed_pool_answers_destroyed)
          RUN(a_destroyed_pool_with_live_blocks_answers_destroyed_and_its_blocks_do_not)
          RUN_ANY_PACE(a_destroyed_stream_answers_destroyed)
          RUN_ANY_PACE(a_destroyed_event_answers_destroyed)
          RUN(a_closed_device_answers_destroyed_and_its_pools_live_on)
          MODEL_ONLY(a_stream_of_another_device_is_refused,
                     "two devices opened on one context of the driver share its streams")
          MODEL_ONLY(an_event_of_another_device_is_refused_and_goes_on,
                     "two devices opened on one context of the driver share its events")
          RUN_ANY_PACE(a_default_stream_cannot_be_destroyed)
          RUN(a_created_stream_needs_no_device_beside_it)
          RUN(a_wrong_device_beside_a_created_stream_is_refused_all_the_same)
          MODEL_ONLY(handles_are_never_given_out_twice,
                     "a stream is the driver's pointer, which it gives out again"))
