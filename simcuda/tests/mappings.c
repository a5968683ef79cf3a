/* Virtual memory management. Runs with two devices. */
#include "driver.h"

#define MIB ((size_t)1 << 20)
#define PART (2 * MIB)

static const unsigned long long on_device_0[4] = {1, 1, 0, 0};
static const unsigned read_write_0[3] = {1, 0, 3}, read_0[3] = {1, 0, 1}, none_0[3] = {1, 0, 0};
static const unsigned read_write_1[3] = {1, 1, 3};

static void the_granularity_is_two_mebibytes(void)
{
    size_t bytes;
    unsigned long long bad[4] = {1, 1 | 9ull << 32, 0, 0};
    start();
    CHECK(cuMemGetAllocationGranularity(&bytes, on_device_0, 0), OK);
    CHECK(bytes, PART);
    CHECK(cuMemGetAllocationGranularity(&bytes, on_device_0, 2), INVALID_VALUE);
    CHECK(cuMemGetAllocationGranularity(NULL, on_device_0, 0), INVALID_VALUE);
    CHECK(cuMemGetAllocationGranularity(&bytes, bad, 0), INVALID_DEVICE);
}

static void addresses_are_reserved_apart_and_freed_whole(void)
{
    ptr_t a, b, again;
    start();
    CHECK(cuMemAddressReserve(&a, 4 * PART, 0, 0, 0), OK);
    CHECK(cuMemAddressReserve(&b, PART, 4 * PART, 0, 0), OK);
    CHECK(b % (4 * PART), 0);
    CHECK(b + PART <= a || a + 4 * PART <= b, 1);
    CHECK(cuMemAddressReserve(&again, 100, 0, 0, 0), INVALID_VALUE);
    CHECK(cuMemAddressReserve(&again, 0, 0, 0, 0), INVALID_VALUE);
    CHECK(cuMemAddressReserve(&again, PART, 3, 0, 0), INVALID_VALUE);
    CHECK(cuMemAddressFree(a, PART), INVALID_VALUE);
    CHECK(cuMemAddressFree(a + PART, 3 * PART), INVALID_VALUE);
    CHECK(cuMemAddressFree(a, 4 * PART), OK);
    CHECK(cuMemAddressFree(a, 4 * PART), INVALID_VALUE);
    /* A wish is met where the addresses are free. */
    CHECK(cuMemAddressReserve(&again, 4 * PART, 0, a, 0), OK);
    CHECK(again == a, 1);
    CHECK(cuMemAddressReserve(&again, PART, 0, a, 0), OK);
    CHECK(again != a, 1);
}

static void mapped_memory_needs_access_before_it_can_be_used(void)
{
    unsigned long long handle, flags;
    unsigned long long place_0 = 1, place_1 = 1 | 1ull << 32;
    unsigned char byte;
    ptr_t at;
    start();
    CHECK(cuMemAddressReserve(&at, 2 * PART, 0, 0, 0), OK);
    CHECK(cuMemCreate(&handle, PART, on_device_0, 0), OK);
    CHECK(cuMemsetD8_v2(at, 1, 1), INVALID_VALUE);
    CHECK(cuMemMap(at, PART, 0, handle, 0), OK);
    CHECK(cuMemsetD8_v2(at, 1, 1), INVALID_VALUE);
    CHECK(cuMemcpyDtoH_v2(&byte, at, 1), INVALID_VALUE);
    CHECK(cuMemSetAccess(at, PART, read_0, 1), OK);
    CHECK(cuMemcpyDtoH_v2(&byte, at, 1), OK);
    CHECK(cuMemsetD8_v2(at, 1, 1), INVALID_VALUE);
    CHECK(cuMemSetAccess(at, PART, read_write_0, 1), OK);
    CHECK(cuMemsetD8_v2(at, 7, PART), OK);
    CHECK(byte_at(at + PART - 1), 7);
    CHECK(cuMemsetD8_v2(at, 7, PART + 1), INVALID_VALUE);
    CHECK(cuMemGetAccess(&flags, &place_0, at + 5), OK);
    CHECK(flags, 3);
    CHECK(cuMemGetAccess(&flags, &place_1, at), OK);
    CHECK(flags, 0);
    CHECK(cuMemSetAccess(at, PART, none_0, 1), OK);
    CHECK(cuMemsetD8_v2(at, 1, 1), INVALID_VALUE);
    CHECK(cuMemSetAccess(at, 2 * PART, read_write_0, 1), INVALID_VALUE);
    CHECK(cuMemSetAccess(at, PART, read_write_0, 0), INVALID_VALUE);
}

