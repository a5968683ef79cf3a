/* The control calls, and the settings by environment. Runs with SIMCUDA_FAIL=cuMemFree_v2:2:999,
 * SIMCUDA_MISSING=cuMemcpy,cuMemFree_v2 and a call log. */
#include <pthread.h>

#include "driver.h"

static void *call_once(void *data)
{
    (void)data;
    CHECK(simcuda_calls_of_thread(NULL), 0);
    CHECK(cuCtxSynchronize(), INVALID_CONTEXT);
    CHECK(simcuda_calls_of_thread("cuCtxSynchronize"), 1);
    return NULL;
}

static void calls_are_counted_by_exported_and_by_header_name_and_by_thread(void)
{
    pthread_t thread;
    ptr_t at;
    uint64_t index, calls, sum = 0;
    const char *name;
    start();
    simcuda_reset_counts();
    CHECK(simcuda_calls(NULL), 0);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuMemAlloc_v2(NULL, 512), INVALID_VALUE);
    CHECK(cuStreamQuery(LEGACY), OK);
    CHECK(cuStreamQuery_ptsz(LEGACY), OK);
    CHECK(simcuda_calls("cuMemAlloc_v2"), 2);
    CHECK(simcuda_calls("cuMemAlloc"), 2);
    CHECK(simcuda_calls("cuStreamQuery"), 2);
    CHECK(simcuda_calls("cuStreamQuery_ptsz"), 1);
    CHECK(simcuda_calls("cuNothing"), 0);
    CHECK(simcuda_calls(NULL), 4);
    CHECK(pthread_create(&thread, NULL, call_once, NULL), 0);
    CHECK(pthread_join(thread, NULL), 0);
    CHECK(simcuda_calls(NULL), 5);
    CHECK(simcuda_calls_of_thread(NULL), 4);
    for (index = 0; (name = simcuda_symbol(index, &calls, NULL)) != NULL; index++) sum += calls;
    CHECK(sum, 5);
    CHECK(index > 500, 1);
    simcuda_reset_counts();
    CHECK(simcuda_calls_of_thread(NULL), 0);
}

static void failures_come_at_their_use_and_are_counted(void)
{
    ptr_t at;
    start();
    CHECK(simcuda_fail("cuNothing", 1, 2, 0), NOT_FOUND);
    CHECK(simcuda_fail("cuMemAlloc_v2", 0, 2, 0), INVALID_VALUE);
    CHECK(simcuda_fail("cuMemAlloc_v2", 1, 0, 0), INVALID_VALUE);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(simcuda_fail("cuMemAlloc_v2", 2, 2, 0), OK);
    CHECK(simcuda_fail("cuMemAlloc_v2", 4, 999, 1), OK);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuMemAlloc_v2(&at, 512), OUT_OF_MEMORY);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuMemAlloc_v2(&at, 512), 999);
    CHECK(cuMemAlloc_v2(&at, 512), 999);
    CHECK(simcuda_fired("cuMemAlloc"), 3);
    CHECK(simcuda_fired(NULL), 3);
    simcuda_clear_failures();
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(simcuda_fired(NULL), 3);
}

static void a_failed_call_has_done_nothing(void)
{
    ptr_t at = 77;
    size_t before, after;
    start();
    CHECK(cuMemGetInfo_v2(&before, NULL), OK);
    CHECK(simcuda_fail("cuMemAlloc", 1, 999, 0), OK);
    CHECK(cuMemAlloc_v2(&at, 512), 999);
    CHECK(at, 77);
    CHECK(cuMemGetInfo_v2(&after, NULL), OK);
    CHECK(before == after, 1);
}

static void the_environment_plans_failures_too(void)
{
    ptr_t at;
    start();
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuMemFree_v2(at + 1), INVALID_VALUE);
    CHECK(cuMemFree_v2(at), 999);
    CHECK(cuMemFree_v2(at), OK);
}

static void hidden_names_are_not_found_by_look_up(void)
{
    void *function;
    int status = -1;
    start();
    CHECK(cuGetProcAddress_v2("cuMemcpy", &function, 12000, 0, &status), OK);
    CHECK(function == NULL, 1);
    CHECK(status, 1);
    CHECK(simcuda_hide("cuMemcpy", 0), OK);
    CHECK(cuGetProcAddress_v2("cuMemcpy", &function, 12000, 0, &status), OK);
    CHECK(function != NULL, 1);
    CHECK(status, 0);
    CHECK(simcuda_hide("cuMemAlloc", 1), OK);
    CHECK(cuGetProcAddress_v2("cuMemAlloc", &function, 12000, 0, NULL), OK);
    CHECK(function == NULL, 1);
    /* Only the second version is hidden: the first is found. */
    CHECK(cuGetProcAddress_v2("cuMemFree", &function, 12000, 0, &status), OK);
    CHECK(function != NULL, 1);
    CHECK(simcuda_hide(NULL, 1), INVALID_VALUE);
}

