/* Traces: what is recorded replays to the same figures, and what cannot be read is refused with its file and line.
 *
 * Version-1 traces are written here by hand, with their figures counted by hand. Version-2 traces are recorded from a
 * program that uses every kind of call, on a lazy device, so that their outside answers matter; on CUDA also at any
 * pace, since whatever the driver answered replays on the model device.
 */
#include "support.h"

#include <sys/wait.h>
#include <unistd.h>

static char path[256];

/* A file of this process in the folder for temporary files; the name stays valid until the next call. */
static const char *file_named(const char *name)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/smp_test_trace.%ld.%s", folder != NULL ? folder : "/tmp", (long)getpid(), name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    FILE *file = fopen(file_named(name), "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static smp_replay_result replayed(const char *file, const char *pools)
{
    smp_replay_options options = SMP_REPLAY_OPTIONS_INIT;
    smp_replay_result result = SMP_REPLAY_RESULT_INIT;
    options.pools = pools;
    must(smp_trace_replay(file, &options, &result));
    return result;
}

/* ---- version 1 --------------------------------------------------------------------------------------------------- */

static void a_version_1_trace_gives_the_figures_counted_by_hand(void)
{
    smp_replay_result r;
    write_file("v1", "op,id,size,stream,thread\n"
                     "a,0,1000,0,0\n"      /* uses 1024; live 1000 */
                     "a,1,2000,0,0\n"      /* uses 2048; live 3000 */
                     "f,0,1000,0,0\n"      /* live 2000 */
                     "a,2,500,0,0\n"       /* uses 512; live 2500 */
                     "a,3,2097152,0,0\n"   /* another page; live 2099652 */
                     "f,1,2000,0,0\n"
                     "f,2,500,0,0\n"
                     "f,3,2097152,0,0\n"
                     "a,4,2097152,0,0\n"); /* reuses the second page; never freed */
    r = replayed(path, "sliced(page_size=2MiB)");
    CHECK_EQ(r.version, 1);
    CHECK_EQ(r.events, 9);
    CHECK_EQ(r.allocs, 5);
    CHECK_EQ(r.frees, 4);
    CHECK_EQ(r.live_peak, 2099652);
    CHECK_EQ(r.used_peak, 2048 + 512 + 2097152);
    CHECK_EQ(r.reserved_peak, 4 * MIB);
    CHECK_EQ(r.pages_peak, 2);
    CHECK_EQ(r.failures, 0);
    CHECK_EQ(r.streams, 1);
    CHECK_EQ(r.pools, 1);
    remove(path);
}

static void a_version_1_trace_needs_no_thread_column(void)
{
    smp_replay_result r;
    write_file("v1", "op,id,size,stream\na,7,512,0\na,8,512,1\nf,7,512,0\nf,8,512,1\n");
    r = replayed(path, "sliced(page_size=2MiB)");
    CHECK_EQ(r.events, 4);
    CHECK_EQ(r.live_peak, 1024);
    CHECK_EQ(r.streams, 2);
    remove(path);
}

static void the_pools_option_decides_what_is_reserved(void)
{
    write_file("v1", "op,id,size,stream\na,0,512,0\na,1,33554433,0\nf,0,512,0\nf,1,33554433,0\n");
    CHECK_EQ(replayed(path, "preset(cuda)").reserved_peak, 96 * MIB);
    CHECK_EQ(replayed(path, "exclusive()").reserved_peak, 36 * MIB);
    CHECK_EQ(replayed(path, NULL).reserved_peak, 48 * MIB); /* the default preset: both, in 17 chunks, and 7 ahead */
    remove(path);
}

static void a_failed_allocation_is_counted_and_its_free_is_passed_over(void)
{
    smp_replay_result r;
    write_file("v1", "op,id,size,stream\na,0,2097152,0\na,1,2097152,0\nf,1,2097152,0\nf,0,2097152,0\n");
    r = replayed(path, "sliced(page_size=2MiB, max_pool_size=2MiB)");
    CHECK_EQ(r.failures, 1);
    CHECK_EQ(r.reserved_peak, 2 * MIB);
    CHECK_EQ(r.live_peak, 2 * MIB);
    remove(path);
}

