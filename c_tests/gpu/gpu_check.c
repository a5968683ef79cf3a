/* gpu_check: what can be checked where a CUDA driver is: the conformance statements against the driver's own pools and
 * against libsmp's, blocks written and read by several streams, a recorded run replayed on the model device, and times.
 *
 *     gpu_check conformance driver|smp | blocks [PTX] | timing | device
 *
 * Prints one JSON object a line: {"check", "target", "result": "ok" | "differs" | "skipped" | "failed", "detail"}.
 * A driver that differs from a statement is a finding, not a failure; libsmp that differs is. Exit status 1: something of
 * libsmp's failed; 2: there is no driver.
 *
 * Pending work is a host function that waits; it works on any driver. What needs kernels to run is skipped, and said so,
 * without PTX or on the stand-in driver, which runs none: there the driver's sets write the blocks.
 */
#include "driver.h"

#include <smp.h>

#include <inttypes.h>
#include <pthread.h>
#include <time.h>

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)

static int failed;
static int on_smp; /* the target of the statements */

static void say(const char *check, const char *result, const char *detail)
{
    printf("{\"check\": \"%s\", \"target\": \"%s\", \"result\": \"%s\", \"detail\": \"%s\"}\n", check,
           on_smp ? "smp" : "driver", result, detail);
    fflush(stdout);
}

static void must(int code, const char *what)
{
    if (code == 0)
        return;
    say(what, "failed", "set-up");
    fprintf(stderr, "%s gives %d\n", what, code);
    exit(1);
}
#define MUST(call) must((int)(call), #call)

/* ---- pending work ------------------------------------------------------------------------------------------------ */

static pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t gate_moved = PTHREAD_COND_INITIALIZER;
static int gate_open = 1;

static void wait_at_gate(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&gate_lock);
    while (!gate_open)
        pthread_cond_wait(&gate_moved, &gate_lock);
    pthread_mutex_unlock(&gate_lock);
}

static void set_gate(int open)
{
    pthread_mutex_lock(&gate_lock);
    gate_open = open;
    pthread_cond_broadcast(&gate_moved);
    pthread_mutex_unlock(&gate_lock);
}

/* The stream is busy until set_gate(1). */
static void hold(handle stream)
{
    set_gate(0);
    MUST(cu.host_func(stream, wait_at_gate, NULL));
}

/* ---- one pool, the driver's or ours ------------------------------------------------------------------------------ */

enum answer { OK, OUT_OF_MEMORY, INVALID, OTHER };

static smp_device device;

struct scene {
    handle driver_pool;
    smp_pool smp_pool;
    handle s1, s2, s3;
};

static enum answer of_driver(int code)
{
    return code == 0 ? OK : code == 2 ? OUT_OF_MEMORY : code == 1 ? INVALID : OTHER;
}

static enum answer of_smp(smp_status status)
{
    switch ((int)status) {
    case SMP_SUCCESS: return OK;
    case SMP_ERROR_OUT_OF_MEMORY: return OUT_OF_MEMORY;
    case SMP_ERROR_INVALID_VALUE:
    case SMP_ERROR_INVALID_HANDLE: return INVALID;
    default: return OTHER;
    }
}

static enum answer get(struct scene *t, int id, uint64_t *value)
{
    int flag = 0;
    int code;
    if (on_smp)
        return of_smp(smp_pool_get_attribute(t->smp_pool, (uint32_t)id, value));
    if (id >= 1 && id <= 3) {
        code = cu.pool_get(t->driver_pool, id, value ? &flag : NULL);
        if (value)
            *value = (uint64_t)flag;
        return of_driver(code);
    }
    return of_driver(cu.pool_get(t->driver_pool, id, value));
}

static enum answer set(struct scene *t, int id, uint64_t value)
{
    int flag = (int)value;
    if (on_smp)
        return of_smp(smp_pool_set_attribute(t->smp_pool, (uint32_t)id, value));
    return of_driver(cu.pool_set(t->driver_pool, id, id <= 3 ? (void *)&flag : (void *)&value));
}

static uint64_t attribute(struct scene *t, int id)
{
    uint64_t value = 0;
    must(get(t, id, &value), "reading an attribute");
    return value;
}

