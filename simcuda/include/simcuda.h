/* Control calls of the stand-in driver library, for tests.
 *
 * A program built against this header either links with the stand-in or finds the functions by dlsym() in the library
 * that it loaded as the driver. They work before cuInit(), may be called from any thread, are neither counted nor
 * logged, and never fail by plan. Streams are passed as CUstream values; the default streams mean those of the
 * current context. Unless said otherwise a function returns 0 or a CUresult: 1 for a bad argument, 400 for a handle
 * that is no stream, 201 or 709 where a default stream needs a current context. */
#ifndef SIMCUDA_H
#define SIMCUDA_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

/* --- Counts. A NAME is an exported name ("cuMemAlloc_v2"), one without its per-thread suffix (both forms), or what
 * cuda.h calls the function ("cuMemAlloc": all versions). NULL means all functions. Control calls are not counted. */

/* Calls since the last reset, from all threads. */
uint64_t simcuda_calls(const char *name);
/* Calls since the last reset, from this thread. */
uint64_t simcuda_calls_of_thread(const char *name);
/* Calls since the last reset that answered as planned by simcuda_fail() or SIMCUDA_FAIL. */
uint64_t simcuda_fired(const char *name);
/* Starts all counts again. */
void simcuda_reset_counts(void);
/* The exported name of the INDEX-th function (from 0), with its counts since the last reset; NULL beyond the last.
 * Either count may be NULL. */
const char *simcuda_symbol(uint64_t index, uint64_t *calls, uint64_t *fired);
/* Writes "# TEXT" into the call log, if SIMCUDA_LOG names one. */
void simcuda_note(const char *text);

/* --- Failures. */

/* From now on the USE-th use (1 is the next) of the functions that NAME means answers ERROR, and does nothing else;
 * if ONWARDS is not 0, every later one too. Several may be planned. A sticky error also loses the current context, as
 * on a real device: whatever uses it answers the same, until it is destroyed or reset. 500: no such function. */
int simcuda_fail(const char *name, uint64_t use, int error, int onwards);
/* Forgets every planned failure, those of SIMCUDA_FAIL too. */
void simcuda_clear_failures(void);
/* cuGetProcAddress no longer finds NAME, as cuda.h calls it (all versions) or as exported (that one), if HIDDEN is not
 * 0; finds it again if it is 0. What dlsym() finds is fixed in the file; see "Hiding functions" in the README. */
int simcuda_hide(const char *name, int hidden);
/* From now on every call answers 4, CUDA_ERROR_DEINITIALIZED, as late in a process's exit. */
void simcuda_end(void);

/* --- Execution. */

#define SIMCUDA_EAGER 0       /* at submission, as far as waits and gates allow */
#define SIMCUDA_LAZY 1        /* when a synchronise needs it, or one operation a query that answered "not ready" */
#define SIMCUDA_ADVERSARIAL 2 /* a seeded choice at every call */

/* Changes the order of execution. Going eager runs all that can run. */
int simcuda_set_mode(int mode, uint64_t seed);
/* Submits UNITS operations that do nothing but take their place in the order, as a kernel does. */
int simcuda_submit(struct CUstream_st *stream, uint64_t units);
/* Runs at most COUNT operations of the stream, whatever the mode; stops at a wait that is not met and at a closed
 * gate. RAN (may be NULL) is how many ran. */
int simcuda_run(struct CUstream_st *stream, uint64_t count, uint64_t *ran);
/* How many operations the stream was given and how many have run. Either may be NULL. Waits and records are
 * operations; so are allocations and frees from pools. */
int simcuda_progress(struct CUstream_st *stream, uint64_t *submitted, uint64_t *executed);
/* Holds a stream: nothing more of it runs. A call that waits for it blocks until another thread opens the gate. */
int simcuda_gate_close(struct CUstream_st *stream);
/* Lets it go on. */
int simcuda_gate_open(struct CUstream_st *stream);

/* --- Memory and the rest. */

/* Leaves the device BYTES free, at most what it has; UINT64_MAX gives it all its memory back. */
int simcuda_set_free_memory(int device, uint64_t bytes);
/* Blocks that pools gave out by reason: 0 freed on the same stream or seen complete by a synchronise, 1 freed before by
 * an event, 2 the free had run, 3 new, 4 the stream was made to wait for the free. */
uint64_t simcuda_reuses(unsigned reason);
/* Kernel launches accepted. */
uint64_t simcuda_launches(void);

#ifdef __cplusplus
}
#endif

#endif
