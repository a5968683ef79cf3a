/* Asks cuGetProcAddress, by the chain of the CUDA runtime, for every line of a file (name, version, flags), and dlsym for
   every name after it on the command line; prints what it was answered: codes, and the symbol and file of the pointer. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef CUresult (*first_fn)(const char *, void **, int, cuuint64_t);
typedef CUresult (*second_fn)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static const char *whose(void *p)
{
    static char text[500];
    Dl_info info;
    const char *file;
    if (!p) return "null";
    if (!dladdr(p, &info) || !info.dli_fname) return "nowhere";
    file = strrchr(info.dli_fname, '/');
    snprintf(text, sizeof text, "%s:%s%s", file ? file + 1 : info.dli_fname, info.dli_sname ? info.dli_sname : "?",
             info.dli_saddr == p ? "" : "+");
    return text;
}

int main(int argc, char **argv)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *found = 0;
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)7;
    char line[256];
    second_fn ask;
    FILE *list;
    int i;
    if (argc < 2 || !library || !(list = fopen(argv[1], "r"))) return 2;
    found = dlsym(library, "cuGetProcAddress_v2");
    printf("dlsym cuGetProcAddress_v2 %s\n", whose(found));
    if (!found) return 3;
    memcpy(&ask, &found, sizeof ask);
    while (fgets(line, sizeof line, list)) {
        char *version = strchr(line, ','), *flags = version ? strchr(version + 1, ',') : 0;
        CUresult code;
        if (!flags || !strncmp(line, "symbol,", 7)) continue;
        *version++ = *flags++ = 0;
        found = (void *)&line;
        status = (CUdriverProcAddressQueryResult)7;
        code = ask(line, &found, atoi(version), (cuuint64_t)atoi(flags), &status);
        printf("%s %s %d: %d %d %s\n", line, version, atoi(flags), (int)code, (int)status,
               found == (void *)&line ? "untouched" : whose(found));
        /* As the runtime does: what is asked for after this goes through the pointer it got here. */
        if (!strcmp(line, "cuGetProcAddress") && atoi(version) >= 12000 && !code) memcpy(&ask, &found, sizeof ask);
        /* The older form answers the same, without a status. */
        if (!strcmp(line, "cuGetProcAddress") && atoi(version) == 11030 && !code) {
            first_fn first;
            void *again = 0;
            memcpy(&first, &found, sizeof first);
            code = first("cuMemAlloc", &again, 11030, 0);
            printf("first form cuMemAlloc 11030: %d %s\n", (int)code, whose(again));
        }
    }
    for (i = 2; i < argc; i++) printf("dlsym %s %s\n", argv[i], whose(dlsym(library, argv[i])));
    fclose(list);
    return 0;
}
