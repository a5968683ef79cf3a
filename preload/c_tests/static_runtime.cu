// A program with NVIDIA's runtime inside it. That runtime does not accept a stand-in for its driver: what it answers then,
// and without a driver, must be the same with libsmp_preload.so.
#include <cstdio>
#include <cuda_runtime.h>

int main()
{
    int count = -1, version = -1;
    void *p = nullptr;
    std::printf("count %d\n", int(cudaGetDeviceCount(&count)));
    std::printf("version %d %d\n", int(cudaDriverGetVersion(&version)), version);
    std::printf("malloc %d\n", int(cudaMalloc(&p, 1000)));
    std::printf("async %d\n", int(cudaMallocAsync(&p, 1000, 0)));
    std::printf("free %d\n", int(cudaFree(p)));
    return 0;
}