static void each_device_call_costs_what_it_is_taken_to_cost(void)
{
    smp_replay_options options = SMP_REPLAY_OPTIONS_INIT;
    smp_replay_result r = SMP_REPLAY_RESULT_INIT;
    write_file("v1", "op,id,size,stream\na,0,2097152,0\na,1,2097152,0\nf,1,2097152,0\nf,0,2097152,0\n");
    options.pools = "sliced(page_size=2MiB)";
    options.device_call_ns = 1000000000;
    must(smp_trace_replay(path, &options, &r));
    CHECK(r.device_calls >= 2); /* two pages were asked for */
    CHECK(r.elapsed_ns >= r.device_calls * 1000000000);
    CHECK(r.elapsed_ns < (r.device_calls + 1) * 1000000000);
    remove(path);
}

static void a_malformed_line_is_refused_with_file_and_line(void)
{
    static const struct {
        const char *text, *line;
    } wrong[] = {
        {"op,id,size,stream\na,0,512,0\nx,1,512,0\n", "3"},                 /* no such operation */
        {"op,id,size,stream\na,0,512,0\na,1,five,0\n", "3"},                /* no number */
        {"op,id,size,stream\na,0\n", "2"},                                  /* too few fields */
        {"op,id,size,stream\na,0,512,0,0,0\n", "2"},                        /* too many */
        {"op,id,size,stream\na,0,512,0\na,0,512,0\n", "3"},                 /* the id is taken */
        {"op,id,size,stream\nf,0,512,0\n", "2"},                            /* freed, never allocated */
        {"op,id,size,stream\na,0,512,0\nf,0,512,0\nf,0,512,0\n", "4"},      /* freed twice */
        {"op,id,size,stream\na,0,-1,0\n", "2"},                             /* negative */
        {"op,id,size,stream\na,0,99999999999999999999,0\n", "2"},           /* above 2^64 */
        {"nothing like a trace\n", "1"},
        {"", "1"},
    };
    size_t i;
    for (i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        smp_replay_result r = SMP_REPLAY_RESULT_INIT;
        unsigned long failures = test_failures;
        char place[sizeof path + 8];
        write_file("bad", wrong[i].text);
        r.events = 77;
        snprintf(place, sizeof place, "%s:%s", path, wrong[i].line);
        CHECK_REFUSED(smp_trace_replay(path, NULL, &r), SMP_ERROR_TRACE_SYNTAX, place);
        CHECK_EQ(r.events, 77);
        if (test_failures != failures)
            printf("  ... of \"%s\"\n", wrong[i].text);
        remove(path);
    }
}

static void a_replay_with_a_pool_that_cannot_be_is_refused(void)
{
    smp_replay_options options = SMP_REPLAY_OPTIONS_INIT;
    smp_replay_result r = SMP_REPLAY_RESULT_INIT;
    write_file("v1", "op,id,size,stream\na,0,512,0\n");
    options.pools = "sliced(page_size=64MB)";
    CHECK_REFUSED(smp_trace_replay(path, &options, &r), SMP_ERROR_SPEC_SYNTAX, "MiB");
    options.pools = "sliced(page_size=0)";
    CHECK_REFUSED(smp_trace_replay(path, &options, &r), SMP_ERROR_INVALID_CONFIG, "page_size");
    remove(path);
}

/* ---- version 2 --------------------------------------------------------------------------------------------------- */

static uint64_t state;

/* What the program did, as its own books have it. */
struct books {
    smp_pool_stats stats;
    uint64_t live, live_peak;
    char json[16384];
    uint64_t json_length;
};

static int append(void *user, const char *text, uint64_t length)
{
    struct books *b = (struct books *)user;
    if (length >= sizeof b->json - b->json_length)
        return 1;
    memcpy(b->json + b->json_length, text, length);
    b->json_length += length;
    b->json[b->json_length] = '\0';
    return 0;
}

/* The first report only: the program's pool is the first one made. */
static int append_first(void *user, const char *text, uint64_t length)
{
    return ((struct books *)user)->json_length == 0 ? append(user, text, length) : 0;
}

