/* Stream capture, and graphs that come of it. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <time.h>

#include "driver.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED };

static stream_t stream_of(unsigned flags)
{
    stream_t stream;
    CHECK(cuStreamCreate(&stream, flags), OK);
    return stream;
}

static handle_t event_of(void)
{
    handle_t event;
    CHECK(cuEventCreate(&event, 2), OK);
    return event;
}

static int status_of(stream_t stream)
{
    int status = -1;
    CHECK(cuStreamIsCapturing(stream, &status), OK);
    return status;
}

static void what_is_captured_is_not_run_until_its_graph_is_launched(void)
{
    stream_t stream;
    handle_t graph, executable;
    ptr_t at;
    int round;
    start();
    stream = stream_of(0);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuMemsetD8_v2(at, 1, 512), OK);
    CHECK(cuCtxSynchronize(), OK);
    CHECK(cuStreamBeginCapture_v2(stream, GLOBAL), OK);
    CHECK(cuMemsetD8Async(at, 2, 512, stream), OK);
    CHECK(cuMemsetD8Async(at, 3, 256, stream), OK);
    CHECK(cuMemcpyDtoDAsync_v2(at + 511, at, 1, stream), OK);
    CHECK(cuStreamEndCapture(stream, &graph), OK);
    CHECK(byte_at(at), 1);
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0), OK);
    CHECK(cuGraphDestroy(graph), OK);
    CHECK(byte_at(at), 1);
    for (round = 0; round < 2; round++) {
        CHECK(cuMemsetD8_v2(at, 1, 512), OK);
        CHECK(cuGraphLaunch(executable, stream), OK);
        CHECK(cuStreamSynchronize(stream), OK);
        CHECK(byte_at(at), 3);
        CHECK(byte_at(at + 300), 2);
        CHECK(byte_at(at + 511), 3);
    }
    CHECK(cuGraphExecDestroy(executable), OK);
    CHECK(cuGraphLaunch(executable, stream), INVALID_VALUE);
    CHECK(cuGraphDestroy(graph), INVALID_VALUE);
}

static void nodes_and_dependencies_are_as_captured(void)
{
    stream_t s1, s2;
    handle_t graph, nodes[8], needs[8], fork, join;
    const handle_t *tips;
    size_t count;
    uint64_t id;
    ptr_t at;
    int type, status;
    start();
    s1 = stream_of(0);
    s2 = stream_of(0);
    fork = event_of();
    join = event_of();
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuStreamBeginCapture_v2(s1, THREAD_LOCAL), OK);
    CHECK(cuMemsetD8Async(at, 2, 1, s1), OK);
    CHECK(cuEventRecord(fork, s1), OK);
    CHECK(status_of(s2), 0);
    CHECK(cuStreamWaitEvent(s2, fork, 0), OK);
    CHECK(status_of(s2), 1);
    CHECK(cuMemcpyDtoDAsync_v2(at + 1, at, 1, s2), OK);
    CHECK(simcuda_submit(s1, 1), OK);
    CHECK(cuEventRecord(join, s2), OK);
    CHECK(cuStreamWaitEvent(s1, join, 0), OK);
    CHECK(cuStreamGetCaptureInfo_v2(s1, &status, &id, &graph, &tips, &count), OK);
    CHECK(status, 1);
    CHECK(count, 2);
    CHECK(simcuda_submit(s1, 1), OK);
    CHECK(cuStreamEndCapture(s1, &nodes[0]), OK);
    CHECK(nodes[0] == graph, 1);
    CHECK(status_of(s1), 0);
    CHECK(status_of(s2), 0);
    CHECK(cuGraphGetNodes(graph, NULL, &count), OK);
    CHECK(count, 4);
    CHECK(cuGraphGetNodes(graph, nodes, &count), OK);
    /* In the order of capture: a set (2), a copy (1), a kernel (0), a kernel that follows both of the latter. */
    CHECK(cuGraphNodeGetType(nodes[0], &type), OK);
    CHECK(type, 2);
    CHECK(cuGraphNodeGetType(nodes[1], &type), OK);
    CHECK(type, 1);
    CHECK(cuGraphNodeGetType(nodes[2], &type), OK);
    CHECK(type, 0);
    count = 8;
    CHECK(cuGraphNodeGetDependencies(nodes[0], needs, &count), OK);
    CHECK(count, 0);
    count = 8;
    CHECK(cuGraphNodeGetDependencies(nodes[1], needs, &count), OK);
    CHECK(count, 1);
    CHECK(needs[0] == nodes[0], 1);
    count = 8;
    CHECK(cuGraphNodeGetDependencies(nodes[3], needs, &count), OK);
    CHECK(count, 2);
}

