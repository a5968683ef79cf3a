/* Refusals: for each thing that can be wrong with an argument, the status and the text that names it.
 *
 * Handles have test_handles.c, running out of memory test_oom.c. After a refusal nothing has changed: no out-parameter is
 * written (allocation calls set theirs to null), no pool or stream comes into being.
 */
#include "support.h"

struct scene {
    smp_device device;
    smp_pool pool;
    smp_stream stream;
};

static struct scene scene(void)
{
    struct scene t;
    t.device = lazy_device();
    t.pool = pool_of(t.device, "sliced(page_size=2MiB)");
    t.stream = new_stream(t.device);
    return t;
}

static void scene_end(struct scene *t)
{
    must(smp_pool_destroy(t->pool));
    must(smp_device_close(t->device));
}

/* ---- statuses and the last error -------------------------------------------------------------------------------- */

static void each_status_has_its_number_name_and_description(void)
{
    static const struct {
        smp_status status;
        uint32_t number;
        const char *name;
    } all[] = {
        {SMP_SUCCESS, 0, "SMP_SUCCESS"},
        {SMP_ERROR_INVALID_VALUE, 1, "SMP_ERROR_INVALID_VALUE"},
        {SMP_ERROR_INVALID_HANDLE, 2, "SMP_ERROR_INVALID_HANDLE"},
        {SMP_ERROR_DESTROYED, 3, "SMP_ERROR_DESTROYED"},
        {SMP_ERROR_FREED, 4, "SMP_ERROR_FREED"},
        {SMP_ERROR_OUT_OF_MEMORY, 5, "SMP_ERROR_OUT_OF_MEMORY"},
        {SMP_ERROR_CAPACITY_EXCEEDED, 6, "SMP_ERROR_CAPACITY_EXCEEDED"},
        {SMP_ERROR_SIZE_NOT_ACCEPTED, 7, "SMP_ERROR_SIZE_NOT_ACCEPTED"},
        {SMP_NOT_READY, 8, "SMP_NOT_READY"},
        {SMP_UNPROVEN, 9, "SMP_UNPROVEN"},
        {SMP_ERROR_NOT_SUPPORTED, 10, "SMP_ERROR_NOT_SUPPORTED"},
        {SMP_ERROR_INVALID_CONFIG, 11, "SMP_ERROR_INVALID_CONFIG"},
        {SMP_ERROR_SPEC_SYNTAX, 12, "SMP_ERROR_SPEC_SYNTAX"},
        {SMP_ERROR_WRONG_DEVICE, 13, "SMP_ERROR_WRONG_DEVICE"},
        {SMP_ERROR_CAPTURING, 14, "SMP_ERROR_CAPTURING"},
        {SMP_ERROR_DEVICE_POISONED, 15, "SMP_ERROR_DEVICE_POISONED"},
        {SMP_ERROR_FORKED, 16, "SMP_ERROR_FORKED"},
        {SMP_ERROR_NOT_PERMITTED, 17, "SMP_ERROR_NOT_PERMITTED"},
        {SMP_ERROR_IO, 18, "SMP_ERROR_IO"},
        {SMP_ERROR_TRACE_SYNTAX, 19, "SMP_ERROR_TRACE_SYNTAX"},
        {SMP_ERROR_DRIVER, 20, "SMP_ERROR_DRIVER"},
        {SMP_ERROR_INTERNAL, 21, "SMP_ERROR_INTERNAL"},
        {SMP_ERROR_REPLAY_MISMATCH, 22, "SMP_ERROR_REPLAY_MISMATCH"},
    };
    size_t i;
    for (i = 0; i < sizeof all / sizeof *all; ++i) {
        CHECK_EQ(all[i].status, all[i].number);
        CHECK_STR(smp_status_name(all[i].number), all[i].name);
        CHECK(strlen(smp_status_description(all[i].number)) > 3);
    }
    CHECK_STR(smp_status_name(23), "SMP_UNKNOWN_STATUS");
    CHECK_STR(smp_status_name(UINT32_MAX), "SMP_UNKNOWN_STATUS");
    CHECK(smp_status_description(UINT32_MAX) != NULL);
}

