/* A double of the CUDA runtime, as far as the programs here use it: each call goes to the driver's function that the real
   runtime calls, found as the real runtime finds it. NVIDIA's runtime does not accept a stand-in for its driver; this one
   does. Both forms of the default stream, by the names that NVIDIA's header gives them. */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* name, version, whether it has a form for per-thread default streams */
#define FUNCTIONS(F)                                                                                                   \
    F(cuInit, 2000, 0) F(cuDeviceGet, 2000, 0) F(cuDeviceGetCount, 2000, 0) F(cuDevicePrimaryCtxRetain, 7000, 0)       \
    F(cuCtxSetCurrent, 4000, 0) F(cuCtxGetCurrent, 4000, 0) F(cuCtxGetDevice, 2000, 0) F(cuCtxSynchronize, 2000, 0)    \
    F(cuMemAlloc, 3020, 0) F(cuMemFree, 3020, 0) F(cuMemGetInfo, 3020, 0) F(cuMemAllocHost, 3020, 0)                   \
    F(cuMemFreeHost, 2000, 0) F(cuMemAllocAsync, 11020, 1) F(cuMemFreeAsync, 11020, 1) F(cuMemcpy, 4000, 1)            \
    F(cuMemcpyAsync, 4000, 1) F(cuMemsetD8, 3020, 1) F(cuMemsetD8Async, 3020, 1) F(cuStreamCreate, 2000, 0)            \
    F(cuStreamDestroy, 4000, 0) F(cuStreamSynchronize, 2000, 1) F(cuStreamQuery, 2000, 1)                              \
    F(cuStreamWaitEvent, 3020, 1) F(cuEventCreate, 2000, 0) F(cuEventRecord, 2000, 1) F(cuEventQuery, 2000, 0)         \
    F(cuEventSynchronize, 2000, 0) F(cuEventDestroy, 4000, 0) F(cuLaunchHostFunc, 10000, 1)

#define ENUM(f, version, twin) AT_##f,
enum { FUNCTIONS(ENUM) AT_END };
static void *table[2][AT_END];
static CUcontext contexts[16];
static int devices;
static CUresult state = CUDA_ERROR_NOT_INITIALIZED;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread cudaError_t last;
static __thread int chosen;
#define DRIVER(form, f) (*(__typeof__(&f) *)(void *)&table[form][AT_##f])

