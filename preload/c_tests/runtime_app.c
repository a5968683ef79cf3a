/* A program of the CUDA runtime that relies on what cudaFree has always done: it waits for the device. Work on several
   streams writes into blocks that are freed at once after it was given, without a synchronise of the program's own; other
   blocks take their place and are written on other streams. Every byte is checked in the end.
   runtime_app ROUNDS SEED */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        cudaError_t must_ = (call);                                                                                    \
        if (must_) {                                                                                                   \
            fprintf(stderr, "%s:%d: %s is %d\n", __FILE__, __LINE__, #call, (int)must_);                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { SLOTS = 12, STREAMS = 4, LARGEST = 40000 };
static struct {
    unsigned char *block, value;
    size_t bytes;
    int ordered; /* by cudaMallocAsync */
    cudaStream_t stream;
} slots[SLOTS];
static cudaStream_t streams[STREAMS];
static unsigned long long state;

static unsigned next(unsigned below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % below;
}

static void verify(int i)
{
    static unsigned char data[LARGEST];
    size_t j;
    /* On the stream that wrote, so that it is ordered. */
    MUST(cudaMemcpyAsync(data, slots[i].block, slots[i].bytes, cudaMemcpyDeviceToHost, slots[i].stream));
    MUST(cudaStreamSynchronize(slots[i].stream));
    for (j = 0; j < slots[i].bytes; j++)
        if (data[j] != slots[i].value) {
            fprintf(stderr, "slot %d, byte %zu of %zu: %d, not %d\n", i, j, slots[i].bytes, data[j], slots[i].value);
            exit(1);
        }
}

static void give(int i)
{
    if (!slots[i].block) return;
    if (slots[i].ordered)
        MUST(cudaFreeAsync(slots[i].block, slots[i].stream));
    else
        MUST(cudaFree(slots[i].block));
    slots[i].block = 0;
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 200, i, round;
    int ordered = !getenv("ONLY_PLAIN");
    state = argc > 2 ? (unsigned long long)atoll(argv[2]) : 1;
    streams[0] = 0;
    MUST(cudaStreamCreate(&streams[1]));
    MUST(cudaStreamCreateWithFlags(&streams[2], cudaStreamNonBlocking));
    MUST(cudaStreamCreateWithFlags(&streams[3], cudaStreamNonBlocking));
    for (round = 0; round < rounds; round++) {
        i = (int)next(SLOTS);
        if (slots[i].block && next(3) == 0) verify(i);
        give(i);
        slots[i].stream = streams[next(STREAMS)];
        slots[i].bytes = 1 + next(LARGEST);
        slots[i].value = (unsigned char)(1 + next(255));
        slots[i].ordered = ordered && next(3) == 0;
        if (slots[i].ordered)
            MUST(cudaMallocAsync((void **)&slots[i].block, slots[i].bytes, slots[i].stream));
        else
            MUST(cudaMalloc((void **)&slots[i].block, slots[i].bytes));
        MUST(cudaMemsetAsync(slots[i].block, slots[i].value, slots[i].bytes, slots[i].stream));
    }
    for (i = 0; i < SLOTS; i++)
        if (slots[i].block) verify(i);
    for (i = 0; i < SLOTS; i++) give(i);
    MUST(cudaDeviceSynchronize());
    printf("every byte right\n");
    return 0;
}