static void the_last_error_stays_until_the_next_failure(void)
{
    struct scene t = scene();
    smp_allocation a = NULL;
    CHECK_STATUS(smp_alloc_async(t.pool, 2 * MIB + 1, t.stream, &a), SMP_ERROR_SIZE_NOT_ACCEPTED);
    a = alloc_on(t.pool, 512, t.stream); /* a success */
    CHECK_EQ(last_status(), SMP_ERROR_SIZE_NOT_ACCEPTED);
    CHECK_STATUS(smp_is_ready(a), REFUTED); /* an answer, not a failure */
    CHECK_EQ(last_status(), SMP_ERROR_SIZE_NOT_ACCEPTED);
    CHECK_STATUS(smp_pool_trim_to(NULL, 0), SMP_ERROR_INVALID_HANDLE);
    CHECK_EQ(last_status(), SMP_ERROR_INVALID_HANDLE);
    CHECK_STATUS(smp_last_error(NULL), SMP_ERROR_INVALID_VALUE);
    CHECK_EQ(last_status(), SMP_ERROR_INVALID_HANDLE);
    scene_end(&t);
}

static void the_last_error_is_the_threads_driver_code_zero_and_its_text_ends(void)
{
    smp_error error = SMP_ERROR_INIT;
    CHECK_STATUS(smp_pool_trim_to(NULL, 0), SMP_ERROR_INVALID_HANDLE);
    must(smp_last_error(&error));
    CHECK_EQ(error.driver_code, 0);
    CHECK(memchr(error.text, 0, sizeof error.text) != NULL);
    CHECK(strlen(error.text) > 0);
}

static void the_version_of_the_library_is_the_headers(void)
{
    CHECK_EQ(smp_version(), SMP_VERSION);
    CHECK_EQ(SMP_VERSION, SMP_VERSION_MAJOR * 10000 + SMP_VERSION_MINOR * 100 + SMP_VERSION_PATCH);
}

/* ---- devices ---------------------------------------------------------------------------------------------------- */

static smp_status open_with(uint32_t kind, uint32_t flags, uint32_t ordinal, uint64_t alignment, uint64_t granularity)
{
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    smp_device device = NULL;
    smp_status status;
    desc.kind = kind;
    desc.flags = flags;
    desc.ordinal = ordinal;
    desc.alignment = alignment;
    desc.page_granularity = granularity;
    status = smp_device_open(&desc, &device);
    CHECK((status == SMP_SUCCESS) == (device != NULL));
    if (status == SMP_SUCCESS)
        must(smp_device_close(device));
    return status;
}

static void a_device_that_cannot_be_is_refused(void)
{
    smp_device device = NULL;
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    CHECK_REFUSED(smp_device_open(NULL, NULL), SMP_ERROR_INVALID_VALUE, "out");
    CHECK_REFUSED(open_with(99, 0, 0, 0, 0), SMP_ERROR_INVALID_VALUE, "kind");
    CHECK_REFUSED(open_with(SMP_DEVICE_MODEL, 0x80, 0, 0, 0), SMP_ERROR_INVALID_VALUE, "flags");
    CHECK_REFUSED(open_with(SMP_DEVICE_MODEL, 0, 1, 0, 0), SMP_ERROR_INVALID_VALUE, "ordinal");
    CHECK_REFUSED(open_with(SMP_DEVICE_MODEL, 0, 0, 8, 0), SMP_ERROR_INVALID_VALUE, "alignment");
    CHECK_REFUSED(open_with(SMP_DEVICE_MODEL, 0, 0, 513, 0), SMP_ERROR_INVALID_VALUE, "alignment");
    CHECK_REFUSED(open_with(SMP_DEVICE_MODEL, 0, 0, 4 * MIB, 0), SMP_ERROR_INVALID_VALUE, "alignment");
    CHECK_REFUSED(open_with(SMP_DEVICE_MODEL, 0, 0, 512, 3000), SMP_ERROR_INVALID_VALUE, "granularity");
    CHECK_STATUS(open_with(SMP_DEVICE_MODEL, 0, 0, 16, 4096), SMP_SUCCESS);
    CHECK_STATUS(open_with(SMP_DEVICE_MODEL, 0, 0, 2 * MIB, 0), SMP_SUCCESS);
    desc.kind = SMP_DEVICE_MODEL;
    desc.struct_size = 8;
    CHECK_REFUSED(smp_device_open(&desc, &device), SMP_ERROR_INVALID_VALUE, "struct_size");
    desc.struct_size = (uint32_t)sizeof desc;
    desc.reserved[1] = 1;
    CHECK_REFUSED(smp_device_open(&desc, &device), SMP_ERROR_INVALID_VALUE, "reserved");
    CHECK_NULL(device);
}

