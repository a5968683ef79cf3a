/* Initialisation, devices, contexts, sticky errors. Runs with two devices. */
#include "driver.h"

static void nothing_works_before_initialisation(void)
{
    ptr_t at;
    int version;
    CHECK(cuMemAlloc_v2(&at, 1), NOT_INITIALIZED);
    CHECK(cuDriverGetVersion(&version), OK);
    CHECK(cuInit(1), INVALID_VALUE);
    CHECK(cuInit(0), OK);
    CHECK(cuMemAlloc_v2(&at, 1), INVALID_CONTEXT);
}

static void devices_have_names_numbers_and_memory_of_their_own(void)
{
    char name[64], id[2][16];
    unsigned char uuid[2][16];
    size_t bytes;
    int count, device, can;
    CHECK(cuInit(0), OK);
    CHECK(cuDeviceGetCount(&count), OK);
    CHECK(count, 2);
    CHECK(cuDeviceGetName(name, sizeof name, 0), OK);
    CHECK(strcmp(name, "libsmp stand-in device (no GPU)"), 0);
    CHECK(cuDeviceGetName(name, sizeof name, 2), INVALID_DEVICE);
    CHECK(cuDeviceGetName(name, 7, 0), OK);
    CHECK(strcmp(name, "libsmp"), 0);
    for (device = 0; device < 2; device++) {
        int back;
        CHECK(cuDeviceGetUuid_v2(uuid[device], device), OK);
        CHECK(cuDeviceGetPCIBusId(id[device], sizeof id[device], device), OK);
        CHECK(cuDeviceGetByPCIBusId(&back, id[device]), OK);
        CHECK(back, device);
    }
    CHECK(memcmp(uuid[0], uuid[1], 16) != 0, 1);
    CHECK(cuDeviceGetByPCIBusId(&device, "nothing"), INVALID_VALUE);
    CHECK(cuDeviceTotalMem_v2(&bytes, 1), OK);
    CHECK(bytes, 4ll << 30);
    CHECK(cuDeviceCanAccessPeer(&can, 0, 1), OK);
    CHECK(can, 1);
    CHECK(cuDeviceCanAccessPeer(&can, 0, 0), OK);
    CHECK(can, 0);
}

static void a_thread_has_a_stack_of_contexts(void)
{
    handle_t a, b, now;
    int device;
    CHECK(cuInit(0), OK);
    CHECK(cuCtxGetCurrent(&now), OK);
    CHECK(now == NULL, 1);
    CHECK(cuCtxPopCurrent_v2(&now), INVALID_CONTEXT);
    CHECK(cuCtxCreate_v2(&a, 0, 0), OK);
    CHECK(cuCtxCreate_v4(&b, NULL, 0, 1), OK);
    CHECK(cuCtxGetCurrent(&now), OK);
    CHECK(now == b, 1);
    CHECK(cuCtxGetDevice(&device), OK);
    CHECK(device, 1);
    CHECK(cuCtxPopCurrent_v2(&now), OK);
    CHECK(now == b, 1);
    CHECK(cuCtxGetDevice(&device), OK);
    CHECK(device, 0);
    CHECK(cuCtxPushCurrent_v2(b), OK);
    CHECK(cuCtxDestroy_v2(b), OK);
    CHECK(cuCtxGetCurrent(&now), OK);
    CHECK(now == a, 1);
    CHECK(cuCtxPushCurrent_v2(b), INVALID_CONTEXT);
    CHECK(cuCtxCreate_v2(&b, 0, 2), INVALID_DEVICE);
    CHECK(cuCtxCreate_v2(NULL, 0, 0), INVALID_VALUE);
}

static void the_last_detachment_ends_a_context(void)
{
    handle_t a, same;
    handle_t primary = start();
    CHECK(cuCtxDetach(primary), INVALID_CONTEXT);
    CHECK(cuCtxCreate_v2(&a, 0, 0), OK);
    CHECK(cuCtxAttach(&same, 1), INVALID_VALUE);
    CHECK(cuCtxAttach(&same, 0), OK);
    CHECK(same == a, 1);
    CHECK(cuCtxDetach(a), OK);
    CHECK(cuCtxSynchronize(), OK);
    CHECK(cuCtxDetach(primary), INVALID_CONTEXT);
    CHECK(cuCtxDetach(a), OK);
    CHECK(cuCtxDestroy_v2(a), INVALID_CONTEXT);
    CHECK(cuCtxGetCurrent(&same), OK);
    CHECK(same == primary, 1);
}

