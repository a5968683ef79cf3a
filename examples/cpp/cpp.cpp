// libsmp from C++17: owners that give their handles back by themselves, errors as exceptions, and the memory resource
// whose allocate and deallocate have the shape that CCCL and RMM users know.
//
// A pipeline of two streams: `copy` fills a batch, `compute` reads it. Each batch's memory is freed on `compute`, so the
// next batch on `copy` may have it only after an event; the pool sees to that and tells how it reused.
#include <smp.hpp>

#include <cstddef>
#include <cstring>
#include <iostream>
#include <numeric>

namespace {

constexpr std::size_t batch_bytes = 256 * 1024;

// A library that takes any resource of that shape and knows nothing of pools.
template <class Resource>
unsigned long sum_through_scratch(Resource &resource, const unsigned char *bytes, smp_stream stream) {
    void *scratch = resource.allocate(batch_bytes, alignof(std::max_align_t), stream);
    std::memcpy(scratch, bytes, batch_bytes);
    const auto *copy = static_cast<const unsigned char *>(scratch);
    const unsigned long sum = std::accumulate(copy, copy + batch_bytes, 0ul);
    resource.deallocate(scratch, batch_bytes, alignof(std::max_align_t), stream);
    return sum;
}

int run() {
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    desc.kind = SMP_DEVICE_MODEL;
    desc.flags = SMP_DEVICE_HOST_BACKING; // blocks are ordinary memory: no GPU needed
    smp::device device(desc);
    smp::pool pool(device, "sliced(page_size=2MiB, max_pool_size=8MiB); exclusive()");
    smp::stream copy(device), compute(device);
    smp::event filled(device), consumed(device);
    smp::memory_resource resource(device, pool);

    for (int batch = 0; batch < 8; ++batch) {
        smp::allocation input = pool.allocate(batch_bytes, copy);
        std::memset(input.data(), batch, batch_bytes);
        filled.record(copy);

        compute.wait(filled);
        if (!input.is_ready_on(compute)) {
            std::cerr << "batch " << batch << " is not ordered before its use\n";
            return 1;
        }
        const auto *bytes = static_cast<const unsigned char *>(input.data());
        const unsigned long sum = sum_through_scratch(resource, bytes, compute);
        if (sum != static_cast<unsigned long>(batch) * batch_bytes) {
            std::cerr << "batch " << batch << ": the sum is " << sum << "\n";
            return 1;
        }
        input.free(compute); // where it was used last; left alone it would free itself on `copy`
        consumed.record(compute);
        copy.wait(consumed);
    }

    // What cannot be served throws, with the status and the text.
    smp_pool_config capped = SMP_POOL_CONFIG_INIT;
    const smp_pool_entry entry = SMP_ENTRY_SLICED_INIT(2u << 20, SMP_NONE, 2u << 20);
    capped.entries = &entry;
    capped.entry_count = 1;
    smp::pool small(device, capped);
    try {
        const smp::buffer first(smp::memory_resource(device, small), 2u << 20, copy);
        const smp::buffer second(smp::memory_resource(device, small), 2u << 20, copy);
        std::cerr << "a pool of one page served two\n";
        return 1;
    } catch (const smp::error &error) {
        if (error.status() != SMP_ERROR_CAPACITY_EXCEEDED) {
            throw;
        }
        std::cout << "as expected: " << error.what() << "\n";
    }

    std::cout << pool.report();
    return 0;
}

} // namespace

int main() {
    try {
        return run();
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
