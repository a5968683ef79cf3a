/* Small programs, one for each thing that libraries like ours have got wrong: cases NAME. They print what they saw. */
#define LINK DLSYM
#include "driver.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* Null for one of the two figures, as programs do. */
static int null_info(void)
{
    size_t available = 1, total = 1;
    driver_begin();
    printf("free %d", (int)CALL(cuMemGetInfo)(&available, 0));
    printf(" total %d", (int)CALL(cuMemGetInfo)(0, &total));
    printf(" none %d\n", (int)CALL(cuMemGetInfo)(0, 0));
    printf("%zu %zu\n", available, total);
    return 0;
}

/* How much a limit leaves: allocations of 1 MiB until one is refused, then what the driver says is free. */
static int limit(void)
{
    CUdeviceptr p[64], last;
    size_t available, total;
    int count = 0;
    CUresult code;
    driver_begin();
    MUST(CALL(cuMemGetInfo)(&available, &total));
    printf("before %zu of %zu\n", available, total);
    while ((code = CALL(cuMemAlloc)(&p[count], 1 << 20)) == CUDA_SUCCESS) count++;
    printf("blocks %d, then %d\n", count, (int)code);
    last = 1;
    code = CALL(cuMemAllocAsync)(&last, 1 << 20, 0);
    printf("async %d, pointer %llu\n", (int)code, (unsigned long long)last);
    MUST(CALL(cuMemGetInfo)(&available, &total));
    printf("full %zu of %zu\n", available, total);
    MUST(CALL(cuMemFree)(p[--count]));
    MUST(CALL(cuMemGetInfo)(&available, &total));
    printf("after a free %zu of %zu\n", available, total);
    MUST(CALL(cuMemAlloc)(&p[count++], 1 << 20));
    while (count) MUST(CALL(cuMemFree)(p[--count]));
    return 0;
}

/* A block is freed while another device's context is current. */
static int devices(void)
{
    CUcontext context[2];
    CUdeviceptr p, q;
    int i;
    driver_load();
    MUST(CALL(cuInit)(0));
    for (i = 0; i < 2; i++) MUST(CALL(cuDevicePrimaryCtxRetain)(&context[i], i));
    MUST(CALL(cuCtxSetCurrent)(context[0]));
    MUST(CALL(cuMemAlloc)(&p, 1000));
    MUST(CALL(cuCtxSetCurrent)(context[1]));
    MUST(CALL(cuMemAlloc)(&q, 70));
    MUST(CALL(cuMemFree)(p));
    return 0;
}

/* First calls from 8 threads at the same moment. */
static pthread_barrier_t barrier;
static CUcontext shared;

static void *first_call(void *unused)
{
    CUdeviceptr p;
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(shared));
    pthread_barrier_wait(&barrier);
    MUST(CALL(cuMemAlloc)(&p, 4096));
    MUST(CALL(cuMemFree)(p));
    return 0;
}

static int at_once(void)
{
    pthread_t thread[8];
    int i;
    shared = driver_begin();
    pthread_barrier_init(&barrier, 0, 8);
    for (i = 0; i < 8; i++) CHECK(!pthread_create(&thread[i], 0, first_call, 0));
    for (i = 0; i < 8; i++) pthread_join(thread[i], 0);
    return 0;
}

/* Blocks that are freed while the process ends: by an exit handler older than ours, and by a destructor. */
static CUdeviceptr late[3];

static void free_in_handler(void)
{
    printf("handler %d\n", (int)CALL(cuMemFree)(late[0]));
    fflush(stdout);
}

__attribute__((destructor)) static void free_in_destructor(void)
{
    if (late[1]) {
        printf("destructor %d\n", (int)CALL(cuMemFree)(late[1]));
        fflush(stdout);
    }
}

static int late_frees(void)
{
    int i;
    CHECK(!atexit(free_in_handler));
    driver_begin();
    for (i = 0; i < 3; i++) MUST(CALL(cuMemAlloc)(&late[i], 1000u * (unsigned)(i + 1)));
    return 0;
}