static void a_destroyed_context_takes_its_streams_events_and_memory(void)
{
    handle_t a, event;
    stream_t stream;
    size_t before, after, total;
    ptr_t at;
    handle_t primary = start();
    CHECK(cuMemGetInfo_v2(&before, &total), OK);
    CHECK(cuCtxCreate_v2(&a, 0, 0), OK);
    CHECK(cuStreamCreate(&stream, 0), OK);
    CHECK(cuEventCreate(&event, 0), OK);
    CHECK(cuMemAlloc_v2(&at, 1 << 20), OK);
    CHECK(simcuda_gate_close(stream), OK);
    CHECK(cuMemsetD8Async(at, 1, 1 << 20, stream), OK);
    CHECK(cuEventRecord(event, stream), OK);
    CHECK(cuCtxDestroy_v2(a), OK);
    CHECK(cuCtxSetCurrent(primary), OK);
    CHECK(cuStreamQuery(stream), INVALID_HANDLE);
    CHECK(cuEventQuery(event), INVALID_HANDLE);
    CHECK(cuMemFree_v2(at), INVALID_VALUE);
    CHECK(cuMemGetInfo_v2(&after, &total), OK);
    CHECK(before == after, 1);
    CHECK(cuCtxDestroy_v2(a), INVALID_CONTEXT);
    CHECK(cuCtxDestroy_v2(primary), INVALID_CONTEXT);
}

static void pool_memory_outlives_the_context(void)
{
    handle_t a;
    ptr_t at;
    handle_t primary = start();
    CHECK(cuCtxCreate_v2(&a, 0, 0), OK);
    CHECK(cuMemAllocAsync(&at, 512, LEGACY), OK);
    CHECK(cuMemsetD8_v2(at, 5, 512), OK);
    CHECK(cuCtxSynchronize(), OK);
    CHECK(cuCtxDestroy_v2(a), OK);
    CHECK(cuCtxSetCurrent(primary), OK);
    CHECK(byte_at(at + 511), 5);
    CHECK(cuMemFree_v2(at), OK);
}

static void a_primary_context_lives_while_it_is_retained(void)
{
    handle_t a, b;
    unsigned flags;
    int active;
    ptr_t at;
    unsigned long long first, second;
    CHECK(cuInit(0), OK);
    CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active), OK);
    CHECK(active, 0);
    CHECK(cuDevicePrimaryCtxRelease_v2(0), INVALID_CONTEXT);
    CHECK(cuDevicePrimaryCtxRetain(&a, 0), OK);
    CHECK(cuDevicePrimaryCtxRetain(&b, 0), OK);
    CHECK(a == b, 1);
    CHECK(cuCtxGetId(a, &first), OK);
    CHECK(cuDevicePrimaryCtxRelease_v2(0), OK);
    CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active), OK);
    CHECK(active, 1);
    CHECK(cuCtxSetCurrent(a), OK);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuDevicePrimaryCtxRelease_v2(0), OK);
    CHECK(cuDevicePrimaryCtxGetState(0, &flags, &active), OK);
    CHECK(active, 0);
    CHECK(cuMemFree_v2(at), CONTEXT_IS_DESTROYED);
    CHECK(cuDevicePrimaryCtxRetain(&b, 0), OK);
    CHECK(cuMemFree_v2(at), INVALID_VALUE);
    CHECK(cuCtxGetId(b, &second), OK);
    CHECK(first != second, 1);
}

static void a_sticky_error_loses_the_context_until_it_is_reset(void)
{
    stream_t stream;
    handle_t event;
    ptr_t at;
    handle_t primary = start();
    CHECK(cuStreamCreate(&stream, 0), OK);
    CHECK(cuEventCreate(&event, 0), OK);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(simcuda_fail("cuStreamQuery", 1, LAUNCH_FAILED, 0), OK);
    CHECK(cuStreamQuery(stream), LAUNCH_FAILED);
    CHECK(cuStreamQuery(stream), LAUNCH_FAILED);
    CHECK(cuMemFree_v2(at), LAUNCH_FAILED);
    CHECK(cuEventQuery(event), LAUNCH_FAILED);
    CHECK(cuCtxSynchronize(), LAUNCH_FAILED);
    CHECK(cuMemFreeAsync(at, stream), LAUNCH_FAILED);
    CHECK(cuDevicePrimaryCtxReset_v2(0), OK);
    CHECK(cuDevicePrimaryCtxRetain(&primary, 0), OK);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuStreamQuery(stream), INVALID_HANDLE);
}

static void another_error_is_told_once(void)
{
    ptr_t at;
    start();
    CHECK(simcuda_fail("cuMemAlloc", 2, OUT_OF_MEMORY, 0), OK);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuMemAlloc_v2(&at, 512), OUT_OF_MEMORY);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
}