static void another_device_needs_access_of_its_own(void)
{
    unsigned long long handle;
    handle_t other;
    ptr_t at;
    start();
    CHECK(cuMemAddressReserve(&at, PART, 0, 0, 0), OK);
    CHECK(cuMemCreate(&handle, PART, on_device_0, 0), OK);
    CHECK(cuMemMap(at, PART, 0, handle, 0), OK);
    CHECK(cuMemSetAccess(at, PART, read_write_0, 1), OK);
    CHECK(cuDevicePrimaryCtxRetain(&other, 1), OK);
    CHECK(cuCtxSetCurrent(other), OK);
    CHECK(cuMemsetD8_v2(at, 1, 1), INVALID_VALUE);
    CHECK(cuMemSetAccess(at, PART, read_write_1, 1), OK);
    CHECK(cuMemsetD8_v2(at, 1, 1), OK);
}

static void bytes_move_with_the_physical_memory(void)
{
    unsigned long long handle;
    ptr_t a, b;
    start();
    CHECK(cuMemAddressReserve(&a, PART, 0, 0, 0), OK);
    CHECK(cuMemAddressReserve(&b, PART, 0, 0, 0), OK);
    CHECK(cuMemCreate(&handle, PART, on_device_0, 0), OK);
    CHECK(cuMemMap(a, PART, 0, handle, 0), OK);
    CHECK(cuMemSetAccess(a, PART, read_write_0, 1), OK);
    CHECK(cuMemsetD8_v2(a, 9, PART), OK);
    CHECK(cuCtxSynchronize(), OK);
    CHECK(cuMemUnmap(a, PART), OK);
    CHECK(cuMemMap(b, PART, 0, handle, 0), OK);
    CHECK(cuMemSetAccess(b, PART, read_write_0, 1), OK);
    CHECK(byte_at(b + 12345), 9);
    /* And shows at both addresses while it is mapped at both. */
    CHECK(cuMemMap(a, PART, 0, handle, 0), OK);
    CHECK(cuMemSetAccess(a, PART, read_write_0, 1), OK);
    CHECK(cuMemsetD8_v2(a + 1, 10, 1), OK);
    CHECK(byte_at(b + 1), 10);
}

static void a_mapping_takes_reserved_free_addresses_whole_memory_and_no_offset(void)
{
    unsigned long long handle;
    ptr_t at;
    start();
    CHECK(cuMemAddressReserve(&at, 3 * PART, 0, 0, 0), OK);
    CHECK(cuMemCreate(&handle, PART, on_device_0, 0), OK);
    CHECK(cuMemMap(at, PART, PART, handle, 0), INVALID_VALUE);
    CHECK(cuMemMap(at, 2 * PART, 0, handle, 0), INVALID_VALUE);
    CHECK(cuMemMap(at + 512, PART, 0, handle, 0), INVALID_VALUE);
    CHECK(cuMemMap(at + 3 * PART, PART, 0, handle, 0), INVALID_VALUE);
    CHECK(cuMemMap(at, PART, 0, handle + 1, 0), INVALID_VALUE);
    CHECK(cuMemMap(at, PART, 0, handle, 1), INVALID_VALUE);
    CHECK(cuMemMap(at, PART, 0, handle, 0), OK);
    CHECK(cuMemMap(at, PART, 0, handle, 0), INVALID_VALUE);
    CHECK(cuMemUnmap(at, MIB), INVALID_VALUE);
    CHECK(cuMemUnmap(at, 2 * PART), INVALID_VALUE);
    CHECK(cuMemAddressFree(at, 3 * PART), INVALID_VALUE);
    CHECK(cuMemUnmap(at, PART), OK);
    CHECK(cuMemAddressFree(at, 3 * PART), OK);
}

