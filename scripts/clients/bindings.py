"""cuda-bindings on whatever driver is found: device, streams, events, pools, mappings, copies; data are checked."""

import ctypes

import numpy
from cuda.bindings import driver


def ok(answer):
    """The results of a call that must succeed."""
    assert answer[0] == driver.CUresult.CUDA_SUCCESS, answer[0]
    results = answer[1:]
    return results[0] if len(results) == 1 else results


ok(driver.cuInit(0))
device = ok(driver.cuDeviceGet(0))
context = ok(driver.cuDevicePrimaryCtxRetain(device))
ok(driver.cuCtxSetCurrent(context))
print("driver", ok(driver.cuDriverGetVersion()), "device", ok(driver.cuDeviceGetName(64, device)).split(b"\0")[0].decode())

# Plain memory, there and back.
data = (numpy.arange(100_000) % 251).astype(numpy.uint8)
back = numpy.zeros_like(data)
plain = ok(driver.cuMemAlloc(data.nbytes))
ok(driver.cuMemcpyHtoD(plain, data, data.nbytes))
ok(driver.cuMemcpyDtoH(back, plain, data.nbytes))
assert (back == data).all()
free, total = ok(driver.cuMemGetInfo())
assert 0 < free < total

# Two streams: the second copies what the first was given, after an event; then everything is freed in stream order.
first = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
second = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
event = ok(driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING))
for turn in range(50):
    size = 1000 + 977 * turn
    source = ok(driver.cuMemAllocAsync(size, first))
    ok(driver.cuMemsetD8Async(source, turn, size, first))
    ok(driver.cuEventRecord(event, first))
    ok(driver.cuStreamWaitEvent(second, event, 0))
    target = ok(driver.cuMemAllocAsync(size, second))
    ok(driver.cuMemcpyDtoDAsync(target, source, size, second))
    ok(driver.cuMemFreeAsync(source, second))
    got = numpy.zeros(size, dtype=numpy.uint8)
    ok(driver.cuMemcpyDtoHAsync(got, target, size, second))
    ok(driver.cuMemFreeAsync(target, second))
    ok(driver.cuStreamSynchronize(second))
    assert (got == turn).all(), turn

# A pool of its own.
props = driver.CUmemPoolProps()
props.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
props.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
pool = ok(driver.cuMemPoolCreate(props))
block = ok(driver.cuMemAllocFromPoolAsync(12, pool, first))
used = ok(driver.cuMemPoolGetAttribute(pool, driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_CURRENT))
assert int(used) == 512, used
ok(driver.cuMemFreeAsync(block, first))
ok(driver.cuStreamSynchronize(first))
ok(driver.cuMemPoolDestroy(pool))

# Physical memory that moves from one address to another keeps its bytes.
allocation = driver.CUmemAllocationProp()
allocation.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
allocation.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
part = ok(
    driver.cuMemGetAllocationGranularity(
        allocation, driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    )
)
access = driver.CUmemAccessDesc()
access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
range_start = ok(driver.cuMemAddressReserve(2 * part, 0, 0, 0))
handle = ok(driver.cuMemCreate(part, allocation, 0))
for place in (int(range_start), int(range_start) + part):
    ok(driver.cuMemMap(place, part, 0, handle, 0))
    ok(driver.cuMemSetAccess(place, part, [access], 1))
    if place == int(range_start):
        ok(driver.cuMemcpyHtoD(place, data, data.nbytes))
    back[:] = 0
    ok(driver.cuMemcpyDtoH(back, place, data.nbytes))
    assert (back == data).all()
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemUnmap(place, part))
ok(driver.cuMemRelease(handle))
ok(driver.cuMemAddressFree(range_start, 2 * part))

# What an address is.
attribute = driver.CUpointer_attribute
assert int(ok(driver.cuPointerGetAttribute(attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, plain))) == 0
base, size = ok(driver.cuMemGetAddressRange(int(plain) + 5))
assert int(base) == int(plain) and size >= data.nbytes

# Errors are CUDA's.
assert driver.cuMemAlloc(0)[0] == driver.CUresult.CUDA_ERROR_INVALID_VALUE
assert driver.cuMemAlloc(ctypes.c_size_t(-1).value)[0] == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY
ok(driver.cuMemFree(plain))
ok(driver.cuEventDestroy(event))
ok(driver.cuStreamDestroy(first))
ok(driver.cuStreamDestroy(second))
ok(driver.cuDevicePrimaryCtxRelease(device))