/* As a destructor that ends the process for good: what is not written by then is lost. */
static int abrupt;

__attribute__((destructor)) static void end_abruptly(void)
{
    if (abrupt) _exit(0);
}

static int abrupt_end(void)
{
    CUdeviceptr p;
    driver_begin();
    MUST(CALL(cuMemAlloc)(&p, 5000));
    abrupt = 1;
    return 0;
}

/* A child made while another thread allocates all the time; the child's calls must come back, whatever they answer. */
static volatile int stop;

static void *hammer(void *unused)
{
    (void)unused;
    MUST(CALL(cuCtxSetCurrent)(shared));
    while (!stop) {
        CUdeviceptr p;
        MUST(CALL(cuMemAlloc)(&p, 4096));
        MUST(CALL(cuMemFree)(p));
    }
    return 0;
}

static int forked(void)
{
    pthread_t thread;
    int i, status;
    shared = driver_begin();
    CHECK(!pthread_create(&thread, 0, hammer, 0));
    for (i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            /* Nothing of the driver: that would be its business. The end of the process is ours. */
            exit(7);
        }
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    stop = 1;
    pthread_join(thread, 0);
    return 0;
}

/* A host function that waits for a lock, while the thread that has the lock allocates. Whoever holds a lock of its own
   across the driver's call never ends. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static volatile int waiting;

static void CUDA_CB wait_for_lock(void *unused)
{
    (void)unused;
    waiting = 1;
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
}

static void *freeing(void *block)
{
    MUST(CALL(cuCtxSetCurrent)(shared));
    MUST(CALL(cuLaunchHostFunc)(0, wait_for_lock, 0));
    MUST(CALL(cuMemFree)(*(CUdeviceptr *)block));
    return 0;
}

static int callback(void)
{
    pthread_t thread;
    CUdeviceptr p, q[256];
    int i;
    shared = driver_begin();
    alarm(20);
    MUST(CALL(cuMemAlloc)(&p, 4096));
    pthread_mutex_lock(&mutex);
    CHECK(!pthread_create(&thread, 0, freeing, &p));
    while (!waiting) usleep(1000);
    usleep(20000);
    /* Enough of them that every lock of ours is asked for. */
    for (i = 0; i < 256; i++) MUST(CALL(cuMemAlloc)(&q[i], 512));
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, 0);
    for (i = 0; i < 256; i++) MUST(CALL(cuMemFree)(q[i]));
    return 0;
}

/* The report on SIGUSR2 comes at the next call, and not before. */
static int signalled(void)
{
    CUdeviceptr p, q;
    driver_begin();
    MUST(CALL(cuMemAlloc)(&p, 777));
    raise(SIGUSR2);
    fprintf(stderr, "raised\n");
    MUST(CALL(cuMemAlloc)(&q, 100));
    fprintf(stderr, "called\n");
    _exit(0);
}

/* What is looked up and called before cuInit is answered as without the library. */
static int before_init(void)
{
    CUdeviceptr p;
    size_t available, total;
    CUcontext context;
    driver_load();
    printf("%d", (int)CALL(cuCtxGetCurrent)(&context));
    printf(" %d", (int)CALL(cuMemAlloc)(&p, 16));
    printf(" %d", (int)CALL(cuMemGetInfo)(&available, &total));
    printf(" %d\n", (int)CALL(cuMemFree)(16));
    return 0;
}

int main(int argc, char **argv)
{
#define CASE(name)                                                                                                     \
    if (argc > 1 && !strcmp(argv[1], #name)) return name();
    CASE(null_info)
    CASE(limit)
    CASE(devices)
    CASE(at_once)
    CASE(late_frees)
    CASE(abrupt_end)
    CASE(forked)
    CASE(callback)
    CASE(signalled)
    CASE(before_init)
    return 2;
}