/* The library's own memory is no figure of the model. */
static void without_metadata(char *json)
{
    static const char key[] = "\"metadata_bytes\":";
    char *at_key = json;
    while ((at_key = strstr(at_key, key)) != NULL) {
        char *digits = at_key += sizeof key - 1;
        while (*digits >= '0' && *digits <= '9')
            ++digits;
        memmove(at_key, digits, strlen(digits) + 1);
    }
}

static int always_once(void *user, const smp_out_of_memory *info)
{
    int *calls = (int *)user;
    (void)info;
    return ++*calls % 2;
}

enum { HELD = 48 };

/* A block that fills a page mostly, freed on one stream with its work still to run, and wanted on another that waits for it. */
#define HANDED_OVER (2 * MIB - 100000)
static void hand_over(smp_device device, smp_pool pool, smp_stream from, smp_stream to, smp_event event)
{
    kernel(device, from, 1);
    free_on(alloc_on(pool, HANDED_OVER, from), from);
    must(smp_event_record(device, event, from));
    wait_for(device, to, event);
    free_on(alloc_on(pool, HANDED_OVER, to), to);
}

/* Every kind of call, at random; recorded to `file` with `flags` if that is not null. */
static void run_program(const char *file, uint32_t flags, struct books *books)
{
    smp_device device = lazy_device();
    smp_stream s[4];
    smp_event e[3];
    smp_pool pool;
    struct {
        smp_allocation allocation;
        uint64_t size;
    } held[HELD];
    const int rounds = sim.any_pace ? 1500 : 6000; /* at any pace it runs with many seeds */
    int i, calls = 0;
    memset(books, 0, sizeof *books);
    memset(held, 0, sizeof held);
    state = UINT64_C(0x2545F4914F6CDD1D);
    if (file != NULL)
        must(smp_trace_start(device, file, flags));
    pool = pool_of(device, "sliced(page_size=64KiB, max_slice_size=8KiB, max_pool_size=256KiB); "
                           "sliced(page_size=2MiB, max_pool_size=16MiB, dealloc_period=40); direct(reclaim_at=8MiB); "
                           "exclusive()");
    must(smp_pool_set_out_of_memory_callback(pool, always_once, &calls));
    set_capacity(device, 24 * MIB);
    for (i = 0; i < 3; ++i)
        s[i] = stream_with(device, i == 2 ? SMP_STREAM_NON_BLOCKING : 0);
    s[3] = LEGACY;
    for (i = 0; i < 3; ++i)
        e[i] = new_event(device);
    hand_over(device, pool, s[0], s[1], e[0]);
    books->live_peak = HANDED_OVER;
    for (i = 0; i < rounds; ++i) {
        uint64_t dice = test_random(&state) % 100;
        smp_stream stream = s[test_random(&state) % 4], other = s[test_random(&state) % 4];
        smp_event event = e[test_random(&state) % 3];
        int slot = (int)(test_random(&state) % HELD);
        if (dice < 60 && held[slot].allocation == NULL) {
            uint64_t drawn = test_random(&state), size = drawn % (test_random(&state) % 8 == 0 ? 3000000 : 9000);
            smp_status status = dice < 5 ? smp_alloc(pool, size, &held[slot].allocation)
                                         : smp_alloc_async(pool, size, stream, &held[slot].allocation);
            if (status == SMP_SUCCESS) {
                held[slot].size = size;
                books->live += size;
                if (books->live > books->live_peak)
                    books->live_peak = books->live;
            }
        } else if (dice < 60) {
            if (test_random(&state) % 8 == 0)
                must(smp_allocation_add_user(held[slot].allocation, other));
            if (test_random(&state) % 4 == 0)
                must(smp_note_access(device, smp_allocation_ptr(held[slot].allocation), 1, stream, SMP_ACCESS_WRITE,
                                     NULL));
            if (test_random(&state) % 16 == 0)
                must(smp_free(held[slot].allocation));
            else
                free_on(held[slot].allocation, stream);
            books->live -= held[slot].size;
            held[slot].allocation = NULL;
        } else if (dice < 68) {
            kernel(device, stream, test_random(&state) % 3 + 1);
        } else if (dice < 76) {
            advance(device, stream, test_random(&state) % 40);
        } else if (dice < 82) {
            must(smp_event_record(device, event, stream));
        } else if (dice < 90) {
            wait_for(device, stream, event);
        } else if (dice < 92) {
            sync(device, stream);
        } else if (dice < 93) {
            must(smp_event_synchronize(event));
        } else if (dice < 94) {
            must(smp_pool_trim_to(pool, test_random(&state) % (4 * MIB)));
        } else if (dice < 95) {
            uint32_t attribute = (uint32_t)(test_random(&state) % 3) + 1;
            set_attribute(pool, attribute, test_random(&state) % 2);
        } else if (dice < 96) {
            set_attribute(pool, 4, test_random(&state) % 2 == 0 ? 4 * MIB : SMP_NONE);
        } else if (dice < 97) {
            uint64_t after = test_random(&state) % 4;
            refuse_pages(device, after, test_random(&state) % 40);
        } else if (dice < 98) {
            smp_pool passing = pool_of(device, "preset(cuda)");
            must(smp_pool_destroy(passing));
        } else if (dice < 99) {
            must(smp_stream_destroy(s[1]));
            s[1] = new_stream(device);
        } else if (test_random(&state) % 4 == 0) {
            must(smp_device_synchronize(device));
        }
    }
    books->stats = pool_stats(pool);
    must(smp_pool_report(pool, SMP_REPORT_JSON, append, books));
    if (file != NULL)
        must(smp_trace_stop(device));
    must(smp_pool_destroy(pool));
    for (i = 0; i < 3; ++i) /* on CUDA they would outlive the device, and the next run would find them */
        must(smp_stream_destroy(s[i]));
    must(smp_device_close(device));
}