static void begin_and_end_must_match(void)
{
    stream_t s1, s2;
    handle_t graph, fork;
    start();
    s1 = stream_of(0);
    s2 = stream_of(0);
    fork = event_of();
    CHECK(cuStreamBeginCapture_v2(LEGACY, GLOBAL), CAPTURE_UNSUPPORTED);
    CHECK(cuStreamBeginCapture_v2(NULL, GLOBAL), CAPTURE_UNSUPPORTED);
    CHECK(cuStreamBeginCapture_v2(s1, 3), INVALID_VALUE);
    CHECK(cuStreamEndCapture(s1, &graph), ILLEGAL_STATE);
    CHECK(cuStreamBeginCapture_v2(s1, GLOBAL), OK);
    CHECK(cuStreamBeginCapture_v2(s1, GLOBAL), ILLEGAL_STATE);
    CHECK(cuEventRecord(fork, s1), OK);
    CHECK(cuStreamWaitEvent(s2, fork, 0), OK);
    CHECK(cuStreamEndCapture(s2, &graph), CAPTURE_UNMATCHED);
    CHECK(cuStreamEndCapture(s1, &graph), CAPTURE_INVALIDATED);
    CHECK(graph == NULL, 1);
    CHECK(status_of(s2), 0);
}

static void a_stream_that_joined_must_come_back(void)
{
    stream_t s1, s2;
    handle_t graph, fork;
    start();
    s1 = stream_of(0);
    s2 = stream_of(0);
    fork = event_of();
    CHECK(cuStreamBeginCapture_v2(s1, GLOBAL), OK);
    CHECK(cuEventRecord(fork, s1), OK);
    CHECK(cuStreamWaitEvent(s2, fork, 0), OK);
    CHECK(simcuda_submit(s2, 1), OK);
    CHECK(cuStreamEndCapture(s1, &graph), CAPTURE_UNJOINED);
    CHECK(status_of(s1), 0);
    CHECK(status_of(s2), 0);
}

static void waiting_for_or_asking_after_a_capture_invalidates_it(void)
{
    handle_t graph, event;
    stream_t stream;
    int which;
    start();
    event = event_of();
    for (which = 0; which < 5; which++) {
        stream = stream_of(0);
        CHECK(cuStreamBeginCapture_v2(stream, RELAXED), OK);
        CHECK(cuEventRecord(event, stream), OK);
        switch (which) {
        case 0: CHECK(cuStreamSynchronize(stream), CAPTURE_UNSUPPORTED); break;
        case 1: CHECK(cuStreamQuery(stream), CAPTURE_UNSUPPORTED); break;
        case 2: CHECK(cuEventQuery(event), CAPTURED_EVENT); break;
        case 3: CHECK(cuEventSynchronize(event), CAPTURED_EVENT); break;
        default: CHECK(cuCtxSynchronize(), CAPTURE_UNSUPPORTED);
        }
        CHECK(status_of(stream), 2);
        CHECK(simcuda_submit(stream, 1), CAPTURE_INVALIDATED);
        CHECK(cuStreamEndCapture(stream, &graph), CAPTURE_INVALIDATED);
        CHECK(status_of(stream), 0);
        CHECK(simcuda_submit(stream, 1), OK);
    }
}

static void the_legacy_stream_may_not_run_beside_a_captured_blocking_stream(void)
{
    stream_t blocking, other;
    handle_t graph;
    ptr_t at;
    int status;
    start();
    blocking = stream_of(0);
    other = stream_of(1);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuStreamBeginCapture_v2(other, RELAXED), OK);
    CHECK(cuMemsetD8Async(at, 1, 1, LEGACY), OK);
    CHECK(cuStreamEndCapture(other, &graph), OK);
    CHECK(cuStreamBeginCapture_v2(blocking, RELAXED), OK);
    CHECK(cuStreamIsCapturing(LEGACY, &status), CAPTURE_IMPLICIT);
    CHECK(status_of(blocking), 1);
    CHECK(cuMemsetD8Async(at, 1, 1, LEGACY), CAPTURE_IMPLICIT);
    CHECK(status_of(blocking), 2);
    CHECK(cuStreamEndCapture(blocking, &graph), CAPTURE_INVALIDATED);
}

