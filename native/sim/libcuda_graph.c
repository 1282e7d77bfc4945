/* Creation of graphs, by adding nodes or by stream capture. Runs in the program's process, on the calling thread, under
 * the library's lock. */
#include "libcuda_graph.h"
#include "libcuda_api.h"

#include <stdlib.h>

CUresult cuda_graph_create (CUcontext context, CUgraph *graph)
{
    struct CUgraph_st *made = calloc (1, sizeof (*made));

    if (made == NULL || !cuda_add_handle (&made->entry, KIND_GRAPH, context)) {
        free (made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->last = &made->first;
    *graph = made;
    return CUDA_SUCCESS;
}

void cuda_graph_destroy (CUgraph graph)
{
    while (graph->first != NULL) {
        struct CUgraphNode_st *node = graph->first;
        graph->first = node->next;
        if (node->place != NULL) {
            node->place->holders--;
            cuda_pool_unplace (node->place);
        }
        cuda_remove (&node->entry);
        free (node);
    }
    cuda_remove (&graph->entry);
    free (graph);
}

CUresult cuda_graph_add (CUgraph graph, enum node_kind what, CUgraphNode *node)
{
    struct CUgraphNode_st *made = calloc (1, sizeof (*made));

    /* Found by its handle, but owned by its graph: not registered with a context. */
    if (made == NULL || !cuda_add_handle (&made->entry, KIND_NODE, NULL)) {
        free (made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->what = what;
    *graph->last = made;
    graph->last = &made->next;
    *node = made;
    return CUDA_SUCCESS;
}

CUresult cuda_graph_add_allocation (CUgraph graph, CUcontext context, size_t size, CUdeviceptr *pointer, CUgraphNode *node)
{
    struct cuda_device *device = context->device;
    struct pooled *place;
    CUresult result = CUDA_SUCCESS;

    if (device->graph_pool == NULL)
        result = cuda_pool_create (device, &device->graph_pool);
    if (result == CUDA_SUCCESS)
        result = cuda_pool_place (device->graph_pool, NULL, size, &place);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda_graph_add (graph, NODE_ALLOCATE, node);
    if (result != CUDA_SUCCESS) {
        cuda_pool_unplace (place);
        return result;
    }
    place->holders = 1;
    (*node)->place = place;
    *pointer = place->entry.start;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate (CUgraph *graph, unsigned int flags)
{
    CUDA_ENTER ();
    if (graph == NULL || flags != 0)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    return CUDA_LEAVE (cuda_graph_create (NULL, graph));
}

CUresult cuGraphDestroy (CUgraph graph)
{
    CUDA_ENTER ();
    if (cuda_find (graph, KIND_GRAPH) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    cuda_graph_destroy (graph);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

/* The start of every function that adds a node; its dependencies must be nodes. */
static CUresult enter_adding (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    CUDA_ENTER ();
    bool good = node != NULL && cuda_find (graph, KIND_GRAPH) != NULL && (dependencies != NULL || count == 0);
    for (size_t i = 0; good && i < count; i++)
        good = cuda_find (dependencies[i], KIND_NODE) != NULL;
    return good ? CUDA_SUCCESS : CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphAddEmptyNode (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    CUresult result = enter_adding (node, graph, dependencies, count);

    return result != CUDA_SUCCESS ? result : CUDA_LEAVE (cuda_graph_add (graph, NODE_EMPTY, node));
}

CUresult cuGraphAddKernelNode (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               const CUDA_KERNEL_NODE_PARAMS *parameters)
{
    CUresult result = enter_adding (node, graph, dependencies, count);

    if (result != CUDA_SUCCESS)
        return result;
    /* `func` is the first member in every version of the structure; the rest is not read. */
    if (parameters == NULL || cuda_find (parameters->func, KIND_FUNCTION) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    result = cuda_graph_add (graph, NODE_KERNEL, node);
    if (result == CUDA_SUCCESS)
        (*node)->nanoseconds = cuda_function_nanoseconds (parameters->func);
    return CUDA_LEAVE (result);
}
CUDA_ALIAS (cuGraphAddKernelNode_v2, cuGraphAddKernelNode);

CUresult cuGraphAddMemAllocNode (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    CUcontext context;
    CUresult result = enter_adding (node, graph, dependencies, count);

    if (result != CUDA_SUCCESS)
        return result;
    context = cuda_current ();
    if (context == NULL || parameters == NULL || parameters->bytesize == 0)
        return CUDA_LEAVE (context == NULL ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_VALUE);
    return CUDA_LEAVE (cuda_graph_add_allocation (graph, context, parameters->bytesize, &parameters->dptr, node));
}

CUresult cuGraphAddMemFreeNode (CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                CUdeviceptr pointer)
{
    CUresult result = enter_adding (node, graph, dependencies, count);

    if (result != CUDA_SUCCESS)
        return result;
    result = cuda_graph_add (graph, NODE_FREE, node);
    if (result == CUDA_SUCCESS)
        (*node)->pointer = pointer;
    return CUDA_LEAVE (result);
}

/* --- capture --- */

CUresult cuda_capture_kernel (CUstream stream, uint64_t nanoseconds)
{
    CUgraphNode node;
    CUresult result = cuda_graph_add (stream->capture, NODE_KERNEL, &node);

    if (result == CUDA_SUCCESS)
        node->nanoseconds = nanoseconds;
    return result;
}

CUresult cuda_capture_allocation (CUstream stream, size_t size, CUdeviceptr *pointer)
{
    CUgraphNode node;

    return cuda_graph_add_allocation (stream->capture, stream->entry.context, size, pointer, &node);
}

CUresult cuda_capture_free (CUstream stream, CUdeviceptr pointer)
{
    CUgraphNode node;
    CUresult result = cuda_graph_add (stream->capture, NODE_FREE, &node);

    if (result == CUDA_SUCCESS)
        node->pointer = pointer;
    return result;
}

void cuda_capture_drop (CUstream stream)
{
    if (stream->capture != NULL)
        cuda_graph_destroy (stream->capture);
    stream->capture = NULL;
}

CUresult cuStreamBeginCapture_v2 (CUstream handle, int mode)
{
    CUcontext context;

    (void) mode;
    CUDA_ENTER_CONTEXT (context);
    CUstream stream = cuda_stream (context, handle);
    if (stream == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    if (stream == &context->null_stream)
        return CUDA_LEAVE (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (stream->capture != NULL)
        return CUDA_LEAVE (CUDA_ERROR_ILLEGAL_STATE);
    return CUDA_LEAVE (cuda_graph_create (NULL, &stream->capture));
}
CUDA_ALIAS (cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture_v2);

CUresult cuStreamEndCapture (CUstream handle, CUgraph *graph)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    CUstream stream = cuda_stream (context, handle);
    if (stream == NULL || graph == NULL)
        return CUDA_LEAVE (stream == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
    if (stream->capture == NULL)
        return CUDA_LEAVE (CUDA_ERROR_ILLEGAL_STATE);
    *graph = stream->capture;
    stream->capture = NULL;
    return CUDA_LEAVE (CUDA_SUCCESS);
}
CUDA_ALIAS (cuStreamEndCapture_ptsz, cuStreamEndCapture);

CUresult cuStreamIsCapturing (CUstream handle, int *status)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    CUstream stream = cuda_stream (context, handle);
    if (stream == NULL || status == NULL)
        return CUDA_LEAVE (stream == NULL ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
    *status = stream->capture != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_LEAVE (CUDA_SUCCESS);
}
CUDA_ALIAS (cuStreamIsCapturing_ptsz, cuStreamIsCapturing);
