/* What the environment says of devices and driver; each case runs with its own. */
#include "driver.h"

static void without_pools_stream_ordered_allocation_is_not_supported(void)
{
    handle_t pool;
    stream_t stream;
    ptr_t at = 7;
    start();
    CHECK(cuStreamCreate(&stream, 0), OK);
    CHECK(cuMemAllocAsync(&at, 512, stream), NOT_SUPPORTED);
    CHECK(at, 0);
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0), NOT_SUPPORTED);
    CHECK(cuMemAlloc_v2(&at, 512), OK);
}

static void without_devices_there_is_nothing_to_initialise(void)
{
    int count = 7;
    CHECK(cuInit(0), NO_DEVICE);
    CHECK(cuDeviceGetCount(&count), NOT_INITIALIZED);
}

static void an_old_driver_has_no_newer_functions(void)
{
    void *function;
    int version, status;
    CHECK(cuDriverGetVersion(&version), OK);
    CHECK(version, 11010);
    CHECK(cuGetProcAddress_v2("cuMemAllocAsync", &function, 11010, 0, &status), OK);
    CHECK(function == NULL, 1);
    CHECK(status, 1);
    CHECK(cuGetProcAddress_v2("cuMemCreate", &function, 11010, 0, &status), OK);
    CHECK(function != NULL, 1);
    CHECK(cuGetProcAddress_v2("cuMemCreate", &function, 11020, 0, &status), INVALID_VALUE);
}

static void memory_is_what_was_set(void)
{
    size_t bytes;
    ptr_t at;
    start();
    CHECK(cuDeviceTotalMem_v2(&bytes, 0), OK);
    CHECK(bytes, 64 << 20);
    CHECK(cuMemAlloc_v2(&at, (64 << 20) + 1), OUT_OF_MEMORY);
    CHECK(cuMemAlloc_v2(&at, 64 << 20), OK);
}

static const struct test_case cases[] = {
    CASE(without_pools_stream_ordered_allocation_is_not_supported),
    CASE(without_devices_there_is_nothing_to_initialise),
    CASE(an_old_driver_has_no_newer_functions),
    CASE(memory_is_what_was_set),
};

MAIN(cases)
