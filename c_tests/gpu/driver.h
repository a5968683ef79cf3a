/* driver.h: the few functions of the CUDA driver interface that gpu_check calls itself, found at run time in the library
 * that SMP_CUDA_LIBRARY names, else libcuda.so.1; so that the program builds without cuda.h. Our own declarations. */
#ifndef SMP_GPU_DRIVER_H
#define SMP_GPU_DRIVER_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle;
typedef uint64_t device_ptr;

/* CUmemPoolProps. */
struct pool_props {
    int alloc_type, handle_types, location_type, location_id;
    void *security;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
};

static struct {
    int (*init)(unsigned);
    int (*version)(int *);
    int (*device_get)(int *, int);
    int (*device_name)(char *, int, int);
    int (*retain)(handle *, int);
    int (*set_current)(handle);
    int (*stream_create)(handle *, unsigned);
    int (*stream_sync)(handle);
    int (*query)(handle);
    int (*wait_event)(handle, handle, unsigned);
    int (*event_create)(handle *, unsigned);
    int (*event_record)(handle, handle);
    int (*host_func)(handle, void (*)(void *), void *);
    int (*pool_create)(handle *, const struct pool_props *);
    int (*pool_destroy)(handle);
    int (*pool_get)(handle, int, void *);
    int (*pool_set)(handle, int, void *);
    int (*pool_trim)(handle, size_t);
    int (*pool_alloc)(device_ptr *, size_t, handle, handle);
    int (*free_async)(device_ptr, handle);
    int (*alloc)(device_ptr *, size_t);
    int (*free)(device_ptr);
    int (*default_pool)(handle *, int);
    int (*current_pool)(handle *, int);
    int (*make_current)(int, handle);
    int (*pointer_attribute)(void *, int, device_ptr);
    int (*set32)(device_ptr, unsigned, size_t, handle);
    int (*read)(void *, device_ptr, size_t, handle);
    int (*module_load)(handle *, const void *);
    int (*module_function)(handle *, handle, const char *);
    int (*launch)(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle, void **,
                  void **);
    int stand_in; /* kernels do not run there */
} cu;

static inline void find(void *library, const char *name, void *to)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "the driver library has no %s\n", name);
        exit(2);
    }
    memcpy(to, &found, sizeof found);
}

static inline void load_driver(void)
{
    const char *path = getenv("SMP_CUDA_LIBRARY");
    void *library = dlopen(path && *path ? path : "libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "no CUDA driver library: %s\n", dlerror());
        exit(2);
    }
    find(library, "cuInit", &cu.init);
    find(library, "cuDriverGetVersion", &cu.version);
    find(library, "cuDeviceGet", &cu.device_get);
    find(library, "cuDeviceGetName", &cu.device_name);
    find(library, "cuDevicePrimaryCtxRetain", &cu.retain);
    find(library, "cuCtxSetCurrent", &cu.set_current);
    find(library, "cuStreamCreate", &cu.stream_create);
    find(library, "cuStreamSynchronize", &cu.stream_sync);
    find(library, "cuStreamQuery", &cu.query);
    find(library, "cuStreamWaitEvent", &cu.wait_event);
    find(library, "cuEventCreate", &cu.event_create);
    find(library, "cuEventRecord", &cu.event_record);
    find(library, "cuLaunchHostFunc", &cu.host_func);
    find(library, "cuMemPoolCreate", &cu.pool_create);
    find(library, "cuMemPoolDestroy", &cu.pool_destroy);
    find(library, "cuMemPoolGetAttribute", &cu.pool_get);
    find(library, "cuMemPoolSetAttribute", &cu.pool_set);
    find(library, "cuMemPoolTrimTo", &cu.pool_trim);
    find(library, "cuMemAllocFromPoolAsync", &cu.pool_alloc);
    find(library, "cuMemFreeAsync", &cu.free_async);
    find(library, "cuMemAlloc_v2", &cu.alloc);
    find(library, "cuMemFree_v2", &cu.free);
    find(library, "cuDeviceGetDefaultMemPool", &cu.default_pool);
    find(library, "cuDeviceGetMemPool", &cu.current_pool);
    find(library, "cuDeviceSetMemPool", &cu.make_current);
    find(library, "cuPointerGetAttribute", &cu.pointer_attribute);
    find(library, "cuMemsetD32Async", &cu.set32);
    find(library, "cuMemcpyDtoHAsync_v2", &cu.read);
    find(library, "cuModuleLoadData", &cu.module_load);
    find(library, "cuModuleGetFunction", &cu.module_function);
    find(library, "cuLaunchKernel", &cu.launch);
    cu.stand_in = dlsym(library, "simcuda_launches") != NULL;
}

#endif
