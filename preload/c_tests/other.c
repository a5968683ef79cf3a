/* A library that is no driver but has functions of the same names, as an emulator or a test of one may have. */
int cuMemAlloc_v2(void);
int cuGetProcAddress_v2(void);
int cuMemAlloc_v2(void) { return 4711; }
int cuGetProcAddress_v2(void) { return 4712; }