static void work_runs_by_number_and_stops_at_waits_and_gates(void)
{
    stream_t a, b;
    handle_t event;
    uint64_t ran, submitted, executed;
    start();
    CHECK(cuStreamCreate(&a, 1), OK);
    CHECK(cuStreamCreate(&b, 1), OK);
    CHECK(cuEventCreate(&event, 0), OK);
    CHECK(simcuda_set_mode(7, 0), INVALID_VALUE);
    CHECK(simcuda_set_mode(SIMCUDA_LAZY, 0), OK);
    CHECK(simcuda_submit(a, 10), OK);
    CHECK(cuEventRecord(event, a), OK);
    CHECK(cuStreamWaitEvent(b, event, 0), OK);
    CHECK(simcuda_run(b, UINT64_MAX, &ran), OK);
    CHECK(ran, 0);
    CHECK(simcuda_run(a, 4, &ran), OK);
    CHECK(ran, 4);
    CHECK(simcuda_progress(a, &submitted, &executed), OK);
    CHECK(submitted, 11);
    CHECK(executed, 4);
    CHECK(simcuda_gate_close(a), OK);
    CHECK(simcuda_run(a, 4, &ran), OK);
    CHECK(ran, 0);
    CHECK(simcuda_gate_open(a), OK);
    CHECK(simcuda_run(a, UINT64_MAX, &ran), OK);
    CHECK(ran, 7);
    CHECK(simcuda_run(b, UINT64_MAX, &ran), OK);
    CHECK(ran, 1);
    CHECK(simcuda_submit(a, 3), OK);
    CHECK(simcuda_set_mode(SIMCUDA_EAGER, 0), OK);
    CHECK(cuStreamQuery(a), OK);
    CHECK(simcuda_submit((stream_t)(uintptr_t)0x1234, 1), INVALID_HANDLE);
}

static void *open_later(void *stream)
{
    uint64_t executed = 1;
    CHECK(simcuda_progress(stream, NULL, &executed), OK);
    CHECK(executed, 0);
    CHECK(simcuda_gate_open(stream), OK);
    return NULL;
}

static void a_synchronise_waits_until_another_thread_opens_the_gate(void)
{
    stream_t stream;
    pthread_t thread;
    start();
    CHECK(cuStreamCreate(&stream, 1), OK);
    CHECK(simcuda_gate_close(stream), OK);
    CHECK(simcuda_submit(stream, 1), OK);
    CHECK(pthread_create(&thread, NULL, open_later, stream), 0);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(pthread_join(thread, NULL), 0);
}

static void after_the_end_every_call_says_so(void)
{
    ptr_t at;
    int version;
    start();
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    simcuda_end();
    CHECK(cuMemFree_v2(at), DEINITIALIZED);
    CHECK(cuDriverGetVersion(&version), OK);
    CHECK(version, 13050);
}

static void the_log_has_a_line_for_each_call(void)
{
    char line[256];
    FILE *log;
    ptr_t at;
    int allocs = 0, notes = 0;
    start();
    CHECK(cuMemAlloc_v2(&at, 600), OK);
    simcuda_note("here");
    CHECK(cuMemAlloc_v2(&at, 0), INVALID_VALUE);
    log = fopen("calls.log", "r");
    CHECK(log != NULL, 1);
    while (fgets(line, sizeof line, log)) {
        if (strncmp(line, "cuMemAlloc_v2[", 14) == 0) {
            CHECK(strstr(line, allocs ? ", 0] -> 1\n" : ", 600] -> 0\n") != NULL, 1);
            CHECK(notes == allocs, 1);
            allocs++;
        }
        if (strcmp(line, "# here\n") == 0) notes++;
    }
    fclose(log);
    CHECK(allocs, 2);
}

static const struct test_case cases[] = {
    CASE(calls_are_counted_by_exported_and_by_header_name_and_by_thread),
    CASE(failures_come_at_their_use_and_are_counted),
    CASE(a_failed_call_has_done_nothing),
    CASE(the_environment_plans_failures_too),
    CASE(hidden_names_are_not_found_by_look_up),
    CASE(work_runs_by_number_and_stops_at_waits_and_gates),
    CASE(a_synchronise_waits_until_another_thread_opens_the_gate),
    CASE(after_the_end_every_call_says_so),
    CASE(the_log_has_a_line_for_each_call),
};

MAIN(cases)
