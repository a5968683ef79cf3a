/* Streams, events, default streams, host functions, launches. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

static stream_t stream_of(unsigned flags)
{
    stream_t stream;
    CHECK(cuStreamCreate(&stream, flags), OK);
    return stream;
}

static uint64_t executed(stream_t stream)
{
    uint64_t count;
    CHECK(simcuda_progress(stream, NULL, &count), OK);
    return count;
}

static void a_stream_is_what_it_was_made_as(void)
{
    stream_t a, b;
    unsigned flags;
    int priority, device;
    unsigned long long id_a, id_b;
    handle_t context, of;
    context = start();
    CHECK(cuStreamCreate(&a, 2), INVALID_VALUE);
    CHECK(cuStreamCreate(NULL, 0), INVALID_VALUE);
    a = stream_of(1);
    CHECK(cuStreamCreateWithPriority(&b, 0, -100), OK);
    CHECK(cuStreamGetFlags(a, &flags), OK);
    CHECK(flags, 1);
    CHECK(cuStreamGetFlags(b, &flags), OK);
    CHECK(flags, 0);
    /* A priority outside the range is the nearest inside. */
    CHECK(cuStreamGetPriority(b, &priority), OK);
    CHECK(priority, -5);
    CHECK(cuStreamGetCtx(a, &of), OK);
    CHECK(of == context, 1);
    CHECK(cuStreamGetDevice(a, &device), OK);
    CHECK(device, 0);
    CHECK(cuStreamGetId(a, &id_a), OK);
    CHECK(cuStreamGetId(b, &id_b), OK);
    CHECK(id_a != id_b, 1);
    /* The destroyed stream's handle comes again, with another identity. */
    CHECK(cuStreamDestroy_v2(a), OK);
    CHECK(cuStreamDestroy_v2(a), INVALID_HANDLE);
    CHECK(cuStreamQuery(a), INVALID_HANDLE);
    b = stream_of(0);
    CHECK(a == b, 1);
    CHECK(cuStreamGetId(b, &id_b), OK);
    CHECK(id_a != id_b, 1);
}

static void a_destroyed_streams_work_still_runs(void)
{
    stream_t stream;
    ptr_t at;
    start();
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuMemsetD8_v2(at, 1, 512), OK);
    stream = stream_of(1);
    CHECK(cuMemsetD8Async(at, 2, 512, stream), OK);
    CHECK(cuStreamDestroy_v2(stream), OK);
    CHECK(cuCtxSynchronize(), OK);
    CHECK(byte_at(at), 2);
}

static void events_order_streams_from_their_last_record(void)
{
    stream_t s1, s2;
    handle_t event;
    float time;
    start();
    s1 = stream_of(1);
    s2 = stream_of(1);
    CHECK(cuEventCreate(&event, 4), INVALID_VALUE);
    CHECK(cuEventCreate(&event, 0), OK);
    /* Never recorded: complete, and nothing to wait for. */
    CHECK(cuEventQuery(event), OK);
    CHECK(cuEventSynchronize(event), OK);
    CHECK(cuEventElapsedTime(&time, event, event), INVALID_HANDLE);
    CHECK(simcuda_gate_close(s1), OK);
    CHECK(simcuda_submit(s1, 1), OK);
    CHECK(cuStreamWaitEvent(s2, event, 0), OK);
    CHECK(cuStreamSynchronize(s2), OK);
    CHECK(cuEventRecordWithFlags(event, s1, 0), OK);
    CHECK(cuEventRecordWithFlags(event, s1, 2), INVALID_VALUE);
    CHECK(cuStreamWaitEvent(s2, event, 2), INVALID_VALUE);
    CHECK(cuStreamWaitEvent(s2, event, 0), OK);
    CHECK(cuEventQuery(event), NOT_READY);
    CHECK(cuEventElapsedTime(&time, event, event), NOT_READY);
    CHECK(cuStreamQuery(s2), NOT_READY);
    /* Recorded again elsewhere: the wait made before keeps its point. */
    CHECK(cuEventRecord(event, LEGACY), OK);
    CHECK(cuEventSynchronize(event), OK);
    CHECK(cuStreamQuery(s2), NOT_READY);
    CHECK(cuEventDestroy_v2(event), OK);
    CHECK(cuEventDestroy_v2(event), INVALID_HANDLE);
    CHECK(simcuda_gate_open(s1), OK);
    CHECK(cuStreamSynchronize(s2), OK);
    CHECK(executed(s1), 2);
}