static void a_recorded_run_replays_to_the_same_figures(void)
{
    static struct books books;
    smp_replay_result r;
    run_program(file_named("v2"), 0, &books);
    /* The program must have come to all that is interesting, or it shows nothing. */
    CHECK(books.stats.failures > 0);
    CHECK(books.stats.page_refusals > 0);
    CHECK(books.stats.page_frees > 0);
    CHECK(books.stats.reuse_same_stream > 0);
    CHECK(books.stats.reuse_observed > 0);
    CHECK(books.stats.reuse_event > 0);
    if (!sim.any_pace) {
        CHECK(books.stats.reuse_opportunistic > 0);
        CHECK(books.stats.reuse_internal > 0);
    }
    CHECK(books.stats.reuse_fresh > 0);
    r = replayed(path, NULL); /* answers that differ make SMP_ERROR_REPLAY_MISMATCH */
    CHECK_EQ(r.version, 2);
    CHECK_EQ(r.allocs, books.stats.allocs);
    CHECK_EQ(r.frees, books.stats.frees);
    CHECK_EQ(r.failures, books.stats.failures);
    CHECK_EQ(r.live_peak, books.live_peak);
    CHECK_EQ(r.used_peak, books.stats.used_high);
    CHECK_EQ(r.reserved_peak, books.stats.reserved_high);
    CHECK_EQ(r.pages_peak, books.stats.pages_high);
    CHECK_EQ(r.device_calls, books.stats.device_calls);
    CHECK_EQ(r.verified, 1);
    CHECK(r.live_and_pending_peak >= r.live_peak);
    remove(path);
}

static void the_report_of_a_replayed_pool_is_the_recorded_pools_word_for_word(void)
{
    static struct books books, again;
    smp_replay_options options = SMP_REPLAY_OPTIONS_INIT;
    smp_replay_result r = SMP_REPLAY_RESULT_INIT;
    run_program(file_named("v2"), 0, &books);
    memset(&again, 0, sizeof again);
    options.report = append_first;
    options.report_user = &again;
    options.report_format = SMP_REPORT_JSON;
    must(smp_trace_replay(path, &options, &r));
    without_metadata(books.json);
    without_metadata(again.json);
    CHECK(strlen(books.json) > 1000);
    CHECK_STR(again.json, books.json); /* figures of the pool and of each entry, policies, threshold */
    remove(path);
}

static void recording_changes_no_figure(void)
{
    static struct books with, without;
    run_program(file_named("v2"), 0, &with);
    run_program(NULL, 0, &without);
    with.stats.metadata_bytes = without.stats.metadata_bytes = 0; /* the library's own memory, no figure of the model */
    CHECK(memcmp(&with.stats, &without.stats, sizeof with.stats) == 0);
    CHECK_EQ(with.live_peak, without.live_peak);
    remove(path);
}