static void load(void)
{
    typedef CUresult (*lookup_fn)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found;
    CUdriverProcAddressQueryResult status;
    lookup_fn lookup;
    int i;
    if (!library || !(found = dlsym(library, "cuGetProcAddress_v2"))) return;
    memcpy(&lookup, &found, sizeof lookup);
    if (lookup("cuGetProcAddress", &found, 12000, 0, &status)) return;
    memcpy(&lookup, &found, sizeof lookup);
#define FIND(f, version, twin)                                                                                         \
    if (lookup(#f, &table[0][AT_##f], version, 0, &status)) return;                                                    \
    table[1][AT_##f] = table[0][AT_##f];                                                                               \
    if (twin && lookup(#f, &table[1][AT_##f], version < 7000 ? 7000 : version, 2, &status)) return;
    FUNCTIONS(FIND)
    if ((state = DRIVER(0, cuInit)(0)) || (state = DRIVER(0, cuDeviceGetCount)(&devices))) return;
    if (devices > 16) devices = 16;
    for (i = 0; i < devices && !state; i++) state = DRIVER(0, cuDevicePrimaryCtxRetain)(&contexts[i], i);
}

static cudaError_t answer(CUresult code)
{
    /* The codes used here are the same numbers on both sides. */
    cudaError_t error = (cudaError_t)code;
    if (error && error != cudaErrorNotReady) last = error;
    return error;
}

static CUresult begin(void)
{
    CUcontext now;
    pthread_once(&once, load);
    if (state) return state;
    if (DRIVER(0, cuCtxGetCurrent)(&now) || now != contexts[chosen]) return DRIVER(0, cuCtxSetCurrent)(contexts[chosen]);
    return CUDA_SUCCESS;
}

#define TO(form, f, ...)                                                                                               \
    do {                                                                                                               \
        CUresult begun = begin();                                                                                      \
        return answer(begun ? begun : (*(__typeof__(&f) *)(void *)&table[form][AT_##f])(__VA_ARGS__));                 \
    } while (0)
#define AT(p) ((CUdeviceptr)(p))

cudaError_t cudaGetDeviceCount(int *count)
{
    CUresult code = begin();
    *count = devices;
    return answer(code);
}
cudaError_t cudaGetDevice(int *device)
{
    CUresult code = begin();
    *device = chosen;
    return answer(code);
}
cudaError_t cudaSetDevice(int device)
{
    CUresult code = begin();
    if (code) return answer(code);
    if (device < 0 || device >= devices) return answer(CUDA_ERROR_INVALID_DEVICE);
    chosen = device;
    return answer(begin());
}
cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(cudaError_t error) { return error ? "an error" : "no error"; }
const char *cudaGetErrorName(cudaError_t error) { return error ? "error" : "success"; }
cudaError_t cudaDeviceSynchronize(void) { TO(0, cuCtxSynchronize, ); }
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    /* As the runtime: nothing for nothing. */
    if (p && !bytes) return *p = 0, cudaSuccess;
    TO(0, cuMemAlloc, (CUdeviceptr *)p, bytes);
}
cudaError_t cudaFree(void *p) { TO(0, cuMemFree, AT(p)); }
cudaError_t cudaMemGetInfo(size_t *available, size_t *total) { TO(0, cuMemGetInfo, available, total); }
cudaError_t cudaMallocHost(void **p, size_t bytes) { TO(0, cuMemAllocHost, p, bytes); }
cudaError_t cudaFreeHost(void *p) { TO(0, cuMemFreeHost, p); }
cudaError_t cudaStreamCreate(cudaStream_t *stream) { TO(0, cuStreamCreate, stream, CU_STREAM_DEFAULT); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { TO(0, cuStreamCreate, stream, flags); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { TO(0, cuStreamDestroy, stream); }
cudaError_t cudaEventCreate(cudaEvent_t *event) { TO(0, cuEventCreate, event, 0); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { TO(0, cuEventCreate, event, flags); }
cudaError_t cudaEventQuery(cudaEvent_t event) { TO(0, cuEventQuery, event); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { TO(0, cuEventSynchronize, event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { TO(0, cuEventDestroy, event); }

/* The calls with a default stream, once for each of its meanings. */
#define BOTH(form, stream_suffix, sync_suffix)                                                                         \
    cudaError_t cudaMallocAsync##stream_suffix(void **p, size_t bytes, cudaStream_t stream);                           \
    cudaError_t cudaMallocAsync##stream_suffix(void **p, size_t bytes, cudaStream_t stream)                            \
    {                                                                                                                  \
        TO(form, cuMemAllocAsync, (CUdeviceptr *)p, bytes, stream);                                                    \
    }                                                                                                                  \
    cudaError_t cudaFreeAsync##stream_suffix(void *p, cudaStream_t stream);                                            \
    cudaError_t cudaFreeAsync##stream_suffix(void *p, cudaStream_t stream) { TO(form, cuMemFreeAsync, AT(p), stream); }\
    cudaError_t cudaMemcpyAsync##stream_suffix(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,     \
                                               cudaStream_t stream);                                                   \
    cudaError_t cudaMemcpyAsync##stream_suffix(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,     \
                                               cudaStream_t stream)                                                    \
    {                                                                                                                  \
        (void)kind;                                                                                                    \
        TO(form, cuMemcpyAsync, AT(to), AT(from), bytes, stream);                                                      \
    }                                                                                                                  \
    cudaError_t cudaMemsetAsync##stream_suffix(void *p, int value, size_t bytes, cudaStream_t stream);                 \
    cudaError_t cudaMemsetAsync##stream_suffix(void *p, int value, size_t bytes, cudaStream_t stream)                  \
    {                                                                                                                  \
        TO(form, cuMemsetD8Async, AT(p), (unsigned char)value, bytes, stream);                                         \
    }                                                                                                                  \
    cudaError_t cudaMemcpy##sync_suffix(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);           \
    cudaError_t cudaMemcpy##sync_suffix(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)            \
    {                                                                                                                  \
        (void)kind;                                                                                                    \
        TO(form, cuMemcpy, AT(to), AT(from), bytes);                                                                   \
    }                                                                                                                  \
    cudaError_t cudaMemset##sync_suffix(void *p, int value, size_t bytes);                                             \
    cudaError_t cudaMemset##sync_suffix(void *p, int value, size_t bytes)                                              \
    {                                                                                                                  \
        TO(form, cuMemsetD8, AT(p), (unsigned char)value, bytes);                                                      \
    }                                                                                                                  \
    cudaError_t cudaStreamSynchronize##stream_suffix(cudaStream_t stream);                                             \
    cudaError_t cudaStreamSynchronize##stream_suffix(cudaStream_t stream) { TO(form, cuStreamSynchronize, stream); }   \
    cudaError_t cudaStreamQuery##stream_suffix(cudaStream_t stream);                                                   \
    cudaError_t cudaStreamQuery##stream_suffix(cudaStream_t stream) { TO(form, cuStreamQuery, stream); }               \
    cudaError_t cudaStreamWaitEvent##stream_suffix(cudaStream_t stream, cudaEvent_t event, unsigned flags);            \
    cudaError_t cudaStreamWaitEvent##stream_suffix(cudaStream_t stream, cudaEvent_t event, unsigned flags)             \
    {                                                                                                                  \
        TO(form, cuStreamWaitEvent, stream, event, flags);                                                             \
    }                                                                                                                  \
    cudaError_t cudaEventRecord##stream_suffix(cudaEvent_t event, cudaStream_t stream);                                \
    cudaError_t cudaEventRecord##stream_suffix(cudaEvent_t event, cudaStream_t stream)                                 \
    {                                                                                                                  \
        TO(form, cuEventRecord, event, stream);                                                                        \
    }
BOTH(0, , )
BOTH(1, _ptsz, _ptds)