static void events_from_outside_or_of_another_capture_do_not_mix(void)
{
    stream_t s1, s2;
    handle_t graph, outside, inside;
    start();
    s1 = stream_of(0);
    s2 = stream_of(0);
    outside = event_of();
    inside = event_of();
    CHECK(cuEventRecord(outside, s2), OK);
    CHECK(cuStreamBeginCapture_v2(s1, RELAXED), OK);
    CHECK(cuStreamWaitEvent(s1, outside, 0), CAPTURE_ISOLATION);
    CHECK(cuStreamEndCapture(s1, &graph), CAPTURE_INVALIDATED);
    CHECK(cuStreamBeginCapture_v2(s1, RELAXED), OK);
    CHECK(cuStreamBeginCapture_v2(s2, RELAXED), OK);
    CHECK(cuEventRecord(inside, s1), OK);
    CHECK(cuStreamWaitEvent(s2, inside, 0), CAPTURE_MERGE);
    CHECK(cuStreamEndCapture(s1, &graph), CAPTURE_INVALIDATED);
    CHECK(cuStreamEndCapture(s2, &graph), CAPTURE_INVALIDATED);
    /* Recording it again outside makes it an ordinary event. */
    CHECK(cuEventRecord(inside, s1), OK);
    CHECK(cuEventSynchronize(inside), OK);
}

/* Whether an unsafe call is refused while a capture in MODE goes on, on this thread. */
static void modes_forbid_unsafe_calls_of_the_capturing_thread(void)
{
    handle_t graph;
    stream_t stream;
    ptr_t at;
    int mode;
    start();
    for (mode = GLOBAL; mode <= RELAXED; mode++) {
        int refused = mode == RELAXED ? OK : CAPTURE_UNSUPPORTED;
        stream = stream_of(1);
        CHECK(cuStreamBeginCapture_v2(stream, mode), OK);
        CHECK(cuMemAlloc_v2(&at, 512), refused);
        CHECK(status_of(stream), refused == OK ? 1 : 2);
        CHECK(cuStreamEndCapture(stream, &graph), refused == OK ? OK : CAPTURE_INVALIDATED);
    }
}

static void a_relaxed_thread_may_make_unsafe_calls_while_it_captures(void)
{
    handle_t graph;
    stream_t stream;
    ptr_t at;
    int mode = RELAXED;
    start();
    stream = stream_of(1);
    CHECK(cuStreamBeginCapture_v2(stream, GLOBAL), OK);
    CHECK(cuThreadExchangeStreamCaptureMode(&mode), OK);
    CHECK(mode, GLOBAL);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuThreadExchangeStreamCaptureMode(&mode), OK);
    CHECK(mode, RELAXED);
    CHECK(cuStreamEndCapture(stream, &graph), OK);
    mode = 3;
    CHECK(cuThreadExchangeStreamCaptureMode(&mode), INVALID_VALUE);
}

struct beside {
    handle_t context;
    stream_t stream;
    int mode, alloc, end;
};

static void *call_beside(void *data)
{
    struct beside *beside = data;
    handle_t graph;
    ptr_t at;
    CHECK(cuCtxSetCurrent(beside->context), OK);
    CHECK(cuThreadExchangeStreamCaptureMode(&beside->mode), OK);
    beside->alloc = cuMemAlloc_v2(&at, 512);
    beside->end = cuStreamEndCapture(beside->stream, &graph);
    return NULL;
}

/* A thread's unsafe call beside a capture that another thread began. */
static void only_a_global_capture_forbids_another_threads_unsafe_calls_and_only_when_that_is_global(void)
{
    int capture, thread;
    handle_t context = start();
    for (capture = GLOBAL; capture <= RELAXED; capture++) {
        for (thread = GLOBAL; thread <= RELAXED; thread++) {
            struct beside beside = {NULL, NULL, 0, -1, -1};
            pthread_t other;
            handle_t graph;
            int refused = capture == GLOBAL && thread == GLOBAL;
            beside.context = context;
            beside.stream = stream_of(1);
            beside.mode = thread;
            CHECK(cuStreamBeginCapture_v2(beside.stream, capture), OK);
            CHECK(pthread_create(&other, NULL, call_beside, &beside), 0);
            CHECK(pthread_join(other, NULL), 0);
            CHECK(beside.alloc, refused ? CAPTURE_UNSUPPORTED : OK);
            if (capture == RELAXED) {
                CHECK(beside.end, OK);
            } else {
                CHECK(beside.end, CAPTURE_WRONG_THREAD);
                CHECK(cuStreamEndCapture(beside.stream, &graph), refused ? CAPTURE_INVALIDATED : OK);
            }
        }
    }
}