static void the_device_picked_says_which_it_is_and_why(void)
{
    smp_device device = NULL;
    smp_device_info info = SMP_DEVICE_INFO_INIT;
    must(smp_device_open(NULL, &device));
    must(smp_device_get_info(device, &info));
    CHECK(info.kind == SMP_DEVICE_MODEL || info.kind == SMP_DEVICE_CUDA);
    CHECK(strlen(info.name) > 0);
    CHECK(strlen(info.why) > 0);
    CHECK_REFUSED(smp_device_get_info(device, NULL), SMP_ERROR_INVALID_VALUE, "out");
    info.struct_size = 4;
    CHECK_REFUSED(smp_device_get_info(device, &info), SMP_ERROR_INVALID_VALUE, "struct_size");
    must(smp_device_close(device));
}

static void a_model_device_has_the_documented_defaults(void)
{
    smp_device device = lazy_device();
    smp_device_info info = device_info(device);
    CHECK_EQ(info.kind, SMP_DEVICE_MODEL);
    CHECK_EQ(info.flags, SMP_DEVICE_LAZY);
    CHECK_EQ(info.alignment, 512);
    CHECK_EQ(info.page_granularity, 2 * MIB);
    CHECK_EQ(info.capacity, SMP_NONE);
    CHECK_EQ(info.reserved, 0);
    must(smp_device_close(device));
}

/* A longer struct of a later version: known fields are read, an unknown tail must be zero. */
static void a_longer_struct_is_taken_if_its_tail_is_zero(void)
{
    struct {
        smp_device_desc known;
        uint64_t unknown[2];
    } later;
    smp_device_desc init = SMP_DEVICE_DESC_INIT;
    smp_device device = NULL;
    memset(&later, 0, sizeof later);
    later.known = init;
    later.known.kind = SMP_DEVICE_MODEL;
    later.known.struct_size = (uint32_t)sizeof later;
    CHECK_STATUS(smp_device_open(&later.known, &device), SMP_SUCCESS);
    must(smp_device_close(device));
    later.unknown[1] = 1;
    device = NULL;
    CHECK_REFUSED(smp_device_open(&later.known, &device), SMP_ERROR_INVALID_VALUE, "zero");
    CHECK_NULL(device);
}

/* ---- pool configurations ---------------------------------------------------------------------------------------- */

/* The status of a pool made of these entries; no pool is left behind. */
static smp_status pool_with(const smp_pool_entry *entries, uint64_t count)
{
    smp_device device = lazy_device();
    smp_pool_config config = SMP_POOL_CONFIG_INIT;
    smp_pool pool = NULL;
    smp_status status;
    config.entries = entries;
    config.entry_count = count;
    status = smp_pool_create(device, &config, &pool);
    CHECK((status == SMP_SUCCESS) == (pool != NULL));
    CHECK_EQ(device_info(device).pools, status == SMP_SUCCESS ? 1 : 0);
    if (status == SMP_SUCCESS)
        must(smp_pool_destroy(pool));
    must(smp_device_close(device));
    return status;
}

static smp_status sliced(uint64_t page_size, uint64_t max_slice_size, uint64_t max_pool_size)
{
    smp_pool_entry entry = SMP_ENTRY_SLICED_INIT(0, SMP_NONE, SMP_NONE);
    entry.page_size = page_size;
    entry.max_slice_size = max_slice_size;
    entry.max_pool_size = max_pool_size;
    return pool_with(&entry, 1);
}