static void the_legacy_stream_orders_blocking_streams_and_no_others(void)
{
    stream_t blocking, other;
    start();
    blocking = stream_of(0);
    other = stream_of(1);
    CHECK(simcuda_gate_close(blocking), OK);
    CHECK(simcuda_submit(blocking, 1), OK);
    CHECK(simcuda_submit(LEGACY, 1), OK);
    CHECK(cuStreamQuery(LEGACY), NOT_READY);
    CHECK(simcuda_submit(other, 1), OK);
    CHECK(cuStreamSynchronize(other), OK);
    CHECK(executed(LEGACY), 0);
    CHECK(simcuda_gate_open(blocking), OK);
    CHECK(cuStreamSynchronize(LEGACY), OK);
    /* And what blocking streams get later follows it. */
    CHECK(simcuda_gate_close(LEGACY), OK);
    CHECK(simcuda_submit(LEGACY, 1), OK);
    CHECK(simcuda_submit(blocking, 1), OK);
    CHECK(cuStreamQuery(blocking), NOT_READY);
    CHECK(simcuda_gate_open(LEGACY), OK);
    CHECK(cuStreamSynchronize(blocking), OK);
    CHECK(executed(LEGACY), 2);
}

static void *id_beside(void *data)
{
    unsigned long long *ids = data;
    handle_t context = (handle_t)(uintptr_t)ids[0];
    CHECK(cuCtxSetCurrent(context), OK);
    CHECK(cuStreamGetId_ptsz(NULL, &ids[1]), OK);
    CHECK(cuStreamGetId(NULL, &ids[2]), OK);
    return NULL;
}

static void each_thread_has_a_default_stream_of_its_own(void)
{
    unsigned long long legacy, own, again, ids[3] = {0, 0, 0};
    pthread_t thread;
    ids[0] = (unsigned long long)(uintptr_t)start();
    CHECK(cuStreamGetId(NULL, &legacy), OK);
    CHECK(cuStreamGetId_ptsz(NULL, &own), OK);
    CHECK(own != legacy, 1);
    /* The twin of a call reads only the null handle otherwise; the explicit handles mean the same in both. */
    CHECK(cuStreamGetId(PER_THREAD, &again), OK);
    CHECK(again == own, 1);
    CHECK(cuStreamGetId_ptsz(LEGACY, &again), OK);
    CHECK(again == legacy, 1);
    CHECK(pthread_create(&thread, NULL, id_beside, ids), 0);
    CHECK(pthread_join(thread, NULL), 0);
    CHECK(ids[1] != own, 1);
    CHECK(ids[2] == legacy, 1);
}

static void the_per_thread_twins_work_on_the_threads_stream(void)
{
    ptr_t at, block;
    start();
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuMemsetD8_v2(at, 0, 512), OK);
    CHECK(cuCtxSynchronize(), OK);
    CHECK(simcuda_gate_close(PER_THREAD), OK);
    CHECK(cuMemsetD8_v2_ptds(at, 1, 512), OK);
    CHECK(cuMemsetD8Async_ptsz(at, 2, 256, NULL), OK);
    CHECK(cuMemAllocAsync_ptsz(&block, 512, NULL), OK);
    CHECK(cuStreamQuery_ptsz(NULL), NOT_READY);
    CHECK(executed(PER_THREAD), 0);
    CHECK(simcuda_gate_open(PER_THREAD), OK);
    CHECK(cuStreamSynchronize_ptsz(NULL), OK);
    CHECK(executed(PER_THREAD), 3);
    CHECK(byte_at(at), 2);
    CHECK(byte_at(at + 256), 1);
    CHECK(cuMemFreeAsync(block, PER_THREAD), OK);
}

struct called {
    stream_t stream;
    int value, inside, status;
};

static void note(void *data)
{
    struct called *called = data;
    called->value++;
    called->inside = cuStreamQuery(called->stream);
}