static struct scene scene(unsigned policies, uint64_t threshold, uint64_t cap)
{
    struct scene t;
    memset(&t, 0, sizeof t);
    if (on_smp) {
        smp_pool_config config = SMP_POOL_CONFIG_INIT;
        smp_stream stream;
        handle *out[3];
        int i;
        out[0] = &t.s1, out[1] = &t.s2, out[2] = &t.s3;
        config.preset = SMP_PRESET_CUDA;
        config.policies = policies;
        config.release_threshold = threshold;
        if (cap)
            config.max_pool_size = cap;
        MUST(smp_pool_create(device, &config, &t.smp_pool));
        for (i = 0; i < 3; ++i) {
            MUST(smp_stream_create(device, 0, &stream));
            *out[i] = stream;
        }
    } else {
        struct pool_props props;
        int id;
        memset(&props, 0, sizeof props);
        props.alloc_type = 1;
        props.location_type = 1;
        props.max_size = (size_t)cap;
        MUST(cu.pool_create(&t.driver_pool, &props));
        for (id = 1; id <= 3; ++id)
            must(set(&t, id, policies >> (id - 1) & 1), "setting a policy");
        must(set(&t, 4, threshold), "setting the threshold");
        MUST(cu.stream_create(&t.s1, 0));
        MUST(cu.stream_create(&t.s2, 0));
        MUST(cu.stream_create(&t.s3, 0));
    }
    return t;
}

static void sync(handle stream)
{
    set_gate(1);
    if (on_smp)
        MUST(smp_stream_synchronize(device, (smp_stream)stream));
    else
        MUST(cu.stream_sync(stream));
}

static void end(struct scene *t)
{
    sync(t->s1);
    sync(t->s2);
    sync(t->s3);
    if (on_smp)
        MUST(smp_pool_destroy(t->smp_pool));
    else
        MUST(cu.pool_destroy(t->driver_pool));
}

static enum answer try_alloc(struct scene *t, uint64_t size, handle stream, device_ptr *out)
{
    if (on_smp) {
        void *ptr = (void *)(uintptr_t)*out;
        smp_status status = smp_alloc_ptr_async(t->smp_pool, size, (smp_stream)stream, &ptr);
        *out = (device_ptr)(uintptr_t)ptr;
        return of_smp(status);
    }
    return of_driver(cu.pool_alloc(out, (size_t)size, t->driver_pool, stream));
}

static device_ptr alloc(struct scene *t, uint64_t size, handle stream)
{
    device_ptr out = 0;
    must(try_alloc(t, size, stream, &out), "allocating");
    return out;
}

static enum answer try_free(device_ptr ptr, handle stream)
{
    if (on_smp)
        return of_smp(smp_free_ptr_async(device, (void *)(uintptr_t)ptr, (smp_stream)stream));
    return of_driver(cu.free_async(ptr, stream));
}

static void free_on(device_ptr ptr, handle stream)
{
    must(try_free(ptr, stream), "freeing");
}

static void trim(struct scene *t, uint64_t keep)
{
    if (on_smp)
        MUST(smp_pool_trim_to(t->smp_pool, keep));
    else
        MUST(cu.pool_trim(t->driver_pool, (size_t)keep));
}

/* `later` comes after what `earlier` was given so far. */
static handle record(handle stream)
{
    handle event;
    MUST(cu.event_create(&event, 2));
    if (on_smp)
        MUST(smp_event_record(device, (smp_event)event, (smp_stream)stream));
    else
        MUST(cu.event_record(event, stream));
    return event;
}

static void wait_for(handle stream, handle event)
{
    if (on_smp)
        MUST(smp_stream_wait_event(device, (smp_stream)stream, (smp_event)event));
    else
        MUST(cu.wait_event(stream, event, 0));
}

/* ---- the statements ---------------------------------------------------------------------------------------------- */

static void statement(const char *name, int holds, uint64_t seen)
{
    char detail[64] = "";
    if (!holds)
        snprintf(detail, sizeof detail, "seen: %" PRIu64, seen);
    say(name, holds ? "ok" : on_smp ? "failed" : "differs", detail);
    failed |= on_smp && !holds;
}