static void a_pool_that_cannot_be_is_refused_and_the_text_names_the_field(void)
{
    smp_pool_entry many[33], exclusive = SMP_ENTRY_EXCLUSIVE_INIT(SMP_NONE);
    int i;
    for (i = 0; i < 33; ++i)
        many[i] = exclusive;
    CHECK_REFUSED(pool_with(many, 0), SMP_ERROR_INVALID_CONFIG, "entries");
    CHECK_REFUSED(pool_with(many, 33), SMP_ERROR_INVALID_CONFIG, "entries");
    CHECK_STATUS(pool_with(many, 32), SMP_SUCCESS);
    CHECK_REFUSED(sliced(0, SMP_NONE, SMP_NONE), SMP_ERROR_INVALID_CONFIG, "page_size");
    CHECK_REFUSED(sliced(2 * MIB, 0, SMP_NONE), SMP_ERROR_INVALID_CONFIG, "max_slice_size");
    CHECK_REFUSED(sliced(2 * MIB, SMP_NONE, 0), SMP_ERROR_INVALID_CONFIG, "max_pool_size");
    CHECK_REFUSED(sliced(2 * MIB, 2 * MIB + 1, SMP_NONE), SMP_ERROR_INVALID_CONFIG, "max_slice_size");
    CHECK_REFUSED(sliced(2 * MIB, SMP_NONE, 2 * MIB - 1), SMP_ERROR_INVALID_CONFIG, "max_pool_size");
    CHECK_REFUSED(sliced(SMP_NONE, SMP_NONE, SMP_NONE), SMP_ERROR_INVALID_CONFIG, "page_size"); /* overflows rounded */
    CHECK_STATUS(sliced(2 * MIB, 2 * MIB, 2 * MIB), SMP_SUCCESS);
    CHECK_STATUS(sliced(1000, 1001, SMP_NONE), SMP_SUCCESS); /* both round up to 1024 */
    exclusive.max_alloc_size = SMP_NONE - 3;
    CHECK_REFUSED(pool_with(&exclusive, 1), SMP_ERROR_INVALID_CONFIG, "max_alloc_size");
}

static void the_text_names_which_entry_is_wrong(void)
{
    smp_pool_entry entries[2] = {SMP_ENTRY_EXCLUSIVE_INIT(4096), SMP_ENTRY_SLICED_INIT(0, SMP_NONE, SMP_NONE)};
    CHECK_REFUSED(pool_with(entries, 2), SMP_ERROR_INVALID_CONFIG, "entries[1]");
}

static void a_field_that_means_nothing_to_the_kind_is_refused(void)
{
    smp_pool_entry direct = SMP_ENTRY_DIRECT_INIT(SMP_NONE), exclusive = SMP_ENTRY_EXCLUSIVE_INIT(SMP_NONE);
    direct.page_size = 4096;
    CHECK_REFUSED(pool_with(&direct, 1), SMP_ERROR_INVALID_CONFIG, "page_size");
    exclusive.reclaim_at = 4096;
    CHECK_REFUSED(pool_with(&exclusive, 1), SMP_ERROR_INVALID_CONFIG, "reclaim_at");
}

static void numbers_that_are_no_enumerators_and_reserved_fields_are_refused(void)
{
    smp_device device = lazy_device();
    smp_pool_entry entry = SMP_ENTRY_DIRECT_INIT(SMP_NONE);
    smp_pool_config init = SMP_POOL_CONFIG_INIT, config;
    smp_pool pool = NULL;
    entry.kind = 77;
    CHECK_REFUSED(pool_with(&entry, 1), SMP_ERROR_INVALID_VALUE, "kind");
    entry.kind = SMP_ENTRY_DIRECT;
    entry.reserved[1] = 1;
    CHECK_REFUSED(pool_with(&entry, 1), SMP_ERROR_INVALID_VALUE, "reserved");
    config = init;
    config.preset = 77;
    CHECK_REFUSED(smp_pool_create(device, &config, &pool), SMP_ERROR_INVALID_VALUE, "preset");
    config = init;
    config.policies = 8;
    CHECK_REFUSED(smp_pool_create(device, &config, &pool), SMP_ERROR_INVALID_VALUE, "policies");
    config = init;
    config.flags = 4;
    CHECK_REFUSED(smp_pool_create(device, &config, &pool), SMP_ERROR_INVALID_VALUE, "flags");
    config = init;
    config.reserved[0] = 1;
    CHECK_REFUSED(smp_pool_create(device, &config, &pool), SMP_ERROR_INVALID_VALUE, "reserved");
    config = init;
    config.struct_size = 4;
    CHECK_REFUSED(smp_pool_create(device, &config, &pool), SMP_ERROR_INVALID_VALUE, "struct_size");
    config = init;
    config.entry_count = 1;
    CHECK_REFUSED(smp_pool_create(device, &config, &pool), SMP_ERROR_INVALID_VALUE, "entries");
    config = init;
    config.preset = SMP_PRESET_DRIVER;
    if (!on_cuda())
        CHECK_REFUSED(smp_pool_create(device, &config, &pool), SMP_ERROR_NOT_SUPPORTED, "driver");
    config = init;
    config.max_pool_size = 64 * MIB;
    CHECK_REFUSED(smp_pool_create(device, &config, &pool), SMP_ERROR_INVALID_CONFIG, "max_pool_size");
    config = init;
    config.preset = SMP_PRESET_CUDA;
    config.max_pool_size = 0;
    CHECK_REFUSED(smp_pool_create(device, &config, &pool), SMP_ERROR_INVALID_CONFIG, "max_pool_size");
    CHECK_REFUSED(smp_pool_create(device, &init, NULL), SMP_ERROR_INVALID_VALUE, "out");
    CHECK_NULL(pool);
    CHECK_EQ(device_info(device).pools, 0);
    must(smp_device_close(device));
}

