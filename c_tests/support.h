/* support.h: what the C tests share: short names for set-up calls that must succeed, and for reading figures.
 *
 * A set-up call that fails is printed with its text and ends the test: nothing after it could be trusted. What a test is
 * about, it calls itself and checks with CHECK_STATUS. Compiles as C99 and as C++11.
 */
#ifndef SMP_C_TESTS_SUPPORT_H
#define SMP_C_TESTS_SUPPORT_H

#include "device.h"

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
/* Where a model device puts its first page. */
#define BASE UINT64_C(0x53F0000000000000)
/* The legacy default stream, as CUDA programs write it. */
#define LEGACY ((smp_stream)0)

/* The text of this thread's last failure. It lies in a static buffer of the calling file: use it at once. */
static inline const char *last_message(void)
{
    static smp_error error;
    smp_error fresh = SMP_ERROR_INIT;
    error = fresh;
    if (smp_last_error(&error) != SMP_SUCCESS)
        return "(smp_last_error failed)";
    return error.text;
}

static inline uint32_t last_status(void)
{
    smp_error error = SMP_ERROR_INIT;
    return smp_last_error(&error) == SMP_SUCCESS ? error.status : UINT32_MAX;
}

static inline void must_at(smp_status status, const char *file, int line, const char *what)
{
    if (status == SMP_SUCCESS)
        return;
    printf("%s:%d: set-up failed: %s gives %s: %s\n", file, line, what, smp_status_name((uint32_t)status),
           last_message());
    test_abandon();
}

/* A set-up call that must succeed; not in a callback or another thread. */
#define must(call) must_at((call), __FILE__, __LINE__, #call)

static inline void check_status_at(smp_status actual, smp_status expected, const char *file, int line,
                                   const char *what)
{
    ++test_checks;
    if (actual != expected) {
        ++test_failures;
        printf("%s:%d: %s gives %s, expected %s (last message: %s)\n", file, line, what,
               smp_status_name((uint32_t)actual), smp_status_name((uint32_t)expected), last_message());
    }
}

/* The call gives this status; both are printed by name if not. */
#define CHECK_STATUS(call, expected) check_status_at((call), (expected), __FILE__, __LINE__, #call)

/* The call is refused with this status, and its text holds the word that names what is wrong. */
#define CHECK_REFUSED(call, expected, word)                                                                           \
    do {                                                                                                              \
        CHECK_STATUS(call, expected);                                                                                 \
        CHECK_EQ(last_status(), expected);                                                                            \
        CHECK_HAS(last_message(), word);                                                                              \
    } while (0)

/* ---- devices --------------------------------------------------------------------------------------------------- */

/* The eager CUDA device last opened. What it has run is seen when its streams are asked: an allocation or free by a
 * set-up call asks, so that eager means here what it means on the model device. */
static smp_device eager_on_cuda;

/* A quiet stream's progress is seen when it is asked for. */
static inline void ask_progress(smp_device device, smp_stream stream)
{
    smp_status status = smp_stream_query(device, stream);
    (void)status;
}

static inline void see_what_ran(smp_stream stream)
{
    if (eager_on_cuda != NULL)
        ask_progress(eager_on_cuda, stream);
}

/* The device under test; alignment and granularity 0 and capacity SMP_NONE mean the defaults. On CUDA pages come by
 * virtual memory management, which gives them back without waiting for other work, unless they are too small for it. */
static inline smp_device device_with(uint32_t flags, uint64_t capacity, uint64_t alignment, uint64_t granularity)
{
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_device device = NULL;
    desc.kind = SMP_DEVICE_MODEL;
    desc.flags = flags;
    desc.capacity = capacity;
    desc.alignment = alignment;
    desc.page_granularity = granularity;
    if (on_cuda()) {
        desc.kind = SMP_DEVICE_CUDA;
        desc.flags = flags & (uint32_t)~(SMP_DEVICE_LAZY | SMP_DEVICE_HOST_BACKING);
        desc.capacity = SMP_NONE;
        if (granularity == 0 || granularity % (2 * MIB) == 0)
            desc.page_supply = SMP_PAGES_VIRTUAL_MEMORY;
        set_pace((flags & SMP_DEVICE_LAZY) != 0);
        sim.clear_failures();
        must_drive(sim.set_free_memory(0, capacity), "simcuda_set_free_memory"); /* SMP_NONE: all of it */
    }
    must(smp_device_open(&desc, &device));
    eager_on_cuda = on_cuda() && !sim.any_pace && (flags & SMP_DEVICE_LAZY) == 0 ? device : NULL;
    return device;
}

/* Streams run only when advanced or synchronised. */
static inline smp_device lazy_device(void)
{
    return device_with(SMP_DEVICE_LAZY, SMP_NONE, 0, 0);
}

/* Streams run at submission. */
static inline smp_device eager_device(void)
{
    return device_with(0, SMP_NONE, 0, 0);
}