static void attributes(void)
{
    struct scene t = scene(7, 0, 0);
    uint64_t value = 0, reserved;
    device_ptr a, big, plain = 0;
    int id, holds;
    statement("S1", attribute(&t, 1) && attribute(&t, 2) && attribute(&t, 3) && attribute(&t, 4) == 0, attribute(&t, 4));
    for (id = 5, holds = 1; id <= 8; ++id)
        holds &= attribute(&t, id) == 0;
    statement("S2", holds, attribute(&t, 5));
    statement("S3", set(&t, 5, 0) == INVALID && set(&t, 7, 0) == INVALID, 0);
    statement("S4", set(&t, 6, 1) == INVALID && set(&t, 8, 1) == INVALID, 0);
    statement("S6", get(&t, 99, &value) == INVALID && get(&t, 1, NULL) == INVALID, 0);
    a = alloc(&t, 12, t.s1);
    statement("S7", attribute(&t, 7) == 512 && attribute(&t, 5) == 32 * MIB, attribute(&t, 7));
    value = attribute(&t, 7);
    alloc(&t, 2048, t.s1);
    alloc(&t, 4096, t.s1);
    alloc(&t, 65536, t.s1);
    statement("S8", attribute(&t, 7) - value == 2048 + 4096 + 65536, attribute(&t, 7) - value);
    value = attribute(&t, 7);
    reserved = attribute(&t, 5);
    MUST(cu.alloc(&plain, MIB));
    statement("S9", attribute(&t, 7) == value && attribute(&t, 5) == reserved, attribute(&t, 7));
    MUST(cu.free(plain));
    big = alloc(&t, 40 * MIB, t.s1);
    free_on(big, t.s1);
    sync(t.s1);
    must(set(&t, 8, 0), "resetting a high mark");
    statement("S5", attribute(&t, 8) == attribute(&t, 7), attribute(&t, 8));
    free_on(a, t.s1);
    statement("S31", try_alloc(&t, UINT64_MAX, t.s1, &a) == OUT_OF_MEMORY, 0);
    a = 1;
    statement("S30", try_alloc(&t, UINT64_C(1) << 46, t.s1, &a) == OUT_OF_MEMORY && a == 0, a);
    end(&t);
}

static void figures(void)
{
    struct scene t = scene(7, 0, 0);
    device_ptr a = alloc(&t, 4 * KIB, t.s1), b = alloc(&t, 32 * MIB, t.s1);
    uint64_t before;
    sync(t.s1);
    free_on(b, t.s1);
    statement("S10", attribute(&t, 7) == 4096, attribute(&t, 7));
    free_on(a, t.s1);
    sync(t.s1);
    statement("S11", attribute(&t, 7) == 0 && attribute(&t, 5) == 0, attribute(&t, 5));
    end(&t);
    t = scene(7, UINT64_MAX, 0);
    a = alloc(&t, MIB, t.s1);
    before = attribute(&t, 5);
    free_on(a, t.s1);
    sync(t.s1);
    statement("S12", attribute(&t, 5) == before, attribute(&t, 5));
    trim(&t, before);
    statement("S14", attribute(&t, 5) == before, attribute(&t, 5));
    a = alloc(&t, 4 * KIB, t.s1);
    sync(t.s1);
    trim(&t, 0);
    statement("S15", attribute(&t, 5) == before, attribute(&t, 5));
    end(&t);
    t = scene(7, 128 * MIB, 0);
    a = alloc(&t, 4 * KIB, t.s1);
    b = alloc(&t, 32 * MIB, t.s1);
    before = attribute(&t, 5);
    hold(t.s1);
    free_on(b, t.s1);
    trim(&t, 0);
    if (attribute(&t, 5) == before) {
        sync(t.s1);
        if (attribute(&t, 5) == before) {
            trim(&t, 0);
            statement("S13", attribute(&t, 5) < before, attribute(&t, 5));
        } else {
            statement("S13", 0, attribute(&t, 5));
        }
    } else {
        statement("S13", 0, attribute(&t, 5));
    }
    (void)a;
    end(&t);
}

