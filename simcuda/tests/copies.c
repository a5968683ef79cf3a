/* Plain, pitched, managed, pinned and registered memory; copies and sets; what an address is. */
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

static void plain_memory_is_aligned_limited_and_freed_once(void)
{
    ptr_t a, b;
    size_t whole, now, total;
    start();
    CHECK(cuMemAlloc_v2(&a, 0), INVALID_VALUE);
    CHECK(cuMemAlloc_v2(NULL, 1), INVALID_VALUE);
    CHECK(cuMemAlloc_v2(&a, SIZE_MAX), OUT_OF_MEMORY);
    CHECK(cuMemGetInfo_v2(&whole, &total), OK);
    CHECK(total, 4ll << 30);
    CHECK(cuMemAlloc_v2(&a, 600), OK);
    CHECK(a % 512, 0);
    CHECK(cuMemGetInfo_v2(&now, NULL), OK);
    CHECK(whole - now, 1024);
    CHECK(cuMemFree_v2(a + 1), INVALID_VALUE);
    CHECK(cuMemFree_v2(a), OK);
    CHECK(cuMemFree_v2(a), INVALID_VALUE);
    CHECK(cuMemFree_v2(0), OK);
    CHECK(cuMemsetD8_v2(a, 1, 1), INVALID_VALUE);
    CHECK(simcuda_set_free_memory(0, 1024), OK);
    CHECK(cuMemGetInfo_v2(&now, NULL), OK);
    CHECK(now, 1024);
    CHECK(cuMemAlloc_v2(&a, 1024), OK);
    CHECK(cuMemAlloc_v2(&b, 1), OUT_OF_MEMORY);
    CHECK(simcuda_set_free_memory(0, UINT64_MAX), OK);
    CHECK(cuMemAlloc_v2(&b, 1), OK);
}

static void a_free_of_plain_memory_waits_for_its_context(void)
{
    stream_t stream;
    ptr_t a, b;
    uint64_t executed;
    start();
    CHECK(cuStreamCreate(&stream, 1), OK);
    CHECK(cuMemAlloc_v2(&a, 512), OK);
    CHECK(cuMemAlloc_v2(&b, 512), OK);
    CHECK(simcuda_set_mode(SIMCUDA_LAZY, 0), OK);
    CHECK(cuMemsetD8Async(b, 1, 512, stream), OK);
    CHECK(cuMemFree_v2(a), OK);
    CHECK(simcuda_progress(stream, NULL, &executed), OK);
    CHECK(executed, 1);
}

static void sets_repeat_their_value_and_want_alignment(void)
{
    unsigned char bytes[16];
    ptr_t at;
    size_t pitch;
    start();
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    CHECK(cuMemsetD8_v2(at, 0xAA, 512), OK);
    CHECK(cuMemsetD16_v2(at + 2, 0x0102, 2), OK);
    CHECK(cuMemsetD32_v2(at + 8, 0x03040506, 1), OK);
    CHECK(cuMemcpyDtoH_v2(bytes, at, 16), OK);
    CHECK(memcmp(bytes, "\xAA\xAA\x02\x01\x02\x01\xAA\xAA\x06\x05\x04\x03\xAA\xAA\xAA\xAA", 16), 0);
    CHECK(cuMemsetD16_v2(at + 1, 0, 1), INVALID_VALUE);
    CHECK(cuMemsetD32_v2(at + 2, 0, 1), INVALID_VALUE);
    CHECK(cuMemsetD32_v2(at, 0, SIZE_MAX / 2), INVALID_VALUE);
    CHECK(cuMemsetD8_v2(at, 0, 513), INVALID_VALUE);
    CHECK(cuMemsetD8_v2(at, 0, 0), OK);
    CHECK(cuMemAllocPitch_v2(&at, &pitch, 20, 3, 4), OK);
    CHECK(pitch, 512);
    CHECK(cuMemAllocPitch_v2(&at, &pitch, 20, 3, 3), INVALID_VALUE);
    CHECK(cuMemsetD8_v2(at, 0, 3 * pitch), OK);
    CHECK(cuMemsetD2D32_v2(at, pitch, 0x01010101, 5, 2), OK);
    CHECK(byte_at(at + 19), 1);
    CHECK(byte_at(at + 20), 0);
    CHECK(byte_at(at + pitch + 19), 1);
    CHECK(byte_at(at + 2 * pitch), 0);
}

