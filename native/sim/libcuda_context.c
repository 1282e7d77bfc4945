/* Contexts: creation, destruction, the current one. Runs in the program's process, on the calling thread, under the
 * library's lock. */
#include "libcuda.h"
#include "libcuda_api.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A thread's stack of contexts. Not __thread, which would add ld-linux.so to the library's dependencies. */
struct stack {
    CUcontext contexts[CUDA_STACK];
    unsigned int depth;
};
static pthread_key_t key;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static bool have_key;

static void make_key (void) { have_key = pthread_key_create (&key, free) == 0; }

/* NULL: no memory. */
static struct stack *own_stack (void)
{
    pthread_once (&key_once, make_key);
    struct stack *stack = have_key ? pthread_getspecific (key) : NULL;
    if (stack == NULL && have_key) {
        stack = calloc (1, sizeof (*stack));
        if (stack != NULL && pthread_setspecific (key, stack) != 0) {
            free (stack);
            stack = NULL;
        }
    }
    return stack;
}

/* Removes contexts that another thread has destroyed. */
CUcontext cuda_current (void)
{
    const struct stack *stack = own_stack ();

    if (stack == NULL || stack->depth == 0)
        return NULL;
    return cuda_find (stack->contexts[stack->depth - 1], KIND_CONTEXT);
}

CUresult cuda_push (CUcontext context)
{
    struct stack *stack = own_stack ();

    if (stack == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (stack->depth == CUDA_STACK)
        return CUDA_ERROR_INVALID_CONTEXT;
    stack->contexts[stack->depth++] = context;
    return CUDA_SUCCESS;
}

/* Pops the topmost context; with `context`, only if it is that one. */
static void pop (const struct CUctx_st *context)
{
    struct stack *stack = own_stack ();

    if (stack != NULL && stack->depth > 0 && (context == NULL || stack->contexts[stack->depth - 1] == context))
        stack->depth--;
}

CUresult cuda_context_create (struct cuda_device *device, unsigned int flags, CUcontext *context)
{
    /* cuCtxGetLimit on an H200: stack, printf, heap, (3 is not a limit of it), launches, granularity, L2. */
    static const size_t limits[8] = { 1024, 8650752, 8388608, 0, 2048, 64, 0, 0 };
    struct CUctx_st *made = calloc (1, sizeof (*made));

    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->device = device;
    made->flags = flags;
    memcpy (made->limits, limits, sizeof (limits));
    CUresult result = cuda_context_build (made);
    if (result == CUDA_SUCCESS && !cuda_add_handle (&made->entry, KIND_CONTEXT, NULL)) {
        cuda_context_unbuild (made);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        free (made);
        return result;
    }
    made->null_stream.entry.context = made;
    *context = made;
    return CUDA_SUCCESS;
}

void cuda_context_destroy (CUcontext context)
{
    struct cuda_entry *entry;

    while ((entry = cuda_find_of_context (context)) != NULL)
        cuda_release (entry);
    cuda_trim_pools (context->device);
    cuda_small_forget (context);
    cuda_context_unbuild (context);
    cuda_remove (&context->entry);
    if (context->device->primary == context)
        context->device->primary = NULL;
    free (context);
}

static CUresult create (CUcontext *context, unsigned int flags, CUdevice ordinal)
{
    CUDA_ENTER ();
    struct cuda_device *device = cuda_device (ordinal);
    if (context == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    CUresult result = cuda_context_create (device, flags, context);
    if (result == CUDA_SUCCESS)
        result = cuda_push (*context);
    return CUDA_LEAVE (result);
}

CUresult cuCtxCreate_v2 (CUcontext *context, unsigned int flags, CUdevice device) { return create (context, flags, device); }
CUDA_ALIAS (cuCtxCreate, cuCtxCreate_v2);

/* Execution affinity and the parameters of _v4 change nothing here. */
CUresult cuCtxCreate_v3 (CUcontext *context, void *affinity, int affinities, unsigned int flags, CUdevice device)
{
    (void) affinity;
    (void) affinities;
    return create (context, flags, device);
}

CUresult cuCtxCreate_v4 (CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
    (void) parameters;
    return create (context, flags, device);
}

CUresult cuCtxDestroy_v2 (CUcontext context)
{
    CUDA_ENTER ();
    if (context == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if (cuda_find (context, KIND_CONTEXT) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_CONTEXT_IS_DESTROYED);
    if (context->primary)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_CONTEXT);
    pop (context);
    cuda_context_destroy (context);
    return CUDA_LEAVE (CUDA_SUCCESS);
}
CUDA_ALIAS (cuCtxDestroy, cuCtxDestroy_v2);

CUresult cuCtxPushCurrent_v2 (CUcontext context)
{
    CUDA_ENTER ();
    if (cuda_find (context, KIND_CONTEXT) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_CONTEXT);
    return CUDA_LEAVE (cuda_push (context));
}
CUDA_ALIAS (cuCtxPushCurrent, cuCtxPushCurrent_v2);

CUresult cuCtxPopCurrent_v2 (CUcontext *context)
{
    CUcontext current;

    CUDA_ENTER_CONTEXT (current);
    pop (NULL);
    if (context != NULL)
        *context = current;
    return CUDA_LEAVE (CUDA_SUCCESS);
}
CUDA_ALIAS (cuCtxPopCurrent, cuCtxPopCurrent_v2);

CUresult cuCtxSetCurrent (CUcontext context)
{
    CUDA_ENTER ();
    if (context != NULL && cuda_find (context, KIND_CONTEXT) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_CONTEXT);
    pop (NULL);
    return CUDA_LEAVE (context != NULL ? cuda_push (context) : CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent (CUcontext *context)
{
    CUDA_ENTER ();
    if (context == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    *context = cuda_current ();
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuCtxGetDevice (CUdevice *device)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    *device = context->device->ordinal;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuCtxGetFlags (unsigned int *flags)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (flags == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    *flags = context->flags;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion (CUcontext context, unsigned int *version)
{
    CUDA_ENTER ();
    if (version == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    if ((context != NULL ? cuda_find (context, KIND_CONTEXT) : cuda_current ()) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_CONTEXT);
    *version = 3020;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuCtxSynchronize (void)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    CUresult result = cuda_wait (context, context->submitted, true);
    if (result == CUDA_SUCCESS)
        cuda_trim_pools (context->device);
    return CUDA_LEAVE (result);
}

CUresult cuCtxGetLimit (size_t *value, int limit)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (value == NULL || limit < 0 || limit >= 8 || limit == 3)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    *value = context->limits[limit];
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuCtxSetLimit (int limit, size_t value)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (limit < 0 || limit >= 8 || limit == 3)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    context->limits[limit] = value;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuCtxGetStreamPriorityRange (int *least, int *greatest)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return CUDA_LEAVE (CUDA_SUCCESS);
}
