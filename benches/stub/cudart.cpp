// The few CUDA runtime calls that RMM and CUB make, without a GPU: memory is addresses and a count, every call costs next
// to nothing, and events say what the workload wants of them. Only for the benchmarks.
#include "cudart.hpp"

#include <atomic>
#include <cuda_runtime_api.h>
#include <mutex>
#include <vector>

namespace stub {

bool lazy = false;

namespace {

constexpr uint64_t BASE = uint64_t(1) << 40, SPACING = 2 << 20, TOTAL = uint64_t(1) << 40;

std::mutex lock;
uint64_t next_address = BASE, held = 0, high = 0, calls = 0;
std::vector<uint64_t> sizes;  // of the block at BASE + index * SPACING

}  // namespace

Device device() {
    std::lock_guard<std::mutex> guard(lock);
    return {high, calls};
}

cudaError_t allocate(void **out, uint64_t bytes) {
    std::lock_guard<std::mutex> guard(lock);
    ++calls;
    // As cudaMalloc: blocks start at multiples of 512 bytes; small ones share a page of the driver's, so no more is counted.
    bytes = (bytes + 511) / 512 * 512;
    if (held + bytes > TOTAL) return cudaErrorMemoryAllocation;
    uint64_t index = (next_address - BASE) / SPACING;
    if (sizes.size() <= index) sizes.resize(index * 2 + 1024);
    sizes[index] = bytes;
    *out = reinterpret_cast<void *>(next_address);
    next_address += (bytes + SPACING - 1) / SPACING * SPACING;
    held += bytes;
    if (held > high) high = held;
    return cudaSuccess;
}

cudaError_t release(void *block) {
    if (block == nullptr) return cudaSuccess;
    std::lock_guard<std::mutex> guard(lock);
    ++calls;
    uint64_t &bytes = sizes[(reinterpret_cast<uint64_t>(block) - BASE) / SPACING];
    held -= bytes;
    bytes = 0;
    return cudaSuccess;
}

}  // namespace stub

extern "C" {

cudaError_t cudaMalloc(void **out, size_t bytes) { return stub::allocate(out, bytes); }
cudaError_t cudaFree(void *block) { return stub::release(block); }
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *total = stub::TOTAL;
    *available = stub::TOTAL - stub::held;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) {
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) {
    *value = 0;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t) { return "an error of the stub"; }
const char *cudaGetErrorString(cudaError_t) { return "an error of the stub"; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    static std::atomic<uint64_t> next{0x1000};
    *event = reinterpret_cast<cudaEvent_t>(next.fetch_add(16));
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return stub::lazy ? cudaErrorNotReady : cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = 12060;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version) {
    *version = 12060;
    return cudaSuccess;
}

}  // extern "C"