/* s1: allocation, work, free; then `how` before another stream asks for as much. Whether it got the same address. */
enum how { NOTHING, EVENT, EARLY_EVENT, THIRD_STREAM, FINISHED, LEGACY_WORK, LEGACY_WORK_NON_BLOCKING, SYNCHRONISED };

static int same_address(unsigned policies, enum how how, uint64_t size)
{
    struct scene t = scene(policies, UINT64_MAX, 0);
    device_ptr a = alloc(&t, size, t.s1), b;
    handle early = NULL, by = t.s2;
    hold(t.s1);
    if (how == EARLY_EVENT)
        early = record(t.s1);
    free_on(a, t.s1);
    switch (how) {
    case EVENT: wait_for(t.s2, record(t.s1)); break;
    case EARLY_EVENT: wait_for(t.s2, early); break;
    case THIRD_STREAM:
        wait_for(t.s3, record(t.s1));
        wait_for(t.s2, record(t.s3));
        break;
    case FINISHED:
        /* An event of the driver's says when it is over; nothing is synchronised that the pool could see. */
        set_gate(1);
        {
            handle event;
            struct timespec pause = {0, 50000000};
            MUST(cu.event_create(&event, 2));
            MUST(cu.event_record(event, t.s1));
            nanosleep(&pause, NULL);
        }
        break;
    case LEGACY_WORK_NON_BLOCKING:
        MUST(cu.stream_create(&by, 1));
        record(NULL);
        break;
    case LEGACY_WORK: record(NULL); break;
    case SYNCHRONISED: sync(t.s1); break;
    case NOTHING: break;
    }
    b = alloc(&t, size, by);
    set_gate(1);
    end(&t);
    return a == b;
}

static void reuse(void)
{
    struct scene t = scene(0, 0, 0);
    device_ptr a = alloc(&t, MIB, t.s1), b;
    hold(t.s1);
    free_on(a, t.s1);
    b = alloc(&t, MIB, t.s1);
    statement("S16", a == b, b);
    end(&t);
    statement("S17", same_address(0, SYNCHRONISED, MIB), 0);
    statement("S18", same_address(1, EVENT, MIB), 0);
    statement("S19", !same_address(0, EVENT, MIB), 0);
    statement("S20", !same_address(7, EARLY_EVENT, MIB), 0);
    statement("S21", same_address(1, THIRD_STREAM, MIB), 0);
    statement("S22", same_address(2, FINISHED, MIB), 0);
    statement("S23", !same_address(0, FINISHED, MIB), 0);
    statement("S24", !same_address(7, NOTHING, 32 * MIB), 0);
    statement("S27", same_address(1, LEGACY_WORK, MIB), 0);
    statement("S28", !same_address(1, LEGACY_WORK_NON_BLOCKING, MIB), 0);
}

static void full_pool(void)
{
    struct scene t;
    device_ptr a, b = 0;
    t = scene(4, 0, 32 * MIB);
    a = alloc(&t, 32 * MIB, t.s1);
    hold(t.s1);
    free_on(a, t.s1);
    /* It succeeds, and what s2 does next waits for s1's free, behind the gate. */
    if (try_alloc(&t, 32 * MIB, t.s2, &b) == OK && a == b) {
        struct timespec pause = {0, 20000000};
        MUST(cu.set32(b, 1, 1024, t.s2));
        nanosleep(&pause, NULL);
        statement("S25", cu.query(t.s2) == 600, 0);
    } else {
        statement("S25", 0, b);
    }
    end(&t);
    t = scene(3, 0, 32 * MIB);
    a = alloc(&t, 32 * MIB, t.s1);
    hold(t.s1);
    free_on(a, t.s1);
    statement("S26", try_alloc(&t, 32 * MIB, t.s2, &b) == OUT_OF_MEMORY, 0);
    end(&t);
    t = scene(7, 0, MIB);
    statement("S29", attribute(&t, 13) >= MIB && try_alloc(&t, 33 * MIB, t.s1, &b) == OUT_OF_MEMORY, 0);
    end(&t);
    t = scene(7, 0, 0);
    a = alloc(&t, 4 * KIB, t.s1);
    if (on_smp)
        MUST(smp_pool_destroy(t.smp_pool));
    else
        MUST(cu.pool_destroy(t.driver_pool));
    {
        unsigned word = 0;
        MUST(cu.set32(a, 0x5a5a5a5a, 1024, t.s1));
        MUST(cu.read(&word, a + 4092, 4, t.s1));
        MUST(cu.stream_sync(t.s1));
        statement("S33", word == 0x5a5a5a5a && try_free(a, t.s1) == OK, word);
    }
    sync(t.s1);
}

