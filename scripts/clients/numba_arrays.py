"""numba-cuda on whatever driver is found: arrays to the device and back, on streams, pinned and mapped; data checked."""

import numpy
from numba import cuda

print("device", cuda.get_current_device().name)
given = numpy.random.default_rng(1).standard_normal((100, 37))

# There and back, contiguous either way, and through a second device array on a stream.
for array in (given, numpy.asfortranarray(given), given.astype(numpy.float32), numpy.arange(1), numpy.zeros(0)):
    there = cuda.to_device(array)
    assert (there.copy_to_host() == array).all()
    stream = cuda.stream()
    second = cuda.device_array_like(array, stream=stream)
    second.copy_to_device(there, stream=stream)
    back = second.copy_to_host(stream=stream)
    stream.synchronize()
    assert (back == array).all()

# Parts of an array.
there = cuda.to_device(given)
assert (there[10:20].copy_to_host() == given[10:20]).all()
there[10:20].copy_to_device(given[50:60])
assert (there[10:20].copy_to_host() == given[50:60]).all()

# Pinned memory, asynchronously, between two events.
stream = cuda.stream()
start, end = cuda.event(), cuda.event()
with cuda.pinned(given):
    start.record(stream)
    there = cuda.to_device(given, stream=stream)
    end.record(stream)
    back = there.copy_to_host(stream=stream)
    stream.synchronize()
assert (back == given).all() and start.elapsed_time(end) >= 0

# Host and device see the same memory.
mapped = cuda.mapped_array(100, dtype=numpy.int32)
mapped[:] = numpy.arange(100)
seen = cuda.device_array(100, dtype=numpy.int32)
cuda.driver.device_to_device(seen, mapped, mapped.nbytes)
assert (seen.copy_to_host() == numpy.arange(100)).all()
managed = cuda.managed_array(100, dtype=numpy.int32)
managed[:] = 5
assert (managed == 5).all()

# Many arrays that come and go.
generator = numpy.random.default_rng(2)
kept = {}
for turn in range(300):
    slot = int(generator.integers(20))
    if slot in kept:
        array, there = kept.pop(slot)
        assert (there.copy_to_host() == array).all(), turn
    array = generator.integers(0, 255, int(generator.integers(1, 50_000)), dtype=numpy.uint8)
    kept[slot] = (array, cuda.to_device(array))
for array, there in kept.values():
    assert (there.copy_to_host() == array).all()
memory = cuda.current_context().get_memory_info()
assert 0 < memory.free <= memory.total
