"""cuda-core on whatever driver is found: device, stream, event, memory resources, buffer copies, a graph; data checked."""

import numpy
from cuda.core import (
    Buffer,
    Device,
    DeviceMemoryResource,
    DeviceMemoryResourceOptions,
    GraphMemoryResource,
    LegacyPinnedMemoryResource,
    VirtualMemoryResource,
)

device = Device(0)
device.set_current()
print("device", device.name)
stream = device.create_stream()
other = device.create_stream()
pinned = LegacyPinnedMemoryResource()


def host(size):
    """A pinned buffer and the array that lies in it."""
    buffer = pinned.allocate(size)
    return buffer, numpy.from_dlpack(buffer).view(numpy.uint8)


def there_and_back(resource, size, seed):
    """Copies through two device buffers on two streams, the second after the first by an event."""
    source, given = host(size)
    target, got = host(size)
    given[:] = (numpy.arange(size) + seed) % 253
    got[:] = 0
    first = resource.allocate(size, stream=stream)
    second = resource.allocate(size, stream=other)
    source.copy_to(first, stream=stream)
    other.wait(stream.record())
    first.copy_to(second, stream=other)
    second.copy_to(target, stream=other)
    second.close(other)
    first.close(other)
    other.sync()
    assert (got == given).all(), (resource, size)


for seed, size in enumerate((1, 511, 512, 4096, 1_000_003)):
    there_and_back(device.memory_resource, size, seed)
    there_and_back(DeviceMemoryResource(0), size, seed)

own = DeviceMemoryResource(0, options=DeviceMemoryResourceOptions(max_size=1 << 20))
there_and_back(own, 4096, 7)
buffer = own.allocate(12, stream=stream)
assert buffer.size == 12 and buffer.is_device_accessible and not buffer.is_host_accessible
assert own.attributes.used_mem_current == 512
buffer.fill(9, stream=stream)
target, got = host(12)
buffer.copy_to(target, stream=stream)
buffer.close(stream)
stream.sync()
assert (got == 9).all()

# A graph that allocates, fills, copies out and frees, launched twice.
given, seen = host(1000)
builder = device.create_graph_builder().begin_building()
memory = GraphMemoryResource(device)
buffer = memory.allocate(1000, stream=builder)
buffer.fill(77, stream=builder)
buffer.copy_to(given, stream=builder)
buffer.close(builder)
graph = builder.end_building().complete()
for turn in range(2):
    seen[:] = 0
    graph.launch(stream)
    stream.sync()
    assert (seen == 77).all()

# Mapped memory that grows keeps its bytes.
mapped = VirtualMemoryResource(device)
buffer = mapped.allocate(4 << 20)
buffer.fill(5, stream=stream)
stream.sync()
buffer = mapped.modify_allocation(buffer, 8 << 20)
assert buffer.size >= 8 << 20
part = Buffer.from_handle(buffer.handle, 1000)
part.copy_to(given, stream=stream)
stream.sync()
assert (seen == 5).all()

# Not Device.sync(): that is a call of NVIDIA's runtime library, which takes no driver but NVIDIA's.
