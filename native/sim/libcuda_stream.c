/* Streams and events. All streams of a context share one channel, so work is done in the order of submission. Runs in
 * the program's process, on the calling thread, under the library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"

#include <stdlib.h>

enum { EVENT_DISABLE_TIMING = 2 };

CUresult cuStreamCreateWithPriority (CUstream *stream, unsigned int flags, int priority)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (stream == NULL || flags > CU_STREAM_NON_BLOCKING)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    struct CUstream_st *made = calloc (1, sizeof (*made));
    if (made == NULL || !cuda_add_handle (&made->entry, KIND_STREAM, context)) {
        free (made);
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    }
    made->flags = flags;
    made->priority = priority;
    *stream = made;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuStreamCreate (CUstream *stream, unsigned int flags) { return cuStreamCreateWithPriority (stream, flags, 0); }

CUresult cuStreamDestroy_v2 (CUstream stream)
{
    CUDA_ENTER ();
    struct CUstream_st *found = cuda_find (stream, KIND_STREAM);
    if (found == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    cuda_release (&found->entry);
    return CUDA_LEAVE (CUDA_SUCCESS);
}
CUDA_ALIAS (cuStreamDestroy, cuStreamDestroy_v2);

/* Finds the stream of a call in the current context. Returns with the lock on success. */
static CUresult enter_stream (CUstream handle, CUstream *stream)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    *stream = cuda_stream (context, handle);
    return *stream != NULL ? CUDA_SUCCESS : CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
}

static CUresult check_stream (CUstream handle, bool wait)
{
    CUstream stream;
    CUresult result = enter_stream (handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    CUcontext context = stream->entry.context;
    /* The default stream waits for the blocking streams too; here for all work, as that is done in order. */
    uint64_t until = stream == &context->null_stream ? context->submitted : stream->last;
    if (stream->capture != NULL)
        return CUDA_LEAVE (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    result = cuda_wait (context, until, wait);
    if (result == CUDA_SUCCESS && wait)
        cuda_trim_pools (context->device);
    return CUDA_LEAVE (result);
}

CUresult cuStreamSynchronize (CUstream stream) { return check_stream (stream, true); }
CUDA_ALIAS (cuStreamSynchronize_ptsz, cuStreamSynchronize);

CUresult cuStreamQuery (CUstream stream) { return check_stream (stream, false); }
CUDA_ALIAS (cuStreamQuery_ptsz, cuStreamQuery);

/* In order of submission anyway, so there is nothing to wait for. */
CUresult cuStreamWaitEvent (CUstream handle, CUevent event, unsigned int flags)
{
    CUstream stream;
    CUresult result = enter_stream (handle, &stream);

    (void) flags;
    if (result != CUDA_SUCCESS)
        return result;
    return CUDA_LEAVE (cuda_find (event, KIND_EVENT) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}
CUDA_ALIAS (cuStreamWaitEvent_ptsz, cuStreamWaitEvent);

CUresult cuEventCreate (CUevent *event, unsigned int flags)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (event == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    struct CUevent_st *made = calloc (1, sizeof (*made));
    if (made == NULL || !cuda_add_handle (&made->entry, KIND_EVENT, context)) {
        free (made);
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    }
    made->flags = flags;
    *event = made;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuEventDestroy_v2 (CUevent event)
{
    CUDA_ENTER ();
    struct CUevent_st *found = cuda_find (event, KIND_EVENT);
    if (found == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    cuda_release (&found->entry);
    return CUDA_LEAVE (CUDA_SUCCESS);
}
CUDA_ALIAS (cuEventDestroy, cuEventDestroy_v2);

/* An event is complete when the work before it is finished. Its time is the simulated clock's when that is first
 * observed: exact for an event on an idle stream and for one that is waited for, late for one that is only queried
 * later. */
static CUresult look_at_event (CUevent event, bool wait)
{
    CUresult result = cuda_wait (event->where, event->point, wait);

    if (result != CUDA_SUCCESS || event->time.known)
        return result;
    result = cuda_clock (&event->time.at_ns);
    event->time.known = result == CUDA_SUCCESS;
    return result;
}

CUresult cuEventRecord (CUevent event, CUstream handle)
{
    CUstream stream;
    CUresult result = enter_stream (handle, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (cuda_find (event, KIND_EVENT) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    event->recorded = true;
    event->where = stream->entry.context;
    event->point = stream == &event->where->null_stream ? event->where->submitted : stream->last;
    event->time.known = false;
    result = look_at_event (event, false);
    return CUDA_LEAVE (result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result);
}
CUDA_ALIAS (cuEventRecord_ptsz, cuEventRecord);

static CUresult check_event (CUevent event, bool wait)
{
    CUDA_ENTER ();
    if (cuda_find (event, KIND_EVENT) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    return CUDA_LEAVE (event->recorded ? look_at_event (event, wait) : CUDA_SUCCESS);
}

CUresult cuEventQuery (CUevent event) { return check_event (event, false); }

CUresult cuEventSynchronize (CUevent event) { return check_event (event, true); }

CUresult cuEventElapsedTime (float *milliseconds, CUevent from, CUevent to)
{
    CUDA_ENTER ();
    if (milliseconds == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (cuda_find (from, KIND_EVENT) == NULL || cuda_find (to, KIND_EVENT) == NULL || !from->recorded || !to->recorded ||
        ((from->flags | to->flags) & EVENT_DISABLE_TIMING))
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    CUresult result = look_at_event (from, false);
    if (result == CUDA_SUCCESS)
        result = look_at_event (to, false);
    if (result == CUDA_SUCCESS)
        *milliseconds = (float) ((double) (int64_t) (to->time.at_ns - from->time.at_ns) / 1e6);
    return CUDA_LEAVE (result);
}
