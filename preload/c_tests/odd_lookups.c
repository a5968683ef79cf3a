/* Asks the odd driver, and libraries that are no driver, and prints who answers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *whose(void *p)
{
    static char text[500];
    Dl_info info;
    const char *file;
    if (!p) return "null";
    if (!dladdr(p, &info) || !info.dli_fname) return "nowhere";
    file = strrchr(info.dli_fname, '/');
    snprintf(text, sizeof text, "%s:%s", file ? file + 1 : info.dli_fname, info.dli_saddr == p ? info.dli_sname : "?");
    return text;
}

int main(int argc, char **argv)
{
    typedef int (*lookup_fn)(const char *, void **, int, unsigned long long, int *);
    static const struct {
        const char *name;
        int version;
        unsigned long long flags;
    } asked[] = {{"cuMemAlloc", 2000, 0},        {"cuMemAlloc", 3020, 0},        {"cuMemAlloc", 12000, 0},
                 {"cuMemAllocAsync", 11020, 0},  {"cuMemAllocAsync", 11020, 2},  {"cuMemFree", 3020, 0},
                 {"cuCtxSynchronize", 13000, 0}, {"cuGetProcAddress", 12000, 0}, {"cuMemGetInfo", 3020, 0}};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *other, *found;
    lookup_fn lookup;
    size_t i;
    if (argc < 2 || !(other = dlopen(argv[1], RTLD_NOW))) return 2;
    printf("other cuMemAlloc_v2 %s\n", whose(dlsym(other, "cuMemAlloc_v2")));
    printf("other cuGetProcAddress_v2 %s\n", whose(dlsym(other, "cuGetProcAddress_v2")));
    printf("default cuMemFree_v2 %s\n", driver ? "-" : whose(dlsym(RTLD_DEFAULT, "cuMemFree_v2")));
    printf("next cuMemFree_v2 %s\n", whose(dlsym(RTLD_NEXT, "cuMemFree_v2")));
    if (!driver) {
        void *self = dlopen(0, RTLD_NOW);
        printf("program cuMemFree_v2 %s\n", whose(dlsym(self, "cuMemFree_v2")));
        printf("error %d\n", dlerror() != 0);
        return 0;
    }
    printf("driver cuMemAlloc %s\n", whose(dlsym(driver, "cuMemAlloc")));
    printf("driver cuMemAllocation %s\n", whose(dlsym(driver, "cuMemAllocation")));
    printf("driver cuMemAlloc_v2 %s\n", whose(dlsym(driver, "cuMemAlloc_v2")));
    printf("driver cuMemAlloc_v2 again %s\n", whose(dlsym(driver, "cuMemAlloc_v2")));
    found = dlsym(driver, "cuMemGetInfo_v2");
    printf("driver cuMemGetInfo_v2 %s, error %d\n", whose(found), dlerror() != 0);
    found = dlsym(driver, "cuGetProcAddress_v2");
    memcpy(&lookup, &found, sizeof lookup);
    for (i = 0; i < sizeof asked / sizeof *asked; i++) {
        int status = 7, code = lookup(asked[i].name, &found, asked[i].version, asked[i].flags, &status);
        printf("lookup %s %d %d: %d %d %s\n", asked[i].name, asked[i].version, (int)asked[i].flags, code, status,
               whose(found));
    }
    /* An address that only the look-up gives works when it is called through ours. */
    {
        int (*give)(unsigned long long);
        lookup("cuMemFree", &found, 3020, 0, 0);
        memcpy(&give, &found, sizeof give);
        printf("free %d %d\n", give(42), give(41));
    }
    return 0;
}
