/* A driver that is odd where real ones may be: it has the old 32-bit forms under the unsuffixed names, answers look-ups
   with addresses that it does not export, with older forms than asked for, and lacks most of the functions. Built as a
   libcuda.so.1 of its own. Nothing works but what is looked at. */
#include <stddef.h>
#include <string.h>

typedef int CUresult;

/* The first form: 32 bits. */
CUresult cuMemAlloc(unsigned *p, unsigned bytes);
CUresult cuMemAlloc_v2(unsigned long long *p, size_t bytes);
CUresult cuMemAllocAsync(unsigned long long *p, size_t bytes, void *stream);
CUresult cuCtxSynchronize(void);
CUresult cuInit(unsigned flags);
CUresult cuMemAllocation(void);
CUresult cuGetProcAddress_v2(const char *name, void **to, int version, unsigned long long flags, int *status);

CUresult cuInit(unsigned flags) { return flags ? 1 : 0; }
CUresult cuMemAlloc(unsigned *p, unsigned bytes) { return *p = bytes, 0; }
CUresult cuMemAlloc_v2(unsigned long long *p, size_t bytes) { return *p = bytes, 0; }
CUresult cuMemAllocAsync(unsigned long long *p, size_t bytes, void *stream) { return *p = bytes + (stream != 0), 0; }
CUresult cuCtxSynchronize(void) { return 0; }
/* A name that begins as one that is replaced. */
CUresult cuMemAllocation(void) { return 17; }

/* The function behind cuMemFree at version 3020, known by no name. */
static CUresult hidden_free(unsigned long long p) { return p == 42 ? 0 : 1; }
CUresult cuMemFree_v2(unsigned long long p);
CUresult cuMemFree_v2(unsigned long long p) { return hidden_free(p); }

CUresult cuGetProcAddress_v2(const char *name, void **to, int version, unsigned long long flags, int *status)
{
    static const struct {
        const char *name;
        int since;
        void *at;
    } known[] = {
        {"cuMemAlloc", 2000, (void *)cuMemAlloc},
        {"cuMemAlloc", 3020, (void *)cuMemAlloc_v2},
        {"cuMemAllocAsync", 11020, (void *)cuMemAllocAsync}, /* whatever the flags: it has no twin */
        {"cuMemFree", 3020, (void *)hidden_free},
        {"cuCtxSynchronize", 2000, (void *)cuCtxSynchronize}, /* also for 13000, whose form is another */
        {"cuGetProcAddress", 12000, (void *)cuGetProcAddress_v2},
    };
    size_t i;
    void *found = 0;
    (void)flags;
    for (i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name) && known[i].since <= version) found = known[i].at;
    *to = found;
    if (status) *status = found ? 0 : 1;
    return found ? 0 : 500;
}