static void physical_memory_lives_while_a_handle_or_a_mapping_holds_it(void)
{
    unsigned long long handle, again;
    unsigned long long props[4];
    size_t whole, now, total;
    ptr_t at;
    start();
    CHECK(cuMemGetInfo_v2(&whole, &total), OK);
    CHECK(cuMemAddressReserve(&at, PART, 0, 0, 0), OK);
    CHECK(cuMemCreate(&handle, PART, on_device_0, 0), OK);
    CHECK(cuMemGetInfo_v2(&now, &total), OK);
    CHECK(whole - now, PART);
    CHECK(cuMemMap(at, PART, 0, handle, 0), OK);
    CHECK(cuMemRelease(handle), OK);
    CHECK(cuMemRelease(handle), INVALID_VALUE);
    CHECK(cuMemSetAccess(at, PART, read_write_0, 1), OK);
    CHECK(cuMemsetD8_v2(at, 4, 1), OK);
    CHECK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + 100)), OK);
    CHECK(cuMemGetAllocationPropertiesFromHandle(props, again), OK);
    CHECK(memcmp(props, on_device_0, sizeof props), 0);
    CHECK(cuMemUnmap(at, PART), OK);
    CHECK(cuMemGetInfo_v2(&now, &total), OK);
    CHECK(whole - now, PART);
    CHECK(cuMemRelease(again), OK);
    CHECK(cuMemGetInfo_v2(&now, &total), OK);
    CHECK(whole == now, 1);
    CHECK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at), INVALID_VALUE);
}

static void physical_memory_is_whole_granules_and_limited(void)
{
    unsigned long long handle;
    unsigned long long compressed[4] = {1, 1, 0, 1}, nowhere[4] = {1, 9, 0, 0};
    start();
    CHECK(cuMemCreate(&handle, MIB, on_device_0, 0), INVALID_VALUE);
    CHECK(cuMemCreate(&handle, 0, on_device_0, 0), INVALID_VALUE);
    CHECK(cuMemCreate(&handle, PART, on_device_0, 1), INVALID_VALUE);
    CHECK(cuMemCreate(&handle, PART, nowhere, 0), INVALID_VALUE);
    CHECK(cuMemCreate(&handle, PART, compressed, 0), NOT_SUPPORTED);
    CHECK(simcuda_set_free_memory(0, PART), OK);
    CHECK(cuMemCreate(&handle, 2 * PART, on_device_0, 0), OUT_OF_MEMORY);
    CHECK(cuMemCreate(&handle, PART, on_device_0, 0), OK);
    CHECK(cuMemCreate(&handle, PART, on_device_0, 0), OUT_OF_MEMORY);
}

static void an_unmap_does_not_wait(void)
{
    unsigned long long handle;
    stream_t stream;
    ptr_t at;
    start();
    CHECK(cuStreamCreate(&stream, 0), OK);
    CHECK(cuMemAddressReserve(&at, PART, 0, 0, 0), OK);
    CHECK(cuMemCreate(&handle, PART, on_device_0, 0), OK);
    CHECK(cuMemMap(at, PART, 0, handle, 0), OK);
    CHECK(cuMemSetAccess(at, PART, read_write_0, 1), OK);
    CHECK(simcuda_gate_close(stream), OK);
    CHECK(cuMemsetD8Async(at, 1, PART, stream), OK);
    CHECK(cuMemUnmap(at, PART), OK);
    CHECK(simcuda_gate_open(stream), OK);
    CHECK(cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
}

static const struct test_case cases[] = {
    CASE(the_granularity_is_two_mebibytes),
    CASE(addresses_are_reserved_apart_and_freed_whole),
    CASE(mapped_memory_needs_access_before_it_can_be_used),
    CASE(another_device_needs_access_of_its_own),
    CASE(bytes_move_with_the_physical_memory),
    CASE(a_mapping_takes_reserved_free_addresses_whole_memory_and_no_offset),
    CASE(physical_memory_lives_while_a_handle_or_a_mapping_holds_it),
    CASE(physical_memory_is_whole_granules_and_limited),
    CASE(an_unmap_does_not_wait),
};

MAIN(cases)
