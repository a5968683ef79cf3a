/* kernels.cu: what gpu_check launches, compiled to PTX: fills words with a pattern, counts words that are not the
 * pattern, keeps a stream busy. */
#include <cstdint>

extern "C" __global__ void fill(uint32_t *words, uint64_t count, uint32_t pattern)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        words[i] = pattern + (uint32_t)i;
}

extern "C" __global__ void check(const uint32_t *words, uint64_t count, uint32_t pattern, unsigned long long *wrong)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < count; i += (uint64_t)gridDim.x * blockDim.x)
        if (words[i] != pattern + (uint32_t)i)
            atomicAdd(wrong, 1ull);
}

extern "C" __global__ void spin(long long cycles)
{
    long long begin = clock64();
    while (clock64() - begin < cycles)
        ;
}