static void copies_go_any_way(void)
{
    unsigned char given[600], back[600];
    ptr_t a, b;
    size_t at;
    start();
    for (at = 0; at < sizeof given; at++) given[at] = (unsigned char)(at * 7);
    CHECK(cuMemAlloc_v2(&a, 600), OK);
    CHECK(cuMemAlloc_v2(&b, 600), OK);
    CHECK(cuMemcpyHtoD_v2(a, given, 600), OK);
    CHECK(cuMemcpyDtoD_v2(b, a, 600), OK);
    CHECK(cuMemcpyDtoH_v2(back, b, 600), OK);
    CHECK(memcmp(given, back, 600), 0);
    memset(back, 0, sizeof back);
    CHECK(cuMemcpy((ptr_t)(uintptr_t)back, b, 600), OK);
    CHECK(memcmp(given, back, 600), 0);
    CHECK(cuMemcpyDtoD_v2(b + 1, b, 599), OK);
    CHECK(byte_at(b + 599), given[598]);
    CHECK(cuMemcpyHtoD_v2(a, NULL, 1), INVALID_VALUE);
    CHECK(cuMemcpyHtoD_v2(a + 1000, given, 100), INVALID_VALUE);
    CHECK(cuMemcpyDtoH_v2(back, 12, 1), INVALID_VALUE);
    CHECK(cuMemcpyDtoH_v2(back, a, 0), OK);
    /* A device address where nothing lies is no host address. */
    CHECK(cuMemFree_v2(b), OK);
    CHECK(cuMemcpy(a, b, 1), INVALID_VALUE);
}

/* What the host may do with its memory after an asynchronous copy has returned. */
static void pageable_sources_are_read_at_the_call_and_pinned_ones_in_their_turn(void)
{
    unsigned char pageable[4] = {1, 1, 1, 1};
    unsigned char *pinned;
    stream_t stream;
    ptr_t a;
    void *memory;
    start();
    CHECK(cuStreamCreate(&stream, 1), OK);
    CHECK(cuMemAlloc_v2(&a, 512), OK);
    CHECK(cuMemHostAlloc(&memory, 4096, 0), OK);
    pinned = memory;
    memset(pinned, 1, 4096);
    CHECK(simcuda_gate_close(stream), OK);
    CHECK(cuMemcpyHtoDAsync_v2(a, pageable, 4, stream), OK);
    CHECK(cuMemcpyHtoDAsync_v2(a + 4, pinned, 4, stream), OK);
    CHECK(cuMemcpyDtoHAsync_v2(pinned + 100, a, 4, stream), OK);
    memset(pageable, 2, 4);
    memset(pinned, 2, 4096);
    CHECK(simcuda_gate_open(stream), OK);
    CHECK(cuStreamSynchronize(stream), OK);
    CHECK(byte_at(a), 1);
    CHECK(byte_at(a + 4), 2);
    CHECK(pinned[100], 1);
    CHECK(pinned[104], 2);
    /* A pageable target is written when the call returns. */
    CHECK(cuMemsetD8Async(a, 9, 4, stream), OK);
    CHECK(cuMemcpyDtoHAsync_v2(pageable, a, 4, stream), OK);
    CHECK(pageable[3], 9);
    CHECK(cuMemFreeHost(pinned + 1), INVALID_VALUE);
    CHECK(cuMemFreeHost(pinned), OK);
    CHECK(cuMemFreeHost(pinned), INVALID_VALUE);
}

