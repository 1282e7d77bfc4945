/* Work: pieces on the context's first compute channel, in the order of submission, whatever the stream. Runs in the
 * program's process, on the calling thread, under the library's lock. */
#include "device.h"
#include "libcuda.h"

#include <errno.h>
#include <sys/ioctl.h>

/* Pieces that may be submitted and not finished before a launch waits, as in the real library. */
#define AHEAD 1024u
#define WAIT_NS UINT64_C (1000000000)

static uint32_t simulate (unsigned long request, void *call, const uint32_t *status)
{
    int result;

    do {
        result = ioctl (cuda.rm.control, request, call);
    } while (result < 0 && errno == EINTR);
    return result < 0 ? RM_STATUS_SYSTEM : *status;
}

/* Queries the channel's progress, and waits at most WAIT_NS of simulated time. Releases the lock while it waits. */
static CUresult look (CUcontext context, uint64_t until, bool wait)
{
    struct sim_progress call = { .client = cuda.rm.client, .channel = context->channel };

    if (wait) {
        call.until = until - context->before;
        call.timeout_ns = WAIT_NS;
        cuda_unlock ();
    }
    uint32_t status = simulate (SIM_PROGRESS, &call, &call.status);
    if (wait) {
        cuda_lock ();
        /* The lock was released: the context may have been destroyed. */
        if (cuda_find (context, KIND_CONTEXT) == NULL)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (status == RM_STATUS_OK && call.finished + context->before > context->finished)
        context->finished = call.finished + context->before;
    return cuda_status (status);
}

CUresult cuda_wait (CUcontext context, uint64_t until, bool wait)
{
    CUresult result = CUDA_SUCCESS;

    if (context->finished >= until)
        return CUDA_SUCCESS;
    do {
        result = look (context, until, wait);
    } while (result == CUDA_SUCCESS && wait && context->finished < until);
    if (result == CUDA_SUCCESS && context->finished < until)
        return CUDA_ERROR_NOT_READY;
    return result;
}

CUresult cuda_submit (CUcontext context, CUstream stream, uint64_t nanoseconds, uint64_t count)
{
    struct sim_submit call = { .client = cuda.rm.client, .channel = context->channel, .nanoseconds = nanoseconds, .count = count };

    if (count == 0)
        return CUDA_SUCCESS;
    if (context->submitted >= context->finished + AHEAD) {
        CUresult result = cuda_wait (context, context->submitted - AHEAD / 2, true);
        if (result != CUDA_SUCCESS)
            return result;
    }
    uint32_t status = simulate (SIM_SUBMIT, &call, &call.status);
    if (status != RM_STATUS_OK)
        return cuda_status (status);
    context->submitted += count;
    stream->last = context->submitted;
    return CUDA_SUCCESS;
}

CUresult cuda_clock (uint64_t *now_ns)
{
    struct sim_clock call = { .mode = SIM_CLOCK_ASK };
    uint32_t status = 0;

    status = simulate (SIM_CLOCK, &call, &status);
    *now_ns = call.now_ns;
    return cuda_status (status);
}

CUstream cuda_stream (CUcontext context, CUstream stream)
{
    if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return &context->null_stream;
    return cuda_find (stream, KIND_STREAM);
}
