// One of the two sources of a program that differ in what null is as a stream: compiled with OTHER and
// CUDA_API_PER_THREAD_DEFAULT_STREAM for the one, without either for the other, and without optimisation, so that the functions of
// smp.hpp are not expanded in place but found by their names. Each must get what it means.
#include <smp.hpp>

#ifdef OTHER
#define STREAM_OF_NULL stream_of_null_per_thread
#else
#define STREAM_OF_NULL stream_of_null
#endif

std::uint64_t stream_of_null(smp_pool pool);
std::uint64_t stream_of_null_per_thread(smp_pool pool);

std::uint64_t STREAM_OF_NULL(smp_pool pool) {
    smp::pool borrowed(pool);
    const std::uint64_t stream = borrowed.allocate(1, nullptr).info().stream_id;
    (void)borrowed.release();
    return stream;
}

#ifndef OTHER
int main() {
    smp_device_desc desc = SMP_DEVICE_DESC_INIT;
    desc.kind = SMP_DEVICE_MODEL;
    smp::device device(desc);
    smp::pool pool(device);
    return stream_of_null(pool.get()) == 0 && stream_of_null_per_thread(pool.get()) != 0 ? 0 : 1; // 0 is the legacy stream
}
#endif