static void an_operation_on_freed_plain_memory_loses_the_context(void)
{
    stream_t stream, other;
    ptr_t at;
    start();
    CHECK(cuStreamCreate(&stream, 1), OK);
    CHECK(cuStreamCreate(&other, 1), OK);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(simcuda_gate_close(stream), OK);
    CHECK(cuMemsetD8Async(at, 1, 512, stream), OK);
    CHECK(cuMemFreeAsync(at, other), OK);
    CHECK(cuStreamSynchronize(other), OK);
    CHECK(simcuda_gate_open(stream), OK);
    CHECK(cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
    CHECK(cuCtxSynchronize(), ILLEGAL_ADDRESS);
}

static void each_device_has_memory_contexts_and_pools_of_its_own(void)
{
    handle_t a, b, pool_a, pool_b;
    stream_t on_b;
    ptr_t at_a, at_b;
    size_t before, after, total;
    int device;
    a = start();
    CHECK(cuDevicePrimaryCtxRetain(&b, 1), OK);
    CHECK(cuMemAlloc_v2(&at_a, 512), OK);
    CHECK(cuMemsetD8_v2(at_a, 3, 512), OK);
    CHECK(cuCtxSynchronize(), OK);
    CHECK(cuCtxSetCurrent(b), OK);
    CHECK(cuStreamCreate(&on_b, 0), OK);
    CHECK(cuMemGetInfo_v2(&before, &total), OK);
    CHECK(cuMemAlloc_v2(&at_b, 1 << 20), OK);
    CHECK(cuMemGetInfo_v2(&after, &total), OK);
    CHECK(before - after, 1 << 20);
    CHECK(cuCtxSetCurrent(a), OK);
    CHECK(cuMemcpyPeer(at_b, b, at_a, a, 512), OK);
    CHECK(byte_at(at_b + 511), 3);
    CHECK(cuPointerGetAttribute(&device, 9, at_b), OK);
    CHECK(device, 1);
    /* The stream's device wins over the current context's. */
    CHECK(cuMemAllocAsync(&at_b, 512, on_b), OK);
    CHECK(cuPointerGetAttribute(&device, 9, at_b), OK);
    CHECK(device, 1);
    CHECK(cuStreamGetDevice(on_b, &device), OK);
    CHECK(device, 1);
    CHECK(cuDeviceGetMemPool(&pool_a, 0), OK);
    CHECK(cuDeviceGetMemPool(&pool_b, 1), OK);
    CHECK(pool_a != pool_b, 1);
    CHECK(cuDeviceSetMemPool(0, pool_b), INVALID_VALUE);
    CHECK(cuCtxEnablePeerAccess(b, 0), OK);
    CHECK(cuCtxEnablePeerAccess(b, 0), ALREADY_ENABLED);
    CHECK(cuCtxDisablePeerAccess(b), OK);
    CHECK(cuCtxDisablePeerAccess(b), NOT_ENABLED);
    CHECK(cuCtxEnablePeerAccess(a, 0), INVALID_CONTEXT);
}

static void an_event_over_a_context_follows_and_holds_all_its_streams(void)
{
    stream_t s1, s2;
    handle_t event;
    handle_t context = start();
    uint64_t executed;
    CHECK(cuStreamCreate(&s1, 1), OK);
    CHECK(cuStreamCreate(&s2, 1), OK);
    CHECK(cuEventCreate(&event, 0), OK);
    CHECK(simcuda_gate_close(s1), OK);
    CHECK(simcuda_submit(s1, 1), OK);
    CHECK(cuCtxRecordEvent(context, event), OK);
    CHECK(cuEventQuery(event), NOT_READY);
    CHECK(cuCtxWaitEvent(context, event), OK);
    CHECK(simcuda_submit(s2, 1), OK);
    CHECK(cuStreamQuery(s2), NOT_READY);
    CHECK(simcuda_gate_open(s1), OK);
    CHECK(cuStreamSynchronize(s2), OK);
    CHECK(simcuda_progress(s1, NULL, &executed), OK);
    CHECK(executed, 1);
    CHECK(cuEventSynchronize(event), OK);
}

static const struct test_case cases[] = {
    CASE(nothing_works_before_initialisation),
    CASE(devices_have_names_numbers_and_memory_of_their_own),
    CASE(a_thread_has_a_stack_of_contexts),
    CASE(the_last_detachment_ends_a_context),
    CASE(a_destroyed_context_takes_its_streams_events_and_memory),
    CASE(pool_memory_outlives_the_context),
    CASE(a_primary_context_lives_while_it_is_retained),
    CASE(a_sticky_error_loses_the_context_until_it_is_reset),
    CASE(another_error_is_told_once),
    CASE(an_operation_on_freed_plain_memory_loses_the_context),
    CASE(each_device_has_memory_contexts_and_pools_of_its_own),
    CASE(an_event_over_a_context_follows_and_holds_all_its_streams),
};

MAIN(cases)