static void recording_twice_writes_the_same_bytes(void)
{
    static struct books books;
    char first[256];
    FILE *a, *b;
    long same = 0;
    int x, y;
    run_program(file_named("v2a"), 0, &books);
    strcpy(first, path);
    run_program(file_named("v2b"), 0, &books);
    a = fopen(first, "rb");
    b = fopen(path, "rb");
    CHECK(a != NULL && b != NULL);
    if (a == NULL || b == NULL)
        return;
    do {
        x = fgetc(a);
        y = fgetc(b);
        same += x == y;
    } while (x == y && x != EOF);
    CHECK(x == EOF && y == EOF);
    CHECK(same > 1000);
    fclose(a);
    fclose(b);
    remove(first);
    remove(path);
}

static void a_trace_that_ends_in_gz_is_compressed_and_replays_the_same(void)
{
    static struct books books;
    smp_replay_result plain, packed;
    unsigned char magic[2] = {0, 0};
    FILE *file;
    run_program(file_named("v2"), 0, &books);
    plain = replayed(path, NULL);
    remove(path);
    run_program(file_named("v2.gz"), 0, &books);
    file = fopen(path, "rb");
    CHECK(file != NULL && fread(magic, 1, 2, file) == 2);
    if (file != NULL)
        fclose(file);
    CHECK_EQ(magic[0], 0x1F);
    CHECK_EQ(magic[1], 0x8B);
    packed = replayed(path, NULL);
    CHECK_EQ(packed.events, plain.events);
    CHECK_EQ(packed.reserved_peak, plain.reserved_peak);
    CHECK_EQ(packed.live_peak, plain.live_peak);
    remove(path);
}

/* One wrong digit in an address that the model answered must not go unnoticed. */
static void a_recorded_answer_that_differs_is_a_mismatch_or_a_syntax_error_never_a_success(void)
{
    static struct books books;
    static char text[1 << 22];
    smp_replay_result r = SMP_REPLAY_RESULT_INIT;
    FILE *file;
    size_t length, i, changed = 0, accepted = 0;
    run_program(file_named("v2"), 0, &books);
    file = fopen(path, "rb");
    length = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL)
        fclose(file);
    CHECK(length > 1000 && length < sizeof text - 1);
    /* A model address is an answer: 0x53f0... as the trace writes it. Change one digit of some of them. */
    for (i = 0; i + 18 < length && changed < 10; ++i) {
        if (strncmp(text + i, "53f0", 4) != 0 && strncmp(text + i, "53F0", 4) != 0)
            continue;
        if (i % 16 == 0) {
            char old = text[i + 12];
            text[i + 12] = old == '1' ? '2' : '1';
            file = fopen(path, "wb");
            if (file == NULL || fwrite(text, 1, length, file) != length || fclose(file) != 0)
                exit(1);
            accepted += smp_trace_replay(path, NULL, &r) == SMP_SUCCESS;
            text[i + 12] = old;
            ++changed;
        }
    }
    CHECK_EQ(changed, 10);
    CHECK_EQ(accepted, 0);
    remove(path);
}

static void other_pools_or_a_wish_leave_the_answers_uncompared(void)
{
    static struct books books;
    smp_replay_options options = SMP_REPLAY_OPTIONS_INIT;
    smp_replay_result r = SMP_REPLAY_RESULT_INIT;
    run_program(file_named("v2"), 0, &books);
    options.flags = SMP_REPLAY_UNVERIFIED;
    must(smp_trace_replay(path, &options, &r));
    CHECK_EQ(r.verified, 0);
    if (!on_cuda()) /* whose recorded capacity is the driver's, not what the program was left */
        CHECK_EQ(r.reserved_peak, books.stats.reserved_high); /* the same pools, so the same figures */
    options.flags = 0;
    options.pools = "sliced(page_size=4MiB)";
    must(smp_trace_replay(path, &options, &r));
    CHECK_EQ(r.verified, 0);
    CHECK_EQ(r.reserved_peak % (4 * MIB), 0);
    remove(path);
}

