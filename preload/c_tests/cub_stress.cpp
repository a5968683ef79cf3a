// CUB's caching allocator over the runtime, driven by several threads on several streams; every block is filled in stream
// order and checked before it is given back.
#include <cub/util_allocator.cuh>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t must_ = (call);                                                                                    \
        if (must_ != cudaSuccess) {                                                                                    \
            std::fprintf(stderr, "%s:%d: %s is %d\n", __FILE__, __LINE__, #call, int(must_));                          \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

static void work(cub::CachingDeviceAllocator &allocator, unsigned seed)
{
    struct Block {
        void *at;
        std::size_t bytes;
        unsigned char value;
        cudaStream_t stream;
    };
    std::mt19937 random(seed);
    cudaStream_t streams[3] = {};
    for (auto &stream : streams) MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    std::vector<Block> live;
    std::vector<unsigned char> data;
    for (int round = 0; round < 400; round++) {
        if (live.size() < 12 && random() % 5 < 3) {
            Block block{nullptr, 1 + random() % 100000, static_cast<unsigned char>(random()), streams[random() % 3]};
            MUST(allocator.DeviceAllocate(&block.at, block.bytes, block.stream));
            MUST(cudaMemsetAsync(block.at, block.value, block.bytes, block.stream));
            live.push_back(block);
        } else if (!live.empty()) {
            std::size_t which = random() % live.size();
            Block block = live[which];
            live[which] = live.back();
            live.pop_back();
            data.assign(block.bytes, 0);
            MUST(cudaMemcpyAsync(data.data(), block.at, block.bytes, cudaMemcpyDeviceToHost, block.stream));
            MUST(cudaStreamSynchronize(block.stream));
            for (unsigned char byte : data)
                if (byte != block.value) {
                    std::fprintf(stderr, "%d, not %d\n", byte, block.value);
                    std::exit(1);
                }
            MUST(allocator.DeviceFree(block.at));
        }
    }
    for (Block &block : live) MUST(allocator.DeviceFree(block.at));
    for (auto &stream : streams) MUST(cudaStreamDestroy(stream));
}

int main()
{
    cub::CachingDeviceAllocator allocator(2, 7, 16, 4 << 20);
    std::vector<std::thread> threads;
    for (unsigned n = 0; n < 4; n++) threads.emplace_back([&, n] { work(allocator, n + 1); });
    for (auto &thread : threads) thread.join();
    MUST(allocator.FreeAllCached());
    std::printf("every byte right\n");
    return 0;
}