/* ---- specifications --------------------------------------------------------------------------------------------- */

static void a_specification_that_does_not_parse_is_refused_with_its_column(void)
{
    static const struct {
        const char *spec;
        smp_status status;
        const char *word;
    } wrong[] = {
        {"", SMP_ERROR_SPEC_SYNTAX, "column"},
        {"nonsense", SMP_ERROR_SPEC_SYNTAX, "column 1"},
        {"direct(); nonsense()", SMP_ERROR_SPEC_SYNTAX, "column 11"},
        {"sliced(page_size=64MiB", SMP_ERROR_SPEC_SYNTAX, "column"},
        {"sliced(page_size=64MB)", SMP_ERROR_SPEC_SYNTAX, "MiB"}, /* the error says what was meant */
        {"sliced(page_size=64MiB, page_size=64MiB)", SMP_ERROR_SPEC_SYNTAX, "page_size"},
        {"sliced(page_size=64MiB, colour=3)", SMP_ERROR_SPEC_SYNTAX, "colour"},
        {"sliced(page_size=-1)", SMP_ERROR_SPEC_SYNTAX, "column"},
        {"sliced(page_size=99999999999999999999)", SMP_ERROR_SPEC_SYNTAX, "column"},
        {"sliced(page_size=17179869184GiB)", SMP_ERROR_SPEC_SYNTAX, "column"},
        {"preset(nonsense)", SMP_ERROR_SPEC_SYNTAX, "nonsense"},
        {"direct() direct()", SMP_ERROR_SPEC_SYNTAX, "column"},
        {"sliced(page_size=0)", SMP_ERROR_INVALID_CONFIG, "page_size"},
        {"sliced(page_size=2MiB, max_slice_size=4MiB)", SMP_ERROR_INVALID_CONFIG, "max_slice_size"},
    };
    smp_device device = lazy_device();
    size_t i;
    for (i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        smp_pool pool = NULL;
        unsigned long failures = test_failures;
        CHECK_REFUSED(smp_pool_create_from_spec(device, wrong[i].spec, &pool), wrong[i].status, wrong[i].word);
        CHECK_NULL(pool);
        if (test_failures != failures)
            printf("  ... of \"%s\"\n", wrong[i].spec);
    }
    CHECK_EQ(device_info(device).pools, 0);
    {
        smp_pool pool = NULL;
        CHECK_REFUSED(smp_pool_create_from_spec(device, NULL, &pool), SMP_ERROR_INVALID_VALUE, "spec");
        CHECK_REFUSED(smp_pool_create_from_spec(device, "direct()", NULL), SMP_ERROR_INVALID_VALUE, "out");
        CHECK_REFUSED(smp_pool_create_from_spec(device, "direct(\xff)", &pool), SMP_ERROR_INVALID_VALUE, "UTF-8");
    }
    must(smp_device_close(device));
}

/* ---- attributes, figures, reports, callbacks -------------------------------------------------------------------- */

