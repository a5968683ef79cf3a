// What the stub runtime counted, for the adapters' figures.
#pragma once

#include <cstdint>

namespace stub {

/// Peak of the bytes held and the number of cudaMalloc and cudaFree calls since the process began.
struct Device {
    uint64_t reserved_peak, calls;
};
Device device();

/// Events are not ready while this holds, whatever they follow.
extern bool lazy;

}  // namespace stub