/* Statements about the driver's own handles and calls, which have no counterpart in libsmp. */
static void drivers_own(void)
{
    static const char *const graphs[] = {"S40", "S41", "S42", "S43", "S44", "S45"};
    size_t i;
    for (i = 0; i < sizeof graphs / sizeof graphs[0]; ++i)
        say(graphs[i], "skipped", "graph memory nodes: libsmp refuses captures, the driver is not asked");
    if (on_smp)
        return;
    {
        struct scene t = scene(7, 0, 0);
        handle standard = NULL, current = NULL, context = &t, pool = NULL;
        device_ptr a = alloc(&t, MIB, t.s1), plain = 0;
        int freed;
        statement("S36",
                  cu.pointer_attribute(&context, 1, a) == 0 && context == NULL &&
                      cu.pointer_attribute(&pool, 17, a) == 0 && pool == t.driver_pool,
                  0);
        sync(t.s1);
        hold(t.s2);
        freed = cu.free(a);
        statement("S37", freed == 0 && cu.query(t.s2) == 600, (uint64_t)freed);
        set_gate(1);
        MUST(cu.alloc(&plain, MIB));
        statement("S38", cu.free_async(plain, t.s1) == 0, 0);
        sync(t.s1);
        MUST(cu.default_pool(&standard, 0));
        statement("S32", of_driver(cu.pool_destroy(standard)) == INVALID, 0);
        MUST(cu.make_current(0, t.driver_pool));
        end(&t);
        MUST(cu.current_pool(&current, 0));
        statement("S32", current == standard, 0);
    }
}

/* ---- blocks: written and read by several streams ------------------------------------------------------------------ */

static handle fill_function, check_function, spin_function;
static device_ptr wrong_words;
static uint64_t wrong_seen; /* by sets and reads, where no kernel runs */

static int kernels(const char *ptx)
{
    FILE *file = ptx ? fopen(ptx, "rb") : NULL;
    static char text[1 << 20];
    handle module;
    size_t length;
    if (file == NULL || cu.stand_in)
        return 0;
    length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = 0;
    MUST(cu.module_load(&module, text));
    MUST(cu.module_function(&fill_function, module, "fill"));
    MUST(cu.module_function(&check_function, module, "check"));
    MUST(cu.module_function(&spin_function, module, "spin"));
    return 1;
}

static void write_block(device_ptr at, uint64_t words, unsigned pattern, handle stream)
{
    void *arguments[3];
    arguments[0] = &at, arguments[1] = &words, arguments[2] = &pattern;
    if (fill_function)
        MUST(cu.launch(fill_function, 32, 1, 1, 128, 1, 1, 0, stream, arguments, NULL));
    else
        MUST(cu.set32(at, pattern, (size_t)words, stream));
}

static void check_block(device_ptr at, uint64_t words, unsigned pattern, handle stream)
{
    static unsigned back[1 << 18];
    void *arguments[4];
    uint64_t i;
    arguments[0] = &at, arguments[1] = &words, arguments[2] = &pattern, arguments[3] = &wrong_words;
    if (check_function) {
        MUST(cu.launch(check_function, 32, 1, 1, 128, 1, 1, 0, stream, arguments, NULL));
        return;
    }
    MUST(cu.read(back, at, (size_t)words * 4, stream));
    MUST(cu.stream_sync(stream));
    for (i = 0; i < words; ++i)
        wrong_seen += back[i] != pattern;
}