/* Blocks can be read and written. Eager. */
static inline smp_device host_backed_device(void)
{
    return device_with(SMP_DEVICE_HOST_BACKING, SMP_NONE, 0, 0);
}

static inline smp_device_info device_info(smp_device device)
{
    smp_device_info info = SMP_DEVICE_INFO_INIT;
    must(smp_device_get_info(device, &info));
    return info;
}

/* From now on the device can give out so many bytes of pages in all; those given out stay. */
static inline void set_capacity(smp_device device, uint64_t bytes)
{
    uint64_t out;
    if (!on_cuda()) {
        must(smp_model_set_capacity(device, bytes));
        return;
    }
    out = device_info(device).reserved;
    must_drive(sim.set_free_memory(0, bytes == SMP_NONE ? bytes : bytes > out ? bytes - out : 0),
               "simcuda_set_free_memory");
}

/* The device refuses `count` requests for a page after granting `skip` more. Replaces what was set before. */
static inline void refuse_pages(smp_device device, uint64_t skip, uint64_t count)
{
    uint64_t i;
    if (!on_cuda()) {
        must(smp_model_refuse_pages(device, skip, count));
        return;
    }
    sim.clear_failures();
    for (i = 1; i <= count; ++i)
        must_drive(sim.fail("cuMemCreate", skip + i, 2, 0), "simcuda_fail");
}

/* The device refuses to take back the next `count` pages. */
static inline void refuse_releases(smp_device device, uint64_t count)
{
    uint64_t i;
    if (!on_cuda()) {
        must(smp_model_refuse_releases(device, count));
        return;
    }
    sim.clear_failures();
    for (i = 1; i <= count; ++i)
        must_drive(sim.fail("cuMemUnmap", i, 1, 0), "simcuda_fail");
}

/* ---- pools ----------------------------------------------------------------------------------------------------- */

static inline smp_pool pool_of(smp_device device, const char *spec)
{
    smp_pool pool = NULL;
    must(smp_pool_create_from_spec(device, spec, &pool));
    return pool;
}

#define POLICY_EVENT SMP_POLICY_EVENT_DEPENDENCIES
#define POLICY_OPPORTUNISTIC SMP_POLICY_OPPORTUNISTIC
#define POLICY_INTERNAL SMP_POLICY_INTERNAL_DEPENDENCIES
#define POLICIES_ALL SMP_POLICY_ALL

/* The cuda preset with these policies, this release threshold and no cap. */
static inline smp_pool cuda_pool(smp_device device, uint32_t policies, uint64_t threshold)
{
    smp_pool_config config = SMP_POOL_CONFIG_INIT;
    smp_pool pool = NULL;
    config.preset = SMP_PRESET_CUDA;
    config.policies = policies;
    config.release_threshold = threshold;
    must(smp_pool_create(device, &config, &pool));
    return pool;
}

/* The cuda preset with a cap. */
static inline smp_pool cuda_pool_capped(smp_device device, uint64_t cap)
{
    smp_pool_config config = SMP_POOL_CONFIG_INIT;
    smp_pool pool = NULL;
    config.preset = SMP_PRESET_CUDA;
    config.max_pool_size = cap;
    must(smp_pool_create(device, &config, &pool));
    return pool;
}

static inline uint64_t attribute(smp_pool pool, uint32_t id)
{
    uint64_t value = 0;
    must(smp_pool_get_attribute(pool, id, &value));
    return value;
}

static inline void set_attribute(smp_pool pool, uint32_t id, uint64_t value)
{
    must(smp_pool_set_attribute(pool, id, value));
}

static inline smp_pool_stats pool_stats(smp_pool pool)
{
    smp_pool_stats stats = SMP_POOL_STATS_INIT;
    must(smp_pool_get_stats(pool, &stats));
    return stats;
}

static inline smp_pool_stats entry_stats(smp_pool pool, uint32_t index)
{
    smp_pool_stats stats = SMP_POOL_STATS_INIT;
    must(smp_pool_get_entry_stats(pool, index, &stats));
    return stats;
}

/* ---- streams and events ---------------------------------------------------------------------------------------- */

static inline smp_stream stream_with(smp_device device, uint32_t flags)
{
    smp_stream stream = NULL;
    if (on_cuda()) /* there the pace is the stand-in's */
        flags &= SMP_STREAM_NON_BLOCKING;
    must(smp_stream_create(device, flags, &stream));
    hold(stream);
    return stream;
}

/* A blocking stream, lazy or eager as the device is. */
static inline smp_stream new_stream(smp_device device)
{
    return stream_with(device, 0);
}

static inline smp_stream new_non_blocking_stream(smp_device device)
{
    return stream_with(device, SMP_STREAM_NON_BLOCKING);
}