static void a_trace_with_times_replays_the_same(void)
{
    static struct books books;
    smp_replay_result r;
    run_program(file_named("v2"), SMP_TRACE_TIME, &books);
    r = replayed(path, NULL);
    CHECK_EQ(r.verified, 1);
    CHECK_EQ(r.allocs, books.stats.allocs);
    CHECK_EQ(r.reserved_peak, books.stats.reserved_high);
    remove(path);
}

static void a_device_that_is_not_at_rest_is_not_recorded(void)
{
    smp_device device = lazy_device();
    smp_pool pool = pool_of(device, "sliced(page_size=2MiB)");
    smp_stream s = new_stream(device);
    kernel(device, s, 1);
    CHECK_REFUSED(smp_trace_start(device, "test_trace.never", 0), SMP_ERROR_NOT_PERMITTED, "observed");
    sync(device, s);
    free_on(alloc_on(pool, 512, s), s);
    sync(device, s);
    CHECK_REFUSED(smp_trace_start(device, "test_trace.never", 0), SMP_ERROR_NOT_PERMITTED, "page");
    CHECK(fopen("test_trace.never", "r") == NULL);
    must(smp_pool_trim_to(pool, 0));
    CHECK_REFUSED(smp_trace_start(device, file_named("v2"), 64), SMP_ERROR_INVALID_VALUE, "flags");
    /* What there is at the start is noted: a pool and a stream made before serve in the replay too. */
    must(smp_trace_start(device, path, 0));
    free_on(alloc_on(pool, 1000, s), s);
    must(smp_trace_stop(device));
    CHECK_EQ(replayed(path, NULL).live_peak, 1000);
    CHECK_EQ(replayed(path, NULL).frees, 1);
    remove(path);
    must(smp_pool_destroy(pool));
    must(smp_device_close(device));
}

static void a_trace_that_starts_after_use_replays(void)
{
    smp_device device = lazy_device();
    smp_pool pool = pool_of(device, "mapped(range_size=64MiB)");
    smp_stream s = new_stream(device), t = new_stream(device);
    smp_allocation blocks[40];
    smp_pool_stats before = SMP_POOL_STATS_INIT, after = SMP_POOL_STATS_INIT;
    smp_replay_result r;
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < 40; i++)
            blocks[i] = alloc_on(pool, 1000 + i * 97777 % 3000000, i % 7 != 0 ? s : t);
        for (int i = 0; i < 40; i++)
            free_on(blocks[i], i % 5 != 0 ? s : t);
        must(smp_device_synchronize(device));
        if (round == 1)
            must(smp_trace_stop(device));
        must(smp_pool_get_stats(pool, round == 0 ? &before : &after));
        if (round == 0) {
            must(smp_pool_trim_to(pool, 0));
            must(smp_trace_start(device, file_named("rest"), 0));
        }
    }
    r = replayed(path, NULL);
    CHECK_EQ(r.verified, 1);
    CHECK_EQ(r.allocs, 40);
    CHECK_EQ(r.frees, 40);
    /* The addresses that the pool had reserved are given back at the start, and its figures go on. */
    CHECK_EQ(after.used, 0);
    CHECK_EQ(after.allocs, before.allocs + 80);
    CHECK(after.ranges > before.ranges);
    remove(path);
    must(smp_pool_destroy(pool));
    must(smp_device_close(device));
}

static void a_device_is_recorded_once_at_a_time(void)
{
    smp_device device = lazy_device();
    must(smp_trace_start(device, file_named("v2"), 0));
    CHECK_REFUSED(smp_trace_start(device, "test_trace.never", 0), SMP_ERROR_NOT_PERMITTED, "record");
    CHECK(fopen("test_trace.never", "r") == NULL);
    CHECK_STATUS(smp_trace_stop(device), SMP_SUCCESS);
    CHECK_REFUSED(smp_trace_stop(device), SMP_ERROR_NOT_PERMITTED, "record");
    CHECK_STATUS(smp_trace_start(device, path, 0), SMP_SUCCESS); /* and again */
    CHECK_STATUS(smp_trace_stop(device), SMP_SUCCESS);
    CHECK_EQ(replayed(path, NULL).allocs, 0);
    remove(path);
    must(smp_device_close(device));
}