static uint64_t state = UINT64_C(0x9E3779B97F4A7C15);
static uint64_t next_random(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t wrong_so_far(void)
{
    uint64_t count = 0;
    MUST(smp_device_synchronize(device));
    MUST(cu.read(&count, wrong_words, 8, NULL));
    MUST(cu.stream_sync(NULL));
    return count + wrong_seen;
}

/* Blocks of four streams, freed on any of them after an event; each is written by the first and checked by the last. With
 * a trace, which must replay. */
static void blocks(const char *spec, const char *trace)
{
    enum { LIVE = 64, ROUNDS = 4000 };
    struct {
        smp_allocation allocation;
        uint64_t words;
        unsigned pattern;
        int stream;
    } live[LIVE];
    smp_pool pool;
    smp_stream s[4];
    uint64_t before = wrong_so_far(), wrong;
    char name[96], detail[160];
    unsigned number = 1;
    int i;
    memset(live, 0, sizeof live);
    if (trace)
        MUST(smp_trace_start(device, trace, 0));
    MUST(smp_pool_create_from_spec(device, spec, &pool));
    for (i = 0; i < 4; ++i)
        MUST(smp_stream_create(device, i == 3 ? SMP_STREAM_NON_BLOCKING : 0, &s[i]));
    for (i = 0; i < ROUNDS; ++i) {
        int at = (int)(next_random() % LIVE), on = (int)(next_random() % 4);
        if (live[at].allocation == NULL) {
            live[at].words = next_random() % 16 == 0 ? next_random() % 200000 + 1 : next_random() % 2000 + 1;
            live[at].pattern = 0x1000000u * (number++ % 200 + 1);
            live[at].stream = on;
            MUST(smp_alloc_async(pool, live[at].words * 4, s[on], &live[at].allocation));
            write_block((device_ptr)(uintptr_t)smp_allocation_ptr(live[at].allocation), live[at].words,
                        live[at].pattern, s[on]);
        } else {
            if (on != live[at].stream) {
                smp_event event;
                MUST(smp_event_create(device, 0, &event));
                MUST(smp_event_record(device, event, s[live[at].stream]));
                MUST(smp_stream_wait_event(device, s[on], event));
                MUST(smp_event_destroy(event));
            }
            check_block((device_ptr)(uintptr_t)smp_allocation_ptr(live[at].allocation), live[at].words,
                        live[at].pattern, s[on]);
            MUST(smp_free_async(live[at].allocation, s[on]));
            live[at].allocation = NULL;
        }
    }
    for (i = 0; i < LIVE; ++i)
        if (live[i].allocation)
            MUST(smp_free(live[i].allocation));
    wrong = wrong_so_far() - before;
    if (trace)
        MUST(smp_trace_stop(device));
    snprintf(name, sizeof name, "blocks of %s", spec);
    snprintf(detail, sizeof detail, "%d rounds, %" PRIu64 " wrong words, by %s", (int)ROUNDS, wrong,
             fill_function ? "kernels" : "sets and reads");
    say(name, wrong ? "failed" : "ok", detail);
    failed |= wrong != 0;
    MUST(smp_pool_destroy(pool));
    if (trace) {
        smp_replay_options options = SMP_REPLAY_OPTIONS_INIT;
        smp_replay_result result = SMP_REPLAY_RESULT_INIT;
        smp_status status = smp_trace_replay(trace, &options, &result);
        snprintf(name, sizeof name, "differential run of %s", spec);
        snprintf(detail, sizeof detail, "%s; %" PRIu64 " events", smp_status_name((uint32_t)status), result.events);
        say(name, status == SMP_SUCCESS && result.verified ? "ok" : "failed", detail);
        failed |= status != SMP_SUCCESS || !result.verified;
    }
}

/* A block used again too early must show: the check must be able to fail. s1 frees and fills anew what s2, without any
 * order, still writes later. */
static void too_early(void)
{
    uint64_t before = wrong_so_far(), wrong;
    device_ptr at = 0, words = 4096;
    handle s1, s2;
    long long cycles = 200000000;
    void *arguments[1];
    arguments[0] = &cycles;
    MUST(cu.stream_create(&s1, 1));
    MUST(cu.stream_create(&s2, 1));
    MUST(cu.alloc(&at, 4 * words));
    if (fill_function)
        MUST(cu.launch(spin_function, 1, 1, 1, 1, 1, 1, 0, s2, arguments, NULL));
    else
        hold(s2);
    write_block(at, words, 1, s2);
    write_block(at, words, 2, s1);
    MUST(cu.stream_sync(s1));
    set_gate(1);
    MUST(cu.stream_sync(s2));
    check_block(at, words, 2, s1);
    MUST(cu.stream_sync(s1));
    wrong = wrong_so_far() - before;
    say("too early a use shows", wrong ? "ok" : "failed", fill_function ? "by kernels" : "by sets and reads");
    failed |= wrong == 0;
    MUST(cu.free(at));
    if (!fill_function)
        say("the same by kernels", "skipped", cu.stand_in ? "the stand-in driver runs no kernels" : "no PTX given");
}

/* ---- times -------------------------------------------------------------------------------------------------------- */

static double nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void timing(void)
{
    enum { PAIRS = 20000 };
    static const uint64_t sizes[] = {512, 64 * KIB, 4 * MIB};
    size_t k;
    for (on_smp = 0; on_smp <= 1; ++on_smp) {
        struct scene t = scene(7, UINT64_MAX, 0);
        for (k = 0; k < sizeof sizes / sizeof *sizes; ++k) {
            char name[64], detail[64];
            double begin;
            int i;
            free_on(alloc(&t, sizes[k], t.s1), t.s1);
            begin = nanoseconds();
            for (i = 0; i < PAIRS; ++i)
                free_on(alloc(&t, sizes[k], t.s1), t.s1);
            snprintf(name, sizeof name, "time of a pair of %" PRIu64 " bytes", sizes[k]);
            snprintf(detail, sizeof detail, "%.0f ns", (nanoseconds() - begin) / PAIRS);
            say(name, "ok", detail);
        }
        end(&t);
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    handle context;
    int ordinal, version = 0;
    char name[128] = "";
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    load_driver();
    if (cu.init(0) != 0 || cu.device_get(&ordinal, 0) != 0 || cu.retain(&context, ordinal) != 0 ||
        cu.set_current(context) != 0) {
        fprintf(stderr, "no CUDA device\n");
        return 2;
    }
    MUST(cu.version(&version));
    MUST(cu.device_name(name, (int)sizeof name - 1, ordinal));
    on_smp = 1;
    desc.kind = SMP_DEVICE_CUDA;
    desc.page_supply = SMP_PAGES_VIRTUAL_MEMORY; /* gives pages back without waiting for held work */
    MUST(smp_device_open(&desc, &device));
    if (strcmp(what, "device") == 0) {
        printf("\"driver_version\": %d, \"device\": \"%s\", \"stand_in\": %s, \"smp_version\": %u\n", version, name,
               cu.stand_in ? "true" : "false", smp_version());
        return 0;
    }
    if (strcmp(what, "conformance") == 0) {
        on_smp = argc > 2 && strcmp(argv[2], "smp") == 0;
        attributes();
        figures();
        reuse();
        full_pool();
        drivers_own();
    } else if (strcmp(what, "blocks") == 0) {
        char trace[256];
        const char *folder = getenv("TMPDIR");
        kernels(argc > 2 ? argv[2] : NULL);
        MUST(cu.alloc(&wrong_words, 8));
        MUST(cu.set32(wrong_words, 0, 2, NULL));
        MUST(cu.stream_sync(NULL));
        snprintf(trace, sizeof trace, "%s/gpu_check.%ld.smptrace", folder ? folder : "/tmp", (long)clock());
        too_early();
        blocks("preset(cuda)", NULL);
        blocks("preset(sub-slices)", NULL);
        blocks("preset(mapped)", NULL);
        blocks("direct(reclaim_at=8MiB)", NULL);
        MUST(smp_device_close(device));
        MUST(smp_device_open(&desc, &device)); /* a recording begins with a device at rest */
        blocks("preset(cuda)", trace);
        remove(trace);
    } else if (strcmp(what, "timing") == 0) {
        timing();
    } else {
        fprintf(stderr, "gpu_check conformance driver|smp | blocks [PTX] | timing | device\n");
        return 2;
    }
    return failed;
}