static inline smp_stream new_eager_stream(smp_device device)
{
    return stream_with(device, SMP_STREAM_EAGER);
}

static inline smp_event new_event(smp_device device)
{
    smp_event event = NULL;
    must(smp_event_create(device, 0, &event));
    return event;
}

/* A new event, recorded on the stream. */
static inline smp_event record_on(smp_device device, smp_stream stream)
{
    smp_event event = new_event(device);
    must(smp_event_record(device, event, stream));
    return event;
}

static inline void wait_for(smp_device device, smp_stream stream, smp_event event)
{
    must(smp_stream_wait_event(device, stream, event));
}

/* Work that is nothing but a place in the stream's order. On CUDA it is the record of an event that no one waits for:
 * the library sees that place, as it would not see a kernel. */
static inline void kernel(smp_device device, smp_stream stream, uint64_t count)
{
    if (on_cuda()) {
        smp_event place = new_event(device);
        for (; count > 0; --count)
            must(smp_event_record(device, place, stream));
        must(smp_event_destroy(place));
    } else {
        must(smp_model_stream_submit(device, stream, count, NULL));
    }
}

/* Runs up to `count` operations; returns how many ran. On CUDA allocations and frees are none of the driver's, so they do
 * not count. */
static inline uint64_t advance(smp_device device, smp_stream stream, uint64_t count)
{
    uint64_t ran = 0;
    if (on_cuda()) {
        (void)sim.gate_open(stream);
        must_drive(sim.run(stream, count, &ran), "simcuda_run");
        if (sim.holding)
            (void)sim.gate_close(stream);
        ask_progress(device, stream);
    } else {
        must(smp_model_stream_advance(device, stream, count, &ran));
    }
    return ran;
}

static inline void sync(smp_device device, smp_stream stream)
{
    gates_open();
    must(smp_stream_synchronize(device, stream));
    gates_close();
}

static inline smp_stream_info stream_info(smp_device device, smp_stream stream)
{
    smp_stream_info info = SMP_STREAM_INFO_INIT;
    must(smp_stream_get_info(device, stream, &info));
    return info;
}

static inline uint64_t submitted(smp_device device, smp_stream stream)
{
    return stream_info(device, stream).submitted;
}

static inline uint64_t executed(smp_device device, smp_stream stream)
{
    return stream_info(device, stream).executed;
}

static inline uint64_t observed(smp_device device, smp_stream stream)
{
    return stream_info(device, stream).observed;
}

/* ---- allocations ----------------------------------------------------------------------------------------------- */

static inline smp_allocation alloc_on(smp_pool pool, uint64_t size, smp_stream stream)
{
    smp_allocation allocation = NULL;
    must(smp_alloc_async(pool, size, stream, &allocation));
    see_what_ran(stream);
    return allocation;
}

static inline smp_allocation aligned_alloc_on(smp_pool pool, uint64_t size, uint64_t alignment, smp_stream stream)
{
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation allocation = NULL;
    desc.size = size;
    desc.alignment = alignment;
    desc.stream = stream;
    must(smp_alloc_async_ex(pool, &desc, &allocation));
    see_what_ran(stream);
    return allocation;
}

static inline void free_on(smp_allocation allocation, smp_stream stream)
{
    must(smp_free_async(allocation, stream));
    see_what_ran(stream);
}

/* Others want what the allocation's stream frees: on CUDA a stream is quiet, and cannot be waited for, until they do. */
static inline void wanted(smp_allocation allocation)
{
    smp_status status = SMP_SUCCESS;
    if (on_cuda())
        status = smp_is_ready(allocation);
    (void)status;
}

static inline smp_allocation_info allocation_info(smp_allocation allocation)
{
    smp_allocation_info info = SMP_ALLOCATION_INFO_INIT;
    must(smp_allocation_get_info(allocation, &info));
    return info;
}

/* The model address. */
static inline uint64_t address(smp_allocation allocation)
{
    return allocation_info(allocation).address;
}

static inline uint32_t reason(smp_allocation allocation)
{
    return allocation_info(allocation).reason;
}

static inline uint64_t block_size(smp_allocation allocation)
{
    return allocation_info(allocation).block_size;
}

static inline uint64_t requested(smp_allocation allocation)
{
    return allocation_info(allocation).requested;
}

static inline uint32_t entry_of(smp_allocation allocation)
{
    return allocation_info(allocation).entry;
}

/* A pointer of this value; never followed. */
static inline void *at(uint64_t value)
{
    return (void *)(uintptr_t)value;
}

/* Notes the access and gives the verdict. */
static inline smp_access_verdict verdict_of(smp_device device, const void *ptr, uint64_t size, smp_stream stream,
                                            uint32_t access)
{
    smp_access_verdict verdict = SMP_ACCESS_VERDICT_INIT;
    must(smp_note_access(device, ptr, size, stream, access, &verdict));
    return verdict;
}

#endif
