/* The driver's functions that these programs call, declared here so that nothing of CUDA is needed, and how a program
 * is made of cases. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/simcuda.h"

typedef struct CUstream_st *stream_t;
typedef void *handle_t;
typedef uint64_t ptr_t;

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, DEINITIALIZED = 4, NO_DEVICE = 100,
    INVALID_DEVICE = 101, INVALID_CONTEXT = 201, FILE_NOT_FOUND = 301, INVALID_HANDLE = 400, ILLEGAL_STATE = 401,
    NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, ALREADY_ENABLED = 704, NOT_ENABLED = 705,
    CONTEXT_IS_DESTROYED = 709, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, LAUNCH_FAILED = 719,
    NOT_PERMITTED = 800, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907, CAPTURE_WRONG_THREAD = 908
};

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
int cuDeviceGetCount(int *count);
int cuDeviceGetName(char *name, int len, int device);
int cuDeviceGetUuid_v2(unsigned char *uuid, int device);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuDeviceCanAccessPeer(int *can, int device, int peer);
int cuDeviceGetPCIBusId(char *id, int len, int device);
int cuDeviceGetByPCIBusId(int *device, const char *id);
int cuDeviceGetDefaultMemPool(handle_t *pool, int device);
int cuDeviceGetMemPool(handle_t *pool, int device);
int cuDeviceSetMemPool(int device, handle_t pool);
int cuDevicePrimaryCtxRetain(handle_t *context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxReset_v2(int device);
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
int cuCtxCreate_v2(handle_t *context, unsigned flags, int device);
int cuCtxCreate_v4(handle_t *context, void *params, unsigned flags, int device);
int cuCtxDestroy_v2(handle_t context);
int cuCtxAttach(handle_t *context, unsigned flags);
int cuCtxDetach(handle_t context);
int cuCtxPushCurrent_v2(handle_t context);
int cuCtxPopCurrent_v2(handle_t *context);
int cuCtxSetCurrent(handle_t context);
int cuCtxGetCurrent(handle_t *context);
int cuCtxGetDevice(int *device);
int cuCtxGetId(handle_t context, unsigned long long *id);
int cuCtxSynchronize(void);
int cuCtxRecordEvent(handle_t context, handle_t event);
int cuCtxWaitEvent(handle_t context, handle_t event);
int cuCtxEnablePeerAccess(handle_t peer, unsigned flags);
int cuCtxDisablePeerAccess(handle_t peer);
int cuStreamCreate(stream_t *stream, unsigned flags);
int cuStreamCreateWithPriority(stream_t *stream, unsigned flags, int priority);
int cuStreamDestroy_v2(stream_t stream);
int cuStreamGetFlags(stream_t stream, unsigned *flags);
int cuStreamGetPriority(stream_t stream, int *priority);
int cuStreamGetCtx(stream_t stream, handle_t *context);
int cuStreamGetId(stream_t stream, unsigned long long *id);
int cuStreamGetId_ptsz(stream_t stream, unsigned long long *id);
int cuStreamGetDevice(stream_t stream, int *device);
int cuStreamSynchronize(stream_t stream);
int cuStreamSynchronize_ptsz(stream_t stream);
int cuStreamQuery(stream_t stream);
int cuStreamQuery_ptsz(stream_t stream);
int cuStreamWaitEvent(stream_t stream, handle_t event, unsigned flags);
int cuLaunchHostFunc(stream_t stream, void (*function)(void *), void *data);
int cuStreamAddCallback(stream_t stream, void (*function)(stream_t, int, void *), void *data, unsigned flags);
int cuStreamBeginCapture_v2(stream_t stream, int mode);
int cuStreamBeginCaptureToGraph(stream_t stream, handle_t graph, const handle_t *needs, const void *edges, size_t count,
                                int mode);
int cuGraphCreate(handle_t *graph, unsigned flags);
int cuUserObjectCreate(handle_t *object, void *data, void (*destroy)(void *), unsigned references, unsigned flags);
int cuUserObjectRelease(handle_t object, unsigned count);
int cuGraphRetainUserObject(handle_t graph, handle_t object, unsigned count, unsigned flags);
int cuGraphReleaseUserObject(handle_t graph, handle_t object, unsigned count);
int cuStreamEndCapture(stream_t stream, handle_t *graph);
int cuStreamIsCapturing(stream_t stream, int *status);
int cuStreamGetCaptureInfo_v2(stream_t stream, int *status, uint64_t *id, handle_t *graph, const handle_t **tips,
                              size_t *count);
int cuThreadExchangeStreamCaptureMode(int *mode);
int cuGraphGetNodes(handle_t graph, handle_t *nodes, size_t *count);
int cuGraphNodeGetType(handle_t node, int *type);
int cuGraphNodeGetDependencies(handle_t node, handle_t *nodes, size_t *count);
int cuGraphInstantiateWithFlags(handle_t *executable, handle_t graph, unsigned long long flags);
int cuGraphLaunch(handle_t executable, stream_t stream);
int cuGraphExecDestroy(handle_t executable);
int cuGraphDestroy(handle_t graph);
int cuEventCreate(handle_t *event, unsigned flags);
int cuEventRecord(handle_t event, stream_t stream);
int cuEventRecordWithFlags(handle_t event, stream_t stream, unsigned flags);
int cuEventQuery(handle_t event);
int cuEventSynchronize(handle_t event);
int cuEventElapsedTime(float *time, handle_t start, handle_t end);
int cuEventDestroy_v2(handle_t event);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
int cuMemAlloc_v2(ptr_t *at, size_t bytes);
int cuMemAllocPitch_v2(ptr_t *at, size_t *pitch, size_t width, size_t rows, unsigned element);
int cuMemAllocManaged(ptr_t *at, size_t bytes, unsigned flags);
int cuMemFree_v2(ptr_t at);
int cuMemGetAddressRange_v2(ptr_t *base, size_t *bytes, ptr_t at);
int cuMemHostAlloc(void **at, size_t bytes, unsigned flags);
int cuMemFreeHost(void *at);
int cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags);
int cuMemHostUnregister(void *at);
int cuMemHostGetDevicePointer_v2(ptr_t *to, void *at, unsigned flags);
int cuMemcpyHtoD_v2(ptr_t to, const void *from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, ptr_t from, size_t bytes);
int cuMemcpyDtoD_v2(ptr_t to, ptr_t from, size_t bytes);
int cuMemcpy(ptr_t to, ptr_t from, size_t bytes);
int cuMemcpyHtoDAsync_v2(ptr_t to, const void *from, size_t bytes, stream_t stream);
int cuMemcpyDtoHAsync_v2(void *to, ptr_t from, size_t bytes, stream_t stream);
int cuMemcpyDtoDAsync_v2(ptr_t to, ptr_t from, size_t bytes, stream_t stream);
int cuMemcpyAsync(ptr_t to, ptr_t from, size_t bytes, stream_t stream);
int cuMemcpyPeer(ptr_t to, handle_t to_context, ptr_t from, handle_t from_context, size_t bytes);
int cuMemcpy2D_v2(const void *what);
int cuMemcpy3D_v2(const void *what);
int cuMemsetD8_v2(ptr_t to, unsigned char value, size_t count);
int cuMemsetD8_v2_ptds(ptr_t to, unsigned char value, size_t count);
int cuMemsetD16_v2(ptr_t to, unsigned short value, size_t count);
int cuMemsetD32_v2(ptr_t to, unsigned value, size_t count);
int cuMemsetD8Async(ptr_t to, unsigned char value, size_t count, stream_t stream);
int cuMemsetD8Async_ptsz(ptr_t to, unsigned char value, size_t count, stream_t stream);
int cuMemsetD2D32_v2(ptr_t to, size_t pitch, unsigned value, size_t width, size_t rows);
int cuMemAllocAsync(ptr_t *at, size_t bytes, stream_t stream);
int cuMemAllocAsync_ptsz(ptr_t *at, size_t bytes, stream_t stream);
int cuMemAllocFromPoolAsync(ptr_t *at, size_t bytes, handle_t pool, stream_t stream);
int cuMemFreeAsync(ptr_t at, stream_t stream);
int cuMemPoolCreate(handle_t *pool, const void *props);
int cuMemPoolDestroy(handle_t pool);
int cuMemPoolTrimTo(handle_t pool, size_t keep);
int cuMemPoolGetAttribute(handle_t pool, int which, void *value);
int cuMemPoolSetAttribute(handle_t pool, int which, void *value);
int cuMemPoolSetAccess(handle_t pool, const void *map, size_t count);
int cuMemPoolGetAccess(int *flags, handle_t pool, const void *location);
int cuPointerGetAttribute(void *value, int which, ptr_t at);
int cuPointerGetAttributes(unsigned count, const int *which, void **values, ptr_t at);
int cuMemGetAllocationGranularity(size_t *bytes, const void *props, int option);
int cuMemAddressReserve(ptr_t *at, size_t bytes, size_t align, ptr_t wish, unsigned long long flags);
int cuMemAddressFree(ptr_t at, size_t bytes);
int cuMemCreate(unsigned long long *handle, size_t bytes, const void *props, unsigned long long flags);
int cuMemRelease(unsigned long long handle);
int cuMemMap(ptr_t at, size_t bytes, size_t offset, unsigned long long handle, unsigned long long flags);
int cuMemUnmap(ptr_t at, size_t bytes);
int cuMemSetAccess(ptr_t at, size_t bytes, const void *descriptions, size_t count);
int cuMemGetAccess(unsigned long long *flags, const void *location, ptr_t at);
int cuMemRetainAllocationHandle(unsigned long long *handle, void *at);
int cuMemGetAllocationPropertiesFromHandle(void *props, unsigned long long handle);
int cuModuleLoadData(handle_t *module, const void *image);
int cuModuleLoad(handle_t *module, const char *path);
int cuModuleGetFunction(handle_t *function, handle_t module, const char *name);
int cuModuleUnload(handle_t module);
int cuLibraryLoadData(handle_t *library, const void *code, void *jit, void *jit_values, unsigned jits, void *options,
                      void *values, unsigned count);
int cuLibraryGetKernel(handle_t *kernel, handle_t library, const char *name);
int cuKernelGetFunction(handle_t *function, handle_t kernel);
int cuLaunchKernel(handle_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, stream_t stream, void **params, void **extra);
int cuLaunchKernelEx(const void *config, handle_t function, void **params, void **extra);
int cuArrayCreate_v2(handle_t *array, const void *description);

#define LEGACY ((stream_t)(uintptr_t)1)
#define PER_THREAD ((stream_t)(uintptr_t)2)

#define CHECK(call, want) \
    do { \
        long long got_ = (long long)(call), want_ = (long long)(want); \
        if (got_ != want_) { \
            printf("%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #call, got_, want_); \
            exit(1); \
        } \
    } while (0)

/* Initialises, and makes device 0's primary context current. */
static handle_t start(void)
{
    handle_t context;
    CHECK(cuInit(0), OK);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0), OK);
    CHECK(cuCtxSetCurrent(context), OK);
    return context;
}

/* The byte at a device address. */
static int byte_at(ptr_t at)
{
    unsigned char byte = 0;
    CHECK(cuMemcpyDtoH_v2(&byte, at, 1), OK);
    return byte;
}

struct test_case {
    const char *name;
    void (*run)(void);
};

#define CASE(name) {#name, name}

/* Without arguments lists the cases; else runs the one named. */
static int run_cases(const struct test_case *cases, size_t count, int argc, char **argv)
{
    size_t at;
    /* Keeps a program that needs neither from a warning. */
    (void)start;
    (void)byte_at;
    for (at = 0; at < count; at++) {
        if (argc < 2) {
            puts(cases[at].name);
        } else if (strcmp(cases[at].name, argv[1]) == 0) {
            cases[at].run();
            puts("ok");
            return 0;
        }
    }
    return argc < 2 ? 0 : 2;
}

#define MAIN(cases) \
    int main(int argc, char **argv) { return run_cases(cases, sizeof(cases) / sizeof *(cases), argc, argv); }

#endif