static void a_file_takes_one_trace_at_a_time(void)
{
    smp_device first = lazy_device(), second = lazy_device();
    must(smp_trace_start(first, file_named("one"), 0));
    CHECK_REFUSED(smp_trace_start(second, path, 0), SMP_ERROR_INVALID_VALUE, path);
    CHECK_REFUSED(smp_trace_stop(second), SMP_ERROR_NOT_PERMITTED, "record");
    CHECK_STATUS(smp_trace_stop(first), SMP_SUCCESS);
    CHECK_EQ(replayed(path, NULL).verified, 1);
    CHECK_STATUS(smp_trace_start(second, path, 0), SMP_SUCCESS);
    CHECK_STATUS(smp_trace_stop(second), SMP_SUCCESS);
    remove(path);
    must(smp_device_close(first));
    must(smp_device_close(second));
}

/* A child frees what it inherited, gives all back (with `closes`), and ends as programs do. */
static void fork_in_a_trace(const char *name, int closes)
{
    enum { BLOCKS = 2000 };
    static smp_allocation blocks[BLOCKS];
    smp_device device = lazy_device();
    smp_pool pool;
    smp_stream s;
    smp_replay_result r;
    pid_t child;
    int i, ended = -1;
    must(smp_trace_start(device, file_named(name), 0));
    pool = pool_of(device, "sliced(page_size=2MiB)");
    s = new_stream(device);
    for (i = 0; i < BLOCKS; ++i)
        blocks[i] = alloc_on(pool, 1000, s);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        int wrong = smp_trace_stop(device) != SMP_ERROR_NOT_PERMITTED;
        for (i = 0; i < BLOCKS; ++i)
            wrong |= smp_free_async(blocks[i], s) != SMP_SUCCESS;
        if (closes)
            wrong |= smp_pool_destroy(pool) != SMP_SUCCESS || smp_device_close(device) != SMP_SUCCESS;
        exit(wrong);
    }
    CHECK(child > 0 && waitpid(child, &ended, 0) == child);
    CHECK_EQ(ended, 0);
    for (i = 0; i < BLOCKS; ++i)
        free_on(blocks[i], s);
    CHECK_STATUS(smp_trace_stop(device), SMP_SUCCESS);
    r = replayed(path, NULL);
    CHECK_EQ(r.verified, 1);
    CHECK_EQ(r.allocs, BLOCKS);
    CHECK_EQ(r.frees, BLOCKS);
    remove(path);
    must(smp_pool_destroy(pool));
    must(smp_device_close(device));
}

static void a_fork_leaves_the_trace_of_the_parent_whole(void)
{
    fork_in_a_trace("fork", 0);
    fork_in_a_trace("fork", 1);
    fork_in_a_trace("fork.gz", 0);
    fork_in_a_trace("fork.gz", 1);
}

/* Records to `path` until `done` can be read from; refuses a second trace to it meanwhile. */
static int record_until(int begun, int done)
{
    smp_device device = lazy_device(), second = lazy_device();
    char byte = 0;
    int wrong = smp_trace_start(device, path, 0) != SMP_SUCCESS;
    wrong |= smp_trace_start(second, path, 0) != SMP_ERROR_INVALID_VALUE;
    wrong |= write(begun, "b", 1) != 1 || read(done, &byte, 1) != 1;
    wrong |= smp_trace_stop(device) != SMP_SUCCESS;
    return wrong;
}

static void a_file_takes_one_trace_at_a_time_of_all_processes(void)
{
    smp_device device = lazy_device();
    int begun[2], done[2], ended = -1;
    char byte = 0;
    pid_t child;
    file_named("processes");
    CHECK(pipe(begun) == 0 && pipe(done) == 0);
    fflush(stdout);
    child = fork();
    if (child == 0)
        _exit(record_until(begun[1], done[0]));
    CHECK(child > 0 && read(begun[0], &byte, 1) == 1);
    CHECK_REFUSED(smp_trace_start(device, path, 0), SMP_ERROR_INVALID_VALUE, "another process");
    CHECK_REFUSED(smp_trace_stop(device), SMP_ERROR_NOT_PERMITTED, "record");
    CHECK(write(done[1], "d", 1) == 1);
    CHECK(waitpid(child, &ended, 0) == child);
    CHECK_EQ(ended, 0);
    CHECK_EQ(replayed(path, NULL).verified, 1);
    /* A child that does nothing keeps no one from the file once the trace it saw is complete. */
    CHECK_STATUS(smp_trace_start(device, path, 0), SMP_SUCCESS);
    child = fork();
    if (child == 0)
        _exit(read(done[0], &byte, 1) != 1);
    CHECK_STATUS(smp_trace_stop(device), SMP_SUCCESS);
    CHECK_STATUS(smp_trace_start(device, path, 0), SMP_SUCCESS);
    CHECK_STATUS(smp_trace_stop(device), SMP_SUCCESS);
    CHECK(write(done[1], "d", 1) == 1);
    CHECK(child > 0 && waitpid(child, &ended, 0) == child);
    close(begun[0]);
    close(begun[1]);
    close(done[0]);
    close(done[1]);
    remove(path);
    must(smp_device_close(device));
}