static void captured_allocations_become_nodes_with_their_address(void)
{
    stream_t stream;
    handle_t graph, executable, second, nodes[8];
    size_t count = 8, before, held, total;
    ptr_t at;
    int type;
    start();
    stream = stream_of(1);
    CHECK(cuStreamBeginCapture_v2(stream, GLOBAL), OK);
    CHECK(cuMemAllocAsync(&at, 1 << 20, stream), OK);
    CHECK(cuMemsetD8Async(at, 9, 512, stream), OK);
    CHECK(cuMemsetD8Async(at, 9, (1 << 20) + 1, stream), INVALID_VALUE);
    CHECK(cuStreamEndCapture(stream, &graph), OK);
    CHECK(cuGraphGetNodes(graph, nodes, &count), OK);
    CHECK(count, 2);
    CHECK(cuGraphNodeGetType(nodes[0], &type), OK);
    CHECK(type, 10);
    CHECK(cuMemGetInfo_v2(&before, &total), OK);
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0), OK);
    CHECK(cuGraphInstantiateWithFlags(&second, graph, 0), NOT_SUPPORTED);
    CHECK(cuMemsetD8Async(at, 6, 512, stream), INVALID_VALUE);
    CHECK(cuGraphLaunch(executable, stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(cuMemGetInfo_v2(&held, &total), OK);
    CHECK(before - held, 1 << 20);
    CHECK(byte_at(at + 511), 9);
    CHECK(cuMemsetD8_v2(at, 6, 512), OK);
    CHECK(byte_at(at), 6);
    CHECK(cuGraphLaunch(executable, stream), INVALID_VALUE);
    CHECK(cuMemFreeAsync(at, stream), OK);
    CHECK(cuMemFreeAsync(at, stream), INVALID_VALUE);
    CHECK(cuGraphLaunch(executable, stream), OK);
    CHECK(cuMemFreeAsync(at, stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(cuMemGetInfo_v2(&held, &total), OK);
    CHECK(before == held, 1);
    CHECK(cuGraphExecDestroy(executable), OK);
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 1), OK);
    /* Instantiated to free what is left: it may be launched again and again. */
    CHECK(cuGraphLaunch(executable, stream), OK);
    CHECK(cuGraphLaunch(executable, stream), OK);
    CHECK(cuMemFreeAsync(at, stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
}

static void a_capture_may_add_to_a_graph_after_some_of_its_nodes(void)
{
    stream_t stream;
    handle_t graph, got, nodes[4], needs[4];
    size_t count = 4;
    start();
    stream = stream_of(1);
    CHECK(cuGraphCreate(&graph, 0), OK);
    CHECK(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, RELAXED), OK);
    CHECK(simcuda_submit(stream, 1), OK);
    CHECK(cuStreamEndCapture(stream, &got), OK);
    CHECK(got == graph, 1);
    CHECK(cuGraphGetNodes(graph, nodes, &count), OK);
    CHECK(count, 1);
    CHECK(cuStreamBeginCaptureToGraph(stream, graph, &graph, NULL, 1, RELAXED), INVALID_VALUE);
    CHECK(cuStreamBeginCaptureToGraph(stream, graph, nodes, NULL, 1, RELAXED), OK);
    CHECK(simcuda_submit(stream, 1), OK);
    CHECK(cuStreamQuery(stream), CAPTURE_UNSUPPORTED);
    CHECK(cuStreamEndCapture(stream, &got), CAPTURE_INVALIDATED);
    /* The graph was there before, and stays. */
    CHECK(cuStreamBeginCaptureToGraph(stream, graph, nodes, NULL, 1, RELAXED), OK);
    CHECK(simcuda_submit(stream, 1), OK);
    CHECK(cuStreamEndCapture(stream, &got), OK);
    count = 4;
    CHECK(cuGraphGetNodes(graph, nodes, &count), OK);
    CHECK(count, 3);
    count = 4;
    CHECK(cuGraphNodeGetDependencies(nodes[2], needs, &count), OK);
    CHECK(count, 1);
    CHECK(needs[0] == nodes[0], 1);
}

static void a_graph_that_frees_what_it_allocates_is_launched_again_and_again(void)
{
    stream_t stream;
    handle_t graph, executable;
    ptr_t at, plain;
    size_t before, after;
    int turn;
    start();
    stream = stream_of(1);
    CHECK(cuMemAlloc_v2(&plain, 512), OK);
    CHECK(cuMemGetInfo_v2(&before, NULL), OK);
    CHECK(cuStreamBeginCapture_v2(stream, RELAXED), OK);
    CHECK(cuMemAllocAsync(&at, 4096, stream), OK);
    CHECK(cuMemsetD8Async(at, 5, 4096, stream), OK);
    CHECK(cuMemcpyAsync(plain, at + 4095, 1, stream), OK);
    CHECK(cuMemFreeAsync(at, stream), OK);
    CHECK(cuStreamEndCapture(stream, &graph), OK);
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0), OK);
    for (turn = 0; turn < 3; turn++) {
        CHECK(cuMemsetD8_v2(plain, 0, 1), OK);
        CHECK(cuCtxSynchronize(), OK);
        CHECK(cuGraphLaunch(executable, stream), OK);
        CHECK(cuStreamSynchronize(stream), OK);
        CHECK(byte_at(plain), 5);
    }
    CHECK(cuMemGetInfo_v2(&after, NULL), OK);
    CHECK(before == after, 1);
    CHECK(cuMemFreeAsync(at, stream), INVALID_VALUE);
}

