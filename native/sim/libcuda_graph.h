/* Graphs: nodes in the order of their addition, which is that of their execution. libcuda_graph.c,
 * libcuda_graph_launch.c. */
#ifndef NVC_SIM_LIBCUDA_GRAPH_H
#define NVC_SIM_LIBCUDA_GRAPH_H

#include "libcuda_pool.h"

enum node_kind { NODE_EMPTY, NODE_KERNEL, NODE_ALLOCATE, NODE_FREE };

struct CUgraphNode_st {
    struct cuda_entry entry;
    struct CUgraphNode_st *next;
    enum node_kind what;
    uint64_t nanoseconds;
    struct pooled *place; /* of an allocation: held by the node */
    CUdeviceptr pointer;  /* of a free */
};

struct CUgraph_st {
    struct cuda_entry entry;
    struct CUgraphNode_st *first, **last;
};

CUresult cuda_graph_create (CUcontext context, CUgraph *graph);
void cuda_graph_destroy (CUgraph graph);
CUresult cuda_graph_add (CUgraph graph, enum node_kind what, CUgraphNode *node);
/* The address is from the device's pool for graphs; it is backed by memory while a launched graph has it allocated. */
CUresult cuda_graph_add_allocation (CUgraph graph, CUcontext context, size_t size, CUdeviceptr *pointer, CUgraphNode *node);

#endif