struct steps {
    uint64_t calls, last_done, backwards, beyond;
};

static void on_progress(void *user, uint64_t done, uint64_t total)
{
    struct steps *steps = (struct steps *)user;
    steps->backwards += done < steps->last_done;
    steps->beyond += total != 0 && done > total;
    steps->last_done = done;
    ++steps->calls;
}

static void progress_goes_forward_and_never_beyond_the_total(void)
{
    smp_replay_options options = SMP_REPLAY_OPTIONS_INIT;
    smp_replay_result r = SMP_REPLAY_RESULT_INIT;
    struct steps steps = {0, 0, 0, 0};
    FILE *file = fopen(file_named("long"), "w");
    int i;
    if (file == NULL)
        exit(1);
    fputs("op,id,size,stream\n", file);
    for (i = 0; i < 40000; ++i)
        fprintf(file, "a,%d,512,0\nf,%d,512,0\n", i, i);
    fclose(file);
    options.progress = on_progress;
    options.progress_user = &steps;
    must(smp_trace_replay(path, &options, &r));
    CHECK_EQ(r.events, 80000);
    CHECK(steps.calls >= 2);
    CHECK_EQ(steps.backwards, 0);
    CHECK_EQ(steps.beyond, 0);
    remove(path);
}

TEST_MAIN(RUN_ANY_PACE(a_version_1_trace_gives_the_figures_counted_by_hand)
          RUN_ANY_PACE(a_version_1_trace_needs_no_thread_column)
          RUN_ANY_PACE(the_pools_option_decides_what_is_reserved)
          RUN_ANY_PACE(a_failed_allocation_is_counted_and_its_free_is_passed_over)
          RUN_ANY_PACE(each_device_call_costs_what_it_is_taken_to_cost)
          RUN_ANY_PACE(a_malformed_line_is_refused_with_file_and_line)
          RUN_ANY_PACE(a_replay_with_a_pool_that_cannot_be_is_refused)
          RUN_ANY_PACE(a_recorded_run_replays_to_the_same_figures)
          RUN_ANY_PACE(the_report_of_a_replayed_pool_is_the_recorded_pools_word_for_word)
          RUN(recording_changes_no_figure)
          MODEL_ONLY(recording_twice_writes_the_same_bytes,
                     "what a driver answers of its whole context depends on what ran there before")
          RUN(a_trace_that_ends_in_gz_is_compressed_and_replays_the_same)
          RUN_ANY_PACE(a_recorded_answer_that_differs_is_a_mismatch_or_a_syntax_error_never_a_success)
          RUN(other_pools_or_a_wish_leave_the_answers_uncompared)
          RUN_ANY_PACE(a_trace_with_times_replays_the_same)
          RUN_ANY_PACE(a_device_that_is_not_at_rest_is_not_recorded)
          RUN_ANY_PACE(a_trace_that_starts_after_use_replays)
          RUN_ANY_PACE(a_device_is_recorded_once_at_a_time)
          RUN_ANY_PACE(a_file_takes_one_trace_at_a_time)
          MODEL_ONLY(a_fork_leaves_the_trace_of_the_parent_whole,
                     "no child may use a device whose driver its parent opened")
          MODEL_ONLY(a_file_takes_one_trace_at_a_time_of_all_processes,
                     "no child may use a device whose driver its parent opened")
          RUN_ANY_PACE(progress_goes_forward_and_never_beyond_the_total))