static void note_callback(stream_t stream, int status, void *data)
{
    struct called *called = data;
    called->value += stream == called->stream ? 10 : 100;
    called->status = status;
}

static void host_functions_run_in_stream_order_and_may_not_call_the_driver(void)
{
    struct called called = {NULL, 0, -1, -1};
    start();
    called.stream = stream_of(1);
    CHECK(cuLaunchHostFunc(called.stream, NULL, NULL), INVALID_VALUE);
    CHECK(simcuda_gate_close(called.stream), OK);
    CHECK(cuLaunchHostFunc(called.stream, note, &called), OK);
    CHECK(cuStreamAddCallback(called.stream, note_callback, &called, 1), INVALID_VALUE);
    CHECK(cuStreamAddCallback(called.stream, note_callback, &called, 0), OK);
    CHECK(cuStreamQuery(called.stream), NOT_READY);
    CHECK(called.value, 0);
    CHECK(simcuda_gate_open(called.stream), OK);
    CHECK(cuStreamSynchronize(called.stream), OK);
    CHECK(called.value, 11);
    CHECK(called.inside, NOT_PERMITTED);
    CHECK(called.status, OK);
}

static void launches_are_checked_ordered_and_not_run(void)
{
    handle_t module, function, again, library, kernel;
    stream_t stream;
    unsigned config[16];
    start();
    stream = stream_of(1);
    CHECK(cuModuleLoad(&module, "/no/such/file"), FILE_NOT_FOUND);
    CHECK(cuModuleLoadData(&module, NULL), INVALID_VALUE);
    CHECK(cuModuleLoadData(&module, "image"), OK);
    CHECK(cuModuleGetFunction(&function, module, "kernel"), OK);
    CHECK(cuModuleGetFunction(&again, module, "kernel"), OK);
    CHECK(function == again, 1);
    CHECK(simcuda_gate_close(stream), OK);
    CHECK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL), OK);
    CHECK(cuStreamQuery(stream), NOT_READY);
    CHECK(simcuda_gate_open(stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(executed(stream), 1);
    CHECK(cuLaunchKernel(function, 1, 1, 1, 0, 1, 1, 0, stream, NULL, NULL), INVALID_VALUE);
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1025, 1, 1, 0, stream, NULL, NULL), INVALID_VALUE);
    CHECK(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), INVALID_HANDLE);
    CHECK(cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0), OK);
    CHECK(cuLibraryGetKernel(&kernel, library, "kernel"), OK);
    CHECK(cuKernelGetFunction(&again, kernel), OK);
    memset(config, 0, sizeof config);
    config[0] = config[1] = config[2] = config[3] = config[4] = config[5] = 1;
    memcpy(&config[8], &stream, sizeof stream);
    CHECK(cuLaunchKernelEx(config, again, NULL, NULL), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(executed(stream), 2);
    CHECK(simcuda_launches(), 2);
    CHECK(cuModuleUnload(module), OK);
    CHECK(cuModuleUnload(module), INVALID_HANDLE);
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL), INVALID_HANDLE);
}

static void a_forked_child_has_no_driver(void)
{
    int status;
    pid_t child;
    start();
    child = fork();
    CHECK(child >= 0, 1);
    if (child == 0) {
        ptr_t at;
        int answer = cuMemAlloc_v2(&at, 512);
        _exit(answer == NOT_INITIALIZED && cuInit(0) == NOT_INITIALIZED ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child, 1);
    CHECK(status, 0);
}

static const struct test_case cases[] = {
    CASE(a_stream_is_what_it_was_made_as),
    CASE(a_destroyed_streams_work_still_runs),
    CASE(events_order_streams_from_their_last_record),
    CASE(the_legacy_stream_orders_blocking_streams_and_no_others),
    CASE(each_thread_has_a_default_stream_of_its_own),
    CASE(the_per_thread_twins_work_on_the_threads_stream),
    CASE(host_functions_run_in_stream_order_and_may_not_call_the_driver),
    CASE(launches_are_checked_ordered_and_not_run),
    CASE(a_forked_child_has_no_driver),
};

MAIN(cases)