static void planes_and_boxes_are_copied_by_rows(void)
{
    unsigned char host[64], back[64];
    uint64_t plane[16], shape[25];
    ptr_t at;
    size_t i, pitch;
    start();
    for (i = 0; i < 64; i++) host[i] = (unsigned char)i;
    CHECK(cuMemAllocPitch_v2(&at, &pitch, 8, 8, 4), OK);
    CHECK(cuMemsetD8_v2(at, 0xFF, 8 * pitch), OK);
    memset(plane, 0, sizeof plane);
    /* 3 bytes of 2 rows, from column 1 of row 1 of a host plane 8 wide, to column 2 of row 3 of the device's. */
    plane[0] = 1;
    plane[1] = 1;
    plane[2] = 1;
    plane[3] = (uintptr_t)host;
    plane[6] = 8;
    plane[7] = 2;
    plane[8] = 3;
    plane[9] = 2;
    plane[11] = at;
    plane[13] = pitch;
    plane[14] = 3;
    plane[15] = 2;
    CHECK(cuMemcpy2D_v2(plane), OK);
    CHECK(byte_at(at + 3 * pitch + 1), 0xFF);
    CHECK(byte_at(at + 3 * pitch + 2), 9);
    CHECK(byte_at(at + 3 * pitch + 4), 11);
    CHECK(byte_at(at + 3 * pitch + 5), 0xFF);
    CHECK(byte_at(at + 4 * pitch + 2), 17);
    CHECK(byte_at(at + 5 * pitch + 2), 0xFF);
    plane[13] = 2;
    CHECK(cuMemcpy2D_v2(plane), INVALID_VALUE);
    plane[13] = pitch;
    plane[2] = 3;
    CHECK(cuMemcpy2D_v2(plane), NOT_SUPPORTED);
    CHECK(cuMemcpy2D_v2(NULL), INVALID_VALUE);
    /* A box 2 wide, 2 high, 2 deep: from a dense device box 4 x 4 x 4 to a dense host box of the same size. */
    CHECK(cuMemcpyHtoD_v2(at, host, 64), OK);
    memset(shape, 0, sizeof shape);
    memset(back, 0xEE, sizeof back);
    shape[0] = 1;
    shape[1] = 2;
    shape[2] = 1;
    shape[4] = 2;
    shape[6] = at;
    shape[9] = 4;
    shape[10] = 4;
    shape[15] = 1;
    shape[16] = (uintptr_t)back;
    shape[20] = 4;
    shape[21] = 4;
    shape[22] = shape[23] = shape[24] = 2;
    CHECK(cuMemcpy3D_v2(shape), OK);
    /* x + 4 y + 16 z */
    CHECK(back[0], 1 + 4 * 2 + 16);
    CHECK(back[1], 2 + 4 * 2 + 16);
    CHECK(back[2], 0xEE);
    CHECK(back[4], 1 + 4 * 3 + 16);
    CHECK(back[16 + 5], 2 + 4 * 3 + 32);
    CHECK(back[16 + 6], 0xEE);
}

static void managed_and_registered_memory_is_the_hosts_too(void)
{
    static unsigned char own[4096];
    ptr_t at, of;
    unsigned char is, *bytes;
    start();
    CHECK(cuMemAllocManaged(&at, 4096, 3), INVALID_VALUE);
    CHECK(cuMemAllocManaged(&at, 4096, 1), OK);
    bytes = (unsigned char *)(uintptr_t)at;
    bytes[5] = 7;
    CHECK(byte_at(at + 5), 7);
    CHECK(cuMemsetD8_v2(at, 8, 4096), OK);
    CHECK(cuCtxSynchronize(), OK);
    CHECK(bytes[5], 8);
    CHECK(cuPointerGetAttribute(&is, 8, at), OK);
    CHECK(is, 1);
    CHECK(cuMemFree_v2(at), OK);
    CHECK(cuMemHostGetDevicePointer_v2(&of, own, 0), INVALID_VALUE);
    CHECK(cuMemHostRegister_v2(own, sizeof own, 0), OK);
    CHECK(cuMemHostRegister_v2(own, sizeof own, 0), ALREADY_REGISTERED);
    CHECK(cuMemHostGetDevicePointer_v2(&of, own, 0), OK);
    CHECK(cuMemsetD8_v2(of, 3, 10), OK);
    CHECK(cuCtxSynchronize(), OK);
    CHECK(own[9], 3);
    CHECK(cuMemHostUnregister(own), OK);
    CHECK(cuMemHostUnregister(own), NOT_REGISTERED);
}