static void a_policy_is_0_or_1(void)
{
    struct scene t = scene();
    CHECK_REFUSED(smp_pool_set_attribute(t.pool, 1, 2), SMP_ERROR_INVALID_VALUE, "2");
    CHECK_REFUSED(smp_pool_set_attribute(t.pool, 3, UINT64_MAX), SMP_ERROR_INVALID_VALUE, "0 or 1");
    CHECK_EQ(attribute(t.pool, 1), 1);
    CHECK_EQ(attribute(t.pool, 3), 1);
    scene_end(&t);
}

static void unknown_and_read_only_attributes_are_named(void)
{
    struct scene t = scene();
    uint64_t value = 5;
    CHECK_REFUSED(smp_pool_get_attribute(t.pool, 4242, &value), SMP_ERROR_INVALID_VALUE, "4242");
    CHECK_REFUSED(smp_pool_set_attribute(t.pool, 4242, 0), SMP_ERROR_INVALID_VALUE, "4242");
    CHECK_REFUSED(smp_pool_set_attribute(t.pool, 5, 0), SMP_ERROR_INVALID_VALUE, "read-only");
    CHECK_REFUSED(smp_pool_set_attribute(t.pool, SMP_ATTRIBUTE_MAX_POOL_SIZE, 0), SMP_ERROR_INVALID_VALUE, "read-only");
    for (uint32_t number = 9; number <= 15; number++) { /* what one does not know the other does not either */
        if (number == SMP_ATTRIBUTE_MAX_POOL_SIZE)
            continue;
        CHECK_REFUSED(smp_pool_get_attribute(t.pool, number, &value), SMP_ERROR_INVALID_VALUE, "not known");
        CHECK_REFUSED(smp_pool_set_attribute(t.pool, number, 0), SMP_ERROR_INVALID_VALUE, "not known");
    }
    CHECK_REFUSED(smp_pool_set_attribute(t.pool, 6, 1), SMP_ERROR_INVALID_VALUE, "0");
    CHECK_EQ(value, 5);
    scene_end(&t);
}

static int count_bytes(void *user, const char *text, uint64_t length)
{
    uint64_t *bytes = (uint64_t *)user;
    if (text == NULL)
        return 1;
    *bytes += length;
    return 0;
}

static int refuse(void *user, const char *text, uint64_t length)
{
    (void)user;
    (void)text;
    (void)length;
    return 7;
}

static void figures_and_reports_refuse_what_they_cannot_write(void)
{
    struct scene t = scene();
    smp_pool_stats stats = SMP_POOL_STATS_INIT;
    uint64_t bytes = 0;
    CHECK_REFUSED(smp_pool_get_stats(t.pool, NULL), SMP_ERROR_INVALID_VALUE, "out");
    CHECK_REFUSED(smp_pool_get_entry_stats(t.pool, 1, &stats), SMP_ERROR_INVALID_VALUE, "index");
    stats.struct_size = 0;
    CHECK_REFUSED(smp_pool_get_stats(t.pool, &stats), SMP_ERROR_INVALID_VALUE, "struct_size");
    CHECK_REFUSED(smp_pool_report(t.pool, 9, count_bytes, &bytes), SMP_ERROR_INVALID_VALUE, "format");
    CHECK_REFUSED(smp_pool_report(t.pool, SMP_REPORT_TEXT, NULL, &bytes), SMP_ERROR_INVALID_VALUE, "write");
    CHECK_REFUSED(smp_pool_report(t.pool, SMP_REPORT_TEXT, refuse, &bytes), SMP_ERROR_IO, "7");
    CHECK_EQ(bytes, 0);
    CHECK_STATUS(smp_pool_report(t.pool, SMP_REPORT_TEXT, count_bytes, &bytes), SMP_SUCCESS);
    CHECK(bytes > 0);
    bytes = 0;
    CHECK_STATUS(smp_pool_report(t.pool, SMP_REPORT_JSON, count_bytes, &bytes), SMP_SUCCESS);
    CHECK(bytes > 0);
    CHECK_REFUSED(smp_set_log_callback(99, NULL, NULL), SMP_ERROR_INVALID_VALUE, "level");
    scene_end(&t);
}

/* ---- streams, events, allocations ------------------------------------------------------------------------------- */

