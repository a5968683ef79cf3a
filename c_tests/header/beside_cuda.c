/* smp.h beside NVIDIA's cuda.h, in the order that CUDA_FIRST or CUDA_LAST asks for. Their stream and event types are the
 * same types, so handles pass without a cast. Only compiled: nothing of CUDA is linked. */
#if defined(CUDA_FIRST)
#include <cuda.h>
#include <smp.h>
#elif defined(CUDA_LAST)
#include <smp.h>
#include <cuda.h>
#else
#error "define CUDA_FIRST or CUDA_LAST"
#endif

smp_status allocate_on(smp_device device, smp_pool pool, CUstream stream, CUevent event, smp_allocation *out);

smp_status allocate_on(smp_device device, smp_pool pool, CUstream stream, CUevent event, smp_allocation *out)
{
    smp_stream same_stream = stream;
    smp_event same_event = event;
    CUstream back = same_stream;
    smp_status status = smp_note_event_record(device, same_event, back);
    return status != SMP_SUCCESS ? status : smp_alloc_async(pool, 512u, stream, out);
}