static void note_end(void *data) { *(volatile int *)data = 1; }

/* Whether the object's function has been called; it is called on another thread, so wait a little for it. */
static int ended(volatile int *end, int expected)
{
    struct timespec pause = {0, 10000000};
    int turn;
    for (turn = 0; turn < (expected ? 12000 : 5) && !*end; turn++) nanosleep(&pause, NULL);
    return *end;
}

static void user_objects_live_while_a_graph_or_a_launch_holds_them(void)
{
    static volatile int end;
    stream_t stream;
    handle_t graph, executable, object;
    start();
    stream = stream_of(1);
    CHECK(cuUserObjectCreate(&object, (void *)&end, note_end, 1, 0), INVALID_VALUE);
    CHECK(cuUserObjectCreate(&object, (void *)&end, NULL, 1, 1), INVALID_VALUE);
    CHECK(cuUserObjectCreate(&object, (void *)&end, note_end, 1, 1), OK);
    CHECK(cuGraphCreate(&graph, 0), OK);
    CHECK(cuGraphRetainUserObject(graph, object, 2, 0), OK);
    CHECK(cuUserObjectRelease(object, 1), OK);
    CHECK(cuGraphReleaseUserObject(graph, object, 3), INVALID_VALUE);
    CHECK(cuGraphReleaseUserObject(graph, object, 1), OK);
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0), OK);
    CHECK(cuGraphDestroy(graph), OK);
    CHECK(simcuda_gate_close(stream), OK);
    CHECK(cuGraphLaunch(executable, stream), OK);
    CHECK(cuGraphExecDestroy(executable), OK);
    CHECK(ended(&end, 0), 0);
    CHECK(simcuda_gate_open(stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(ended(&end, 1), 1);
    CHECK(cuUserObjectRelease(object, 1), INVALID_VALUE);
}

static void a_destroyed_stream_ends_its_capture(void)
{
    stream_t stream;
    ptr_t at;
    start();
    stream = stream_of(1);
    CHECK(cuStreamBeginCapture_v2(stream, GLOBAL), OK);
    CHECK(cuStreamDestroy_v2(stream), OK);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
}

static const struct test_case cases[] = {
    CASE(what_is_captured_is_not_run_until_its_graph_is_launched),
    CASE(nodes_and_dependencies_are_as_captured),
    CASE(begin_and_end_must_match),
    CASE(a_stream_that_joined_must_come_back),
    CASE(waiting_for_or_asking_after_a_capture_invalidates_it),
    CASE(the_legacy_stream_may_not_run_beside_a_captured_blocking_stream),
    CASE(events_from_outside_or_of_another_capture_do_not_mix),
    CASE(modes_forbid_unsafe_calls_of_the_capturing_thread),
    CASE(a_relaxed_thread_may_make_unsafe_calls_while_it_captures),
    CASE(only_a_global_capture_forbids_another_threads_unsafe_calls_and_only_when_that_is_global),
    CASE(captured_allocations_become_nodes_with_their_address),
    CASE(a_capture_may_add_to_a_graph_after_some_of_its_nodes),
    CASE(a_graph_that_frees_what_it_allocates_is_launched_again_and_again),
    CASE(user_objects_live_while_a_graph_or_a_launch_holds_them),
    CASE(a_destroyed_stream_ends_its_capture),
};

MAIN(cases)