static void a_host_that_reads_a_device_address_faults(void)
{
    int status;
    pid_t child;
    ptr_t at;
    start();
    CHECK(cuMemAlloc_v2(&at, 512), OK);
    child = fork();
    CHECK(child >= 0, 1);
    if (child == 0) _exit(*(volatile unsigned char *)(uintptr_t)at);
    CHECK(waitpid(child, &status, 0) == child, 1);
    CHECK(WIFSIGNALED(status), 1);
}

static void an_address_says_what_it_is(void)
{
    static const int which[3] = {2, 9, 17};
    void *values[3];
    handle_t context, of, pool;
    unsigned type;
    int device;
    ptr_t at, base;
    size_t bytes;
    void *host;
    context = start();
    values[0] = &type;
    values[1] = &device;
    values[2] = &pool;
    CHECK(cuMemAlloc_v2(&at, 2000), OK);
    CHECK(cuMemHostAlloc(&host, 100, 0), OK);
    CHECK(cuPointerGetAttribute(&of, 1, at + 5), OK);
    CHECK(of == context, 1);
    CHECK(cuPointerGetAttribute(&type, 2, at + 5), OK);
    CHECK(type, 2);
    CHECK(cuPointerGetAttribute(&type, 2, (ptr_t)(uintptr_t)host), OK);
    CHECK(type, 1);
    CHECK(cuPointerGetAttribute(&base, 11, at + 5), OK);
    CHECK(base == at, 1);
    CHECK(cuPointerGetAttribute(&bytes, 12, at + 5), OK);
    CHECK(bytes, 2048);
    CHECK(cuPointerGetAttribute(&type, 99, at), INVALID_VALUE);
    CHECK(cuPointerGetAttribute(&type, 2, (ptr_t)(uintptr_t)&type), INVALID_VALUE);
    CHECK(cuMemGetAddressRange_v2(&base, NULL, at + 1999), OK);
    CHECK(base == at, 1);
    CHECK(cuMemGetAddressRange_v2(&base, &bytes, at + 2048), INVALID_VALUE);
    /* Asked together, an address that is not CUDA's has no type, device -2 and no pool. */
    CHECK(cuPointerGetAttributes(3, which, values, at), OK);
    CHECK(type, 2);
    CHECK(device, 0);
    CHECK(cuPointerGetAttributes(3, which, values, (ptr_t)(uintptr_t)&type), OK);
    CHECK(type, 0);
    CHECK(device, -2);
    CHECK(pool == NULL, 1);
}

static const struct test_case cases[] = {
    CASE(plain_memory_is_aligned_limited_and_freed_once),
    CASE(a_free_of_plain_memory_waits_for_its_context),
    CASE(sets_repeat_their_value_and_want_alignment),
    CASE(copies_go_any_way),
    CASE(pageable_sources_are_read_at_the_call_and_pinned_ones_in_their_turn),
    CASE(planes_and_boxes_are_copied_by_rows),
    CASE(managed_and_registered_memory_is_the_hosts_too),
    CASE(a_host_that_reads_a_device_address_faults),
    CASE(an_address_says_what_it_is),
};

MAIN(cases)