static void flags_of_streams_and_events_are_checked(void)
{
    struct scene t = scene();
    smp_stream s = NULL;
    smp_event e = NULL;
    uint64_t streams = device_info(t.device).live_streams;
    CHECK_REFUSED(smp_stream_create(t.device, 64, &s), SMP_ERROR_INVALID_VALUE, "flags");
    CHECK_REFUSED(smp_stream_create(t.device, SMP_STREAM_LAZY | SMP_STREAM_EAGER, &s), SMP_ERROR_INVALID_VALUE, "lazy");
    CHECK_REFUSED(smp_stream_create(t.device, 0, NULL), SMP_ERROR_INVALID_VALUE, "out");
    CHECK_REFUSED(smp_event_create(t.device, 1, &e), SMP_ERROR_INVALID_VALUE, "flags");
    CHECK_REFUSED(smp_event_create(t.device, 0, NULL), SMP_ERROR_INVALID_VALUE, "out");
    CHECK_REFUSED(smp_stream_get_info(t.device, t.stream, NULL), SMP_ERROR_INVALID_VALUE, "out");
    CHECK_NULL(s);
    CHECK_NULL(e);
    CHECK_EQ(device_info(t.device).live_streams, streams);
    scene_end(&t);
}

static smp_status alloc_desc(struct scene *t, uint64_t alignment, uint32_t flags, const char *name)
{
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation a = (smp_allocation)at(0x99);
    smp_status status;
    desc.size = 512;
    desc.stream = t->stream;
    desc.alignment = alignment;
    desc.flags = flags;
    desc.name = name;
    status = smp_alloc_async_ex(t->pool, &desc, &a);
    CHECK((status == SMP_SUCCESS) == (a != NULL));
    return status;
}

static void a_bad_description_of_an_allocation_is_refused(void)
{
    struct scene t = scene();
    smp_alloc_desc desc = SMP_ALLOC_DESC_INIT;
    smp_allocation a = (smp_allocation)at(0x99);
    char name[65];
    CHECK_REFUSED(alloc_desc(&t, 3, 0, NULL), SMP_ERROR_INVALID_VALUE, "alignment");
    CHECK_REFUSED(alloc_desc(&t, 4 * MIB, 0, NULL), SMP_ERROR_INVALID_VALUE, "alignment");
    CHECK_REFUSED(alloc_desc(&t, UINT64_C(1) << 63, 0, NULL), SMP_ERROR_INVALID_VALUE, "alignment");
    CHECK_REFUSED(alloc_desc(&t, 0, 1, NULL), SMP_ERROR_INVALID_VALUE, "flags");
    memset(name, 'n', 64);
    name[64] = '\0';
    CHECK_REFUSED(alloc_desc(&t, 0, 0, name), SMP_ERROR_INVALID_VALUE, "name");
    CHECK_REFUSED(alloc_desc(&t, 0, 0, "\xff\xfe"), SMP_ERROR_INVALID_VALUE, "UTF-8");
    desc.struct_size = 1;
    CHECK_REFUSED(smp_alloc_async_ex(t.pool, &desc, &a), SMP_ERROR_INVALID_VALUE, "struct_size");
    CHECK_NULL(a);
    CHECK_REFUSED(smp_alloc_async_ex(t.pool, NULL, &a), SMP_ERROR_INVALID_VALUE, "desc");
    CHECK_REFUSED(smp_alloc_async_ex(t.pool, &desc, NULL), SMP_ERROR_INVALID_VALUE, "out");
    CHECK_REFUSED(smp_alloc_async(t.pool, 512, t.stream, NULL), SMP_ERROR_INVALID_VALUE, "out");
    CHECK_REFUSED(smp_alloc(t.pool, 512, NULL), SMP_ERROR_INVALID_VALUE, "out");
    CHECK_EQ(pool_stats(t.pool).live, 0);
    CHECK_EQ(pool_stats(t.pool).reserved, 0);
    CHECK_EQ(submitted(t.device, t.stream), 0);
    name[63] = '\0';
    CHECK_STATUS(alloc_desc(&t, 2 * MIB, 0, NULL), SMP_SUCCESS); /* the largest there is: the page granularity */
    CHECK_STATUS(alloc_desc(&t, 4096, 0, name), SMP_SUCCESS);
    scene_end(&t);
}

