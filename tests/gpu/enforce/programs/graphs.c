/*
 * Graphs that allocate, made by capturing a stream: what is charged against what the driver says that graphs have (its
 * RESERVED_MEM_CURRENT).
 *
 * usage: graphs captured           allocates and frees, launched three times
 *        graphs freed-on-launch    allocates and never frees: every launch frees what the one before had
 *        graphs several            two graphs in turn; a second instance of the first
 *        graphs refused BYTES LEFT more than there is; LEFT: what is free then, the rest is taken first (0: nothing is)
 */
#include "check.h"

#include <stdbool.h>

#define BYTES (256 * MIB)

static CUdevice device;
static CUstream stream;

/* "free_WHERE" and "reserved_WHERE", with nothing pending. */
static void point (const char *where)
{
    char name[64];
    cuuint64_t reserved;
    MUST (cuStreamSynchronize (stream));
    MUST (cuDeviceGetGraphMemAttribute (device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
    snprintf (name, sizeof name, "free_%s", where);
    say (name, memory_free ());
    snprintf (name, sizeof name, "reserved_%s", where);
    say (name, reserved);
}

static CUgraph capture (size_t bytes, CUdeviceptr *address, bool freed)
{
    CUgraph graph;
    MUST (cuStreamBeginCapture (stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    MUST (cuMemAllocAsync (address, bytes, stream));
    MUST (cuMemsetD8Async (*address, 5, bytes, stream));
    if (freed)
        MUST (cuMemFreeAsync (*address, stream));
    MUST (cuStreamEndCapture (stream, &graph));
    return graph;
}

static void launch (CUgraphExec executable, unsigned times)
{
    for (unsigned i = 0; i < times; i++)
        MUST (cuGraphLaunch (executable, stream));
    MUST (cuStreamSynchronize (stream));
}

static void trim (const char *where)
{
    MUST (cuStreamSynchronize (stream));
    MUST (cuDeviceGraphMemTrim (device));
    point (where);
}

static void captured (void)
{
    CUdeviceptr address;
    CUgraphExec executable;
    CUgraph graph = capture (BYTES, &address, true);
    MUST (cuGraphInstantiate (&executable, graph, 0));
    launch (executable, 3);
    point ("launched");
    MUST (cuGraphExecDestroy (executable));
    MUST (cuGraphDestroy (graph));
    trim ("trimmed");
}

static void freed_on_launch (void)
{
    CUdeviceptr address;
    CUgraphExec executable;
    unsigned char byte = 0;
    CUgraph graph = capture (BYTES, &address, false);
    MUST (cuGraphInstantiate (&executable, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    launch (executable, 1);
    point ("launched");
    for (unsigned i = 0; i < 20; i++)
        launch (executable, 1);
    point ("again");
    MUST (cuMemcpyDtoH (&byte, address + BYTES - 1, 1));
    say ("byte", byte);
    MUST (cuMemFreeAsync (address, stream));
    MUST (cuStreamSynchronize (stream));
    MUST (cuGraphExecDestroy (executable));
    MUST (cuGraphDestroy (graph));
    trim ("trimmed");
}

static void several (void)
{
    CUdeviceptr addresses[2];
    CUgraphExec executables[2], second;
    CUgraph graphs[2];
    for (unsigned i = 0; i < 2; i++) {
        graphs[i] = capture (BYTES, &addresses[i], true);
        MUST (cuGraphInstantiate (&executables[i], graphs[i], 0));
    }
    launch (executables[0], 1);
    launch (executables[1], 1);
    point ("launched");
    for (unsigned i = 0; i < 20; i++)
        launch (executables[i % 2], 1);
    point ("again");
    /* The driver's own answer: one instance at a time of a graph that allocates. */
    CUresult result = cuGraphInstantiate (&second, graphs[0], 0);
    say ("status_second", (unsigned long long) result);
    if (result == CUDA_SUCCESS)
        MUST (cuGraphExecDestroy (second));
    MUST (cuGraphExecDestroy (executables[0]));
    result = cuGraphInstantiate (&executables[0], graphs[0], 0);
    say ("status_anew", (unsigned long long) result);
    if (result == CUDA_SUCCESS) {
        launch (executables[0], 1);
        MUST (cuGraphExecDestroy (executables[0]));
    }
    MUST (cuGraphExecDestroy (executables[1]));
    MUST (cuGraphDestroy (graphs[0]));
    MUST (cuGraphDestroy (graphs[1]));
    trim ("trimmed");
}

/* Every status is said, for it is the driver's affair which call is refused first. */
static void refused (size_t bytes, size_t left)
{
    CUdeviceptr address, small, rest;
    CUgraphExec executable;
    if (left > 0)
        MUST (cuMemAlloc (&rest, memory_free () - left));
    CUgraph graph = capture (bytes, &address, true);
    CUresult result = cuGraphInstantiate (&executable, graph, 0);
    say ("status_instantiate", (unsigned long long) result);
    if (result == CUDA_SUCCESS) {
        result = cuGraphLaunch (executable, stream);
        say ("status_launch", (unsigned long long) result);
        result = cuStreamSynchronize (stream);
        say ("status_synchronize", (unsigned long long) result);
        MUST (cuGraphExecDestroy (executable));
    }
    MUST (cuGraphDestroy (graph));
    trim ("trimmed");
    say ("status_after", (unsigned long long) cuMemAlloc (&small, BYTES));
}

int main (int argc, char **argv)
{
    const char *scene = argc > 1 ? argv[1] : "";
    CUdeviceptr address;
    CUgraphExec executable;
    device = begin_cuda ();
    MUST (cuStreamCreate (&stream, CU_STREAM_NON_BLOCKING));
    /* What the driver allocates once. */
    CUgraph graph = capture (2 * MIB, &address, true);
    MUST (cuGraphInstantiate (&executable, graph, 0));
    launch (executable, 1);
    MUST (cuGraphExecDestroy (executable));
    MUST (cuGraphDestroy (graph));
    trim ("start");
    if (strcmp (scene, "captured") == 0)
        captured ();
    else if (strcmp (scene, "freed-on-launch") == 0)
        freed_on_launch ();
    else if (strcmp (scene, "several") == 0)
        several ();
    else if (strcmp (scene, "refused") == 0 && argc == 4)
        refused (strtoull (argv[2], NULL, 10), strtoull (argv[3], NULL, 10));
    else
        return 2;
    return 0;
}
