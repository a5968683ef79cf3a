/* A C program on the stand-in driver: prototypes are the public header's, declared here so that no CUDA is needed. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

extern int cuInit(unsigned);
extern int cuDeviceGetName(char *, int, int);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuStreamCreate(void **, unsigned);
extern int cuStreamSynchronize(void *);
extern int cuStreamQuery(void *);
extern int cuEventQuery(void *);
extern int cuMemAlloc_v2(uint64_t *, size_t);
extern int cuMemFree_v2(uint64_t);
extern int cuMemAllocAsync(uint64_t *, size_t, void *);
extern int cuMemFreeAsync(uint64_t, void *);
extern int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
extern int cuMemcpyDtoH_v2(void *, uint64_t, size_t);
extern int cuMemcpyHtoD_v2(uint64_t, const void *, size_t);
extern int cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
extern int simcuda_gate_close(void *);
extern int simcuda_gate_open(void *);

#define CHECK(call, want) \
    do { \
        int got_ = (call); \
        if (got_ != (want)) { \
            printf("line %d: %s answered %d, not %d\n", __LINE__, #call, got_, (int)(want)); \
            return 1; \
        } \
    } while (0)

int main(void)
{
    char name[64];
    unsigned char bytes[600], back[600];
    void *context, *stream, *function, *twin;
    uint64_t a, b;
    int status;
    size_t i;

    CHECK(cuMemAlloc_v2(&a, 1), 3);
    CHECK(cuInit(1), 1);
    CHECK(cuInit(0), 0);
    CHECK(cuDeviceGetName(name, sizeof name, 0), 0);
    CHECK(strcmp(name, "libsmp stand-in device (no GPU)"), 0);
    CHECK(cuDeviceGetName(name, sizeof name, 1), 101);
    CHECK(cuMemAlloc_v2(&a, 1), 201);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0), 0);
    CHECK(cuCtxSetCurrent(context), 0);
    CHECK(cuMemAlloc_v2(&a, 0), 1);
    CHECK(cuMemAlloc_v2(NULL, 1), 1);
    /* The planned failure: SIMCUDA_FAIL=cuMemFree_v2:2:999. */
    CHECK(cuMemAlloc_v2(&a, 600), 0);
    CHECK(cuMemFree_v2(a + 1), 1);
    CHECK(cuMemFree_v2(a), 999);
    for (i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 7);
    CHECK(cuMemcpyHtoD_v2(a, bytes, sizeof bytes), 0);
    CHECK(cuMemcpyDtoH_v2(back, a, sizeof back), 0);
    CHECK(memcmp(bytes, back, sizeof back), 0);
    CHECK(cuMemFree_v2(a), 0);
    CHECK(cuMemcpyDtoH_v2(back, a, 1), 1);

    CHECK(cuStreamCreate(&stream, 1), 0);
    CHECK(cuStreamQuery((void *)(uintptr_t)0x1234), 400);
    CHECK(cuEventQuery(NULL), 400);
    CHECK(simcuda_gate_close(stream), 0);
    CHECK(cuMemAllocAsync(&b, 600, stream), 0);
    CHECK(cuMemsetD8Async(b, 9, 600, stream), 0);
    CHECK(cuStreamQuery(stream), 600);
    CHECK(simcuda_gate_open(stream), 0);
    CHECK(cuStreamSynchronize(stream), 0);
    CHECK(cuStreamQuery(stream), 0);
    CHECK(cuMemcpyDtoH_v2(back, b, 600), 0);
    CHECK(back[0] == 9 && back[599] == 9, 1);
    CHECK(cuMemFreeAsync(b, stream), 0);
    CHECK(cuMemFreeAsync(b, stream), 1);

    CHECK(cuGetProcAddress_v2("cuMemAllocAsync", &function, 12000, 0, &status), 0);
    CHECK(cuGetProcAddress_v2("cuMemAllocAsync", &twin, 12000, 2, &status), 0);
    CHECK(function != twin, 1);
    CHECK(cuGetProcAddress_v2("cuMemAllocAsync", &function, 11000, 0, &status), 500);
    CHECK(status, 2);
    /* SIMCUDA_MISSING=cuMemcpy. */
    CHECK(cuGetProcAddress_v2("cuMemcpy", &function, 12000, 0, &status), 500);
    CHECK(status, 1);
    puts("ok");
    return 0;
}