static void a_bad_access_is_refused_and_takes_no_place_in_the_stream(void)
{
    struct scene t = scene();
    smp_allocation a = alloc_on(t.pool, 512, t.stream);
    smp_access_verdict v = SMP_ACCESS_VERDICT_INIT;
    CHECK_REFUSED(smp_note_access(t.device, smp_allocation_ptr(a), 1, t.stream, 0, &v), SMP_ERROR_INVALID_VALUE, "access");
    CHECK_REFUSED(smp_note_access(t.device, smp_allocation_ptr(a), 1, t.stream, 4, &v), SMP_ERROR_INVALID_VALUE, "access");
    v.struct_size = 3;
    CHECK_REFUSED(smp_note_access(t.device, smp_allocation_ptr(a), 1, t.stream, SMP_ACCESS_READ, &v),
                  SMP_ERROR_INVALID_VALUE, "struct_size");
    CHECK_EQ(submitted(t.device, t.stream), 1);
    CHECK_STATUS(smp_note_access(t.device, smp_allocation_ptr(a), 1, t.stream, SMP_ACCESS_READ, NULL), SMP_SUCCESS);
    CHECK_EQ(submitted(t.device, t.stream), 2);
    scene_end(&t);
}

/* ---- traces ------------------------------------------------------------------------------------------------------ */

static void traces_refuse_what_cannot_be_written_or_read(void)
{
    struct scene t = scene();
    smp_replay_result result = SMP_REPLAY_RESULT_INIT;
    smp_replay_options options = SMP_REPLAY_OPTIONS_INIT;
    CHECK_REFUSED(smp_trace_start(t.device, NULL, 0), SMP_ERROR_INVALID_VALUE, "path");
    CHECK_REFUSED(smp_trace_start(t.device, "/nonexistent-folder/trace", 0), SMP_ERROR_IO, "/nonexistent-folder/trace");
    CHECK_REFUSED(smp_trace_stop(t.device), SMP_ERROR_NOT_PERMITTED, "record");
    CHECK_REFUSED(smp_trace_replay(NULL, NULL, &result), SMP_ERROR_INVALID_VALUE, "path");
    CHECK_REFUSED(smp_trace_replay("/nonexistent-folder/trace", NULL, &result), SMP_ERROR_IO, "/nonexistent-folder/trace");
    CHECK_REFUSED(smp_trace_replay("/nonexistent-folder/trace", NULL, NULL), SMP_ERROR_INVALID_VALUE, "out");
    options.flags = 2;
    CHECK_REFUSED(smp_trace_replay("/nonexistent-folder/trace", &options, &result), SMP_ERROR_INVALID_VALUE, "flags");
    scene_end(&t);
}

TEST_MAIN(RUN_ANY_PACE(each_status_has_its_number_name_and_description)
          RUN_ANY_PACE(the_last_error_stays_until_the_next_failure)
          RUN_ANY_PACE(the_last_error_is_the_threads_driver_code_zero_and_its_text_ends)
          RUN_ANY_PACE(the_version_of_the_library_is_the_headers)
          RUN_ANY_PACE(a_device_that_cannot_be_is_refused)
          RUN_ANY_PACE(the_device_picked_says_which_it_is_and_why)
          MODEL_ONLY(a_model_device_has_the_documented_defaults, "it is about the model device")
          RUN_ANY_PACE(a_longer_struct_is_taken_if_its_tail_is_zero)
          RUN_ANY_PACE(a_pool_that_cannot_be_is_refused_and_the_text_names_the_field)
          RUN_ANY_PACE(the_text_names_which_entry_is_wrong)
          RUN_ANY_PACE(a_field_that_means_nothing_to_the_kind_is_refused)
          RUN_ANY_PACE(numbers_that_are_no_enumerators_and_reserved_fields_are_refused)
          RUN_ANY_PACE(a_specification_that_does_not_parse_is_refused_with_its_column)
          RUN_ANY_PACE(a_policy_is_0_or_1)
          RUN_ANY_PACE(unknown_and_read_only_attributes_are_named)
          RUN_ANY_PACE(figures_and_reports_refuse_what_they_cannot_write)
          RUN_ANY_PACE(flags_of_streams_and_events_are_checked)
          RUN_ANY_PACE(a_bad_description_of_an_allocation_is_refused)
          RUN_ANY_PACE(a_bad_access_is_refused_and_takes_no_place_in_the_stream)
          RUN_ANY_PACE(traces_refuse_what_cannot_be_written_or_read))
