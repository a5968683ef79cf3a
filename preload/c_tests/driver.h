/* How the programs in this folder reach the driver, by NVIDIA's own header and never by ours. LINK says how: */
#ifndef DRIVER_H
#define DRIVER_H
#define LINKED 1 /* linked to libcuda.so.1 */
#define DLSYM 2  /* dlopen, and dlsym of the header's names */
#define LOOKUP 3 /* cuGetProcAddress, found as the CUDA runtime finds it */

#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every function that a program here uses. */
#define FUNCTIONS(F)                                                                                                   \
    F(cuInit) F(cuDeviceGet) F(cuDeviceGetCount) F(cuDevicePrimaryCtxRetain) F(cuDevicePrimaryCtxRelease)              \
    F(cuCtxSetCurrent) F(cuCtxGetCurrent) F(cuCtxSynchronize)                               \
    F(cuStreamCreate) F(cuStreamDestroy) F(cuStreamSynchronize) F(cuStreamQuery) F(cuStreamWaitEvent)                  \
    F(cuEventCreate) F(cuEventRecord) F(cuEventSynchronize) F(cuEventDestroy) F(cuLaunchHostFunc)                      \
    F(cuMemAlloc) F(cuMemFree) F(cuMemGetInfo) F(cuMemGetAddressRange) F(cuPointerGetAttribute)                        \
    F(cuMemAllocAsync) F(cuMemFreeAsync) F(cuMemAllocFromPoolAsync) F(cuDeviceGetDefaultMemPool)                       \
    F(cuDeviceGetMemPool) F(cuMemPoolCreate) F(cuMemPoolDestroy) F(cuMemPoolTrimTo)                                    \
    F(cuMemPoolGetAttribute) F(cuMemPoolSetAttribute) F(cuDeviceSetMemPool) F(cuMemPoolSetAccess) F(cuMemSetMemPool)   \
    F(cuMemAllocHost) F(cuMemHostAlloc) F(cuMemFreeHost)                                                               \
    F(cuMemcpyHtoD) F(cuMemcpyDtoH) F(cuMemcpyHtoDAsync) F(cuMemcpyDtoHAsync) F(cuMemcpyDtoDAsync)                     \
    F(cuMemsetD8) F(cuMemsetD8Async) F(cuMemsetD32Async)                                                               \
    F(cuCtxCreate) F(cuCtxDestroy) F(cuDevicePrimaryCtxReset) F(cuDriverGetVersion) F(cuMemAllocPitch)                 \
    F(cuPointerGetAttributes) F(cuIpcGetMemHandle) F(cuStreamBeginCapture) F(cuStreamEndCapture)                       \
    F(cuGraphInstantiate) F(cuGraphLaunch) F(cuGraphExecDestroy) F(cuGraphDestroy) F(cuStreamIsCapturing)              \
    F(cuThreadExchangeStreamCaptureMode) F(cuMemAllocManaged)                                                          \
    F(cuMemRetainAllocationHandle) F(cuMemGetAccess) F(cuMemSetAccess) F(cuMemUnmap)

#define NAME_(x) #x
#define NAME(x) NAME_(x) /* of the symbol that the header means: cuMemAlloc is cuMemAlloc_v2 */

/* The functions, as members named for the header's macros' results would be unreadable: the table is by position. */
#define ENUM(f) AT_##f,
enum at { FUNCTIONS(ENUM) AT_END };
static void *driver_table[AT_END];

/* A data pointer as the function it is: POSIX allows what ISO C does not say. */
#define CALL(f) (*(__typeof__(&f) *)(void *)&driver_table[AT_##f])

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        CUresult must_ = (call);                                                                                       \
        if (must_ != CUDA_SUCCESS) {                                                                                   \
            fprintf(stderr, "%s:%d: %s is %d\n", __FILE__, __LINE__, #call, (int)must_);                               \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define CHECK(truth)                                                                                                   \
    do {                                                                                                               \
        if (!(truth)) {                                                                                                \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #truth);                                        \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Finds every function; one that the driver lacks stays null. */
static inline void driver_load(void)
{
#if LINK == LINKED
#define FIND(f)                                                                                                        \
    {                                                                                                                  \
        __typeof__(&f) p = f;                                                                                          \
        memcpy(&driver_table[AT_##f], &p, sizeof p);                                                                   \
    }
    FUNCTIONS(FIND)
#else
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#if LINK == DLSYM
#define FIND(f) driver_table[AT_##f] = dlsym(library, NAME(f));
    FUNCTIONS(FIND)
#else
    typedef CUresult (*lookup_fn)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);
    CUdriverProcAddressQueryResult status;
    void *found = dlsym(library, "cuGetProcAddress_v2");
    lookup_fn lookup;
    cuuint64_t flags = 0;
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
    flags = 2;
#endif
    CHECK(found);
    memcpy(&lookup, &found, sizeof lookup);
    MUST(lookup("cuGetProcAddress", &found, 12000, 0, &status));
    memcpy(&lookup, &found, sizeof lookup);
#define FIND(f)                                                                                                        \
    if (lookup(#f, &driver_table[AT_##f], 12000, flags, &status) != CUDA_SUCCESS) driver_table[AT_##f] = 0;
    FUNCTIONS(FIND)
#endif
#endif
}

/* The driver, initialised, with the first device's primary context current. */
static inline CUcontext driver_begin(void)
{
    CUdevice device;
    CUcontext context;
    driver_load();
    MUST(CALL(cuInit)(0));
    MUST(CALL(cuDeviceGet)(&device, 0));
    MUST(CALL(cuDevicePrimaryCtxRetain)(&context, device));
    MUST(CALL(cuCtxSetCurrent)(context));
    return context;
}
#endif
