/* Instantiation and launch of graphs. A launch allocates the memory of the graph's allocation nodes; its free nodes
 * return it to the device's pool for graphs, which holds it until cuDeviceGraphMemTrim. Runs in the program's process,
 * on the calling thread, under the library's lock. */
#include "libcuda_graph.h"
#include "libcuda_api.h"

#include <stdlib.h>

struct CUgraphExec_st {
    struct cuda_entry entry;
    size_t count;
    struct CUgraphNode_st nodes[];
};

static CUresult instantiate (CUgraphExec *exec, CUgraph graph)
{
    size_t count = 0;

    CUDA_ENTER ();
    if (exec == NULL || cuda_find (graph, KIND_GRAPH) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    for (const struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next)
        count++;
    struct CUgraphExec_st *made = calloc (1, sizeof (*made) + count * sizeof (made->nodes[0]));
    if (made == NULL || !cuda_add_handle (&made->entry, KIND_EXEC, NULL)) {
        free (made);
        return CUDA_LEAVE (CUDA_ERROR_OUT_OF_MEMORY);
    }
    for (const struct CUgraphNode_st *node = graph->first; node != NULL; node = node->next) {
        made->nodes[made->count++] = *node;
        if (node->place != NULL)
            node->place->holders++;
    }
    *exec = made;
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuGraphInstantiate (CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log, size_t size)
{
    if (node != NULL)
        *node = NULL;
    if (log != NULL && size > 0)
        log[0] = '\0';
    return instantiate (exec, graph);
}
CUDA_ALIAS (cuGraphInstantiate_v2, cuGraphInstantiate);

CUresult cuGraphInstantiateWithFlags (CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void) flags;
    return instantiate (exec, graph);
}

/* Allocates the memory of all allocation nodes, or of none. */
static CUresult take_memory (CUgraphExec exec)
{
    CUresult result = CUDA_SUCCESS;
    size_t i;

    for (i = 0; i < exec->count; i++) {
        struct pooled *place = exec->nodes[i].place;
        if (place == NULL)
            continue;
        /* Still allocated by the last launch, and not freed since. */
        result = place->backed ? CUDA_ERROR_INVALID_VALUE : cuda_pool_back (place);
        if (result != CUDA_SUCCESS)
            break;
    }
    while (result != CUDA_SUCCESS && i > 0) {
        if (exec->nodes[--i].place != NULL)
            cuda_pool_unback (exec->nodes[i].place);
    }
    return result;
}

CUresult cuGraphLaunch (CUgraphExec exec, CUstream handle)
{
    CUcontext context;

    CUDA_ENTER_CONTEXT (context);
    CUstream stream = cuda_stream (context, handle);
    if (stream == NULL || cuda_find (exec, KIND_EXEC) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_HANDLE);
    CUresult result = take_memory (exec);
    for (size_t i = 0; result == CUDA_SUCCESS && i < exec->count; i++) {
        if (exec->nodes[i].what == NODE_KERNEL)
            result = cuda_submit (context, stream, exec->nodes[i].nanoseconds, 1);
        else if (exec->nodes[i].what == NODE_FREE)
            result = cuda_pool_free (exec->nodes[i].pointer);
    }
    return CUDA_LEAVE (result);
}
CUDA_ALIAS (cuGraphLaunch_ptsz, cuGraphLaunch);

static void destroy_exec (CUgraphExec exec)
{
    for (size_t i = 0; i < exec->count; i++) {
        if (exec->nodes[i].place == NULL)
            continue;
        exec->nodes[i].place->holders--;
        cuda_pool_unplace (exec->nodes[i].place);
    }
    cuda_remove (&exec->entry);
    free (exec);
}

CUresult cuGraphExecDestroy (CUgraphExec exec)
{
    CUDA_ENTER ();
    if (cuda_find (exec, KIND_EXEC) == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_VALUE);
    destroy_exec (exec);
    return CUDA_LEAVE (CUDA_SUCCESS);
}

CUresult cuDeviceGraphMemTrim (CUdevice ordinal)
{
    CUDA_ENTER ();
    struct cuda_device *device = cuda_device (ordinal);
    if (device == NULL)
        return CUDA_LEAVE (CUDA_ERROR_INVALID_DEVICE);
    if (device->graph_pool != NULL)
        cuda_pool_trim (device->graph_pool, 0);
    return CUDA_LEAVE (CUDA_SUCCESS);
}
