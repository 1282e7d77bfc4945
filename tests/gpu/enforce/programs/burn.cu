/*
 * Keeps a GPU busy and says how much of its work is done.
 *
 * usage: burn plain MILLISECONDS            kernels of that length, one after the other
 *        burn long MILLISECONDS             likewise, each made of pieces of a millisecond that are counted
 *        burn graph MILLISECONDS            graphs of 20 kernels of that length each
 *        burn cooperative MILLISECONDS      cooperative kernels: 8 pieces with all blocks meeting between them
 * and after it, for programs that must do the same work though the GPU is busy when they begin: ITERATIONS of a piece.
 * Then lines on stdin:
 *        rate SECONDS                       pieces of work per second, from one moment to the other
 *        rest / work                        launches nothing more; goes on. "rests" / "works"
 *        look                               makes one call of the driver, which is when a process looks at its limits;
 *                                           launching needs none. "looked"
 *        gaps SECONDS NANOSECONDS           when no piece was finished for longer than NANOSECONDS: "gap FROM TO"
 *                                           (CLOCK_MONOTONIC), then "end"
 *        samples SECONDS MICROSECONDS       pieces of work so far, so often: "at WHEN PIECES" (CLOCK_MONOTONIC), then "end"
 *
 * A piece is the same amount of arithmetic whatever its kernel. Blocks count their own pieces in memory that the host
 * sees, so that work is counted to the piece and not to the kernel.
 */
#include <cooperative_groups.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <pthread.h>
#include <unistd.h>

#define MUST(call) must ((call), #call, __LINE__)

static const int THREADS = 1024;
static const int GRAPH_KERNELS = 20;
static const int COOPERATIVE_PIECES = 8;
static const int MAX_QUEUE = 8;

static void must (cudaError_t result, const char *call, int line)
{
    if (result == cudaSuccess)
        return;
    fprintf (stderr, "burn.cu:%d: %s: %s\n", line, call, cudaGetErrorString (result));
    _exit (1);
}

static uint64_t now_ns ()
{
    struct timespec time;
    clock_gettime (CLOCK_MONOTONIC, &time);
    return (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec;
}

/* counts: a block's own, in the GPU's memory; shown: the same for the host, which reads while the kernel runs. */
__global__ void work (float *sink, unsigned long long *counts, volatile unsigned long long *shown, int pieces,
                      int iterations, bool meet)
{
    float a = threadIdx.x * 1e-3f, b = 1.0001f, c = 0.5f, d = 0.25f;
    for (int piece = 0; piece < pieces; piece++) {
        for (int i = 0; i < iterations; i++) {
            a = fmaf (a, b, 1e-7f);
            c = fmaf (c, b, a);
            d = fmaf (d, b, c);
        }
        __syncthreads ();
        if (threadIdx.x == 0)
            shown[blockIdx.x] = ++counts[blockIdx.x];
        if (meet)
            cooperative_groups::this_grid ().sync ();
    }
    if (a + c + d == 12345.f)
        sink[0] = a;
}

struct burn {
    float *sink;
    unsigned long long *counts;
    volatile unsigned long long *shown; /* host */
    unsigned long long *shown_there;    /* the same on the GPU */
    int blocks, pieces, iterations, queue;
    bool cooperative;
    volatile bool rests;
    cudaGraphExec_t graph; /* NULL: kernels */
    cudaStream_t stream;
};

static void launch_kernel (struct burn *burn)
{
    if (burn->cooperative) {
        void *arguments[] = { &burn->sink,   &burn->counts,     &burn->shown_there,
                              &burn->pieces, &burn->iterations, &burn->cooperative };
        MUST (cudaLaunchCooperativeKernel ((const void *) work, dim3 ((unsigned) burn->blocks), dim3 (THREADS),
                                           arguments, 0, burn->stream));
        return;
    }
    work<<<burn->blocks, THREADS, 0, burn->stream>>> (burn->sink, burn->counts, burn->shown_there, burn->pieces,
                                                      burn->iterations, false);
    MUST (cudaGetLastError ());
}

/* Milliseconds of a kernel of that many iterations, the shortest of five. */
static float length_of (struct burn *burn, int iterations)
{
    cudaEvent_t begin, end;
    float shortest = 1e9f;
    MUST (cudaEventCreate (&begin));
    MUST (cudaEventCreate (&end));
    for (int i = 0; i < 5; i++) {
        float length;
        MUST (cudaEventRecord (begin, burn->stream));
        work<<<burn->blocks, THREADS, 0, burn->stream>>> (burn->sink, burn->counts, burn->shown_there, 1, iterations,
                                                          false);
        MUST (cudaEventRecord (end, burn->stream));
        MUST (cudaEventSynchronize (end));
        MUST (cudaEventElapsedTime (&length, begin, end));
        shortest = length < shortest ? length : shortest;
    }
    MUST (cudaEventDestroy (begin));
    MUST (cudaEventDestroy (end));
    return shortest;
}

static int iterations_for (struct burn *burn, double milliseconds)
{
    const int low = 2000, high = 22000;
    length_of (burn, high); /* clocks up */
    double each = (length_of (burn, high) - length_of (burn, low)) / (high - low);
    double fixed = length_of (burn, low) - each * low;
    double wanted = (milliseconds - fixed) / each;
    return wanted < 1 ? 1 : (int) wanted;
}

static void make_graph (struct burn *burn)
{
    cudaGraph_t graph;
    MUST (cudaStreamBeginCapture (burn->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < GRAPH_KERNELS; i++)
        launch_kernel (burn);
    MUST (cudaStreamEndCapture (burn->stream, &graph));
    MUST (cudaGraphInstantiate (&burn->graph, graph, 0));
    MUST (cudaGraphDestroy (graph));
}

static void *feed (void *argument)
{
    struct burn *burn = (struct burn *) argument;
    cudaEvent_t events[MAX_QUEUE];
    for (int i = 0; i < burn->queue; i++)
        MUST (cudaEventCreateWithFlags (&events[i], cudaEventDisableTiming | cudaEventBlockingSync));
    for (unsigned turn = 0;; turn = (turn + 1) % (unsigned) burn->queue) {
        MUST (cudaEventSynchronize (events[turn]));
        while (burn->rests)
            usleep (1000);
        if (burn->graph != NULL)
            MUST (cudaGraphLaunch (burn->graph, burn->stream));
        else
            launch_kernel (burn);
        MUST (cudaEventRecord (events[turn], burn->stream));
    }
    return NULL;
}

static unsigned long long done (const struct burn *burn)
{
    unsigned long long sum = 0;
    for (int i = 0; i < burn->blocks; i++)
        sum += burn->shown[i];
    return sum;
}

/* Sleeps, and waits the last bit awake. */
static void wait_until (uint64_t moment)
{
    for (uint64_t now = now_ns (); now < moment; now = now_ns ())
        if (moment - now > 200000)
            usleep ((useconds_t) ((moment - now - 100000) / 1000));
}

static void rate (const struct burn *burn, double seconds)
{
    uint64_t start = now_ns ();
    unsigned long long before = done (burn);
    wait_until (start + (uint64_t) (seconds * 1e9));
    unsigned long long after = done (burn);
    printf ("%.6f\n", (double) (after - before) / burn->blocks / ((double) (now_ns () - start) * 1e-9));
}

static void gaps (const struct burn *burn, double seconds, uint64_t longest)
{
    uint64_t start = now_ns (), last = start;
    unsigned long long seen = done (burn);
    for (uint64_t now = start; now - start < (uint64_t) (seconds * 1e9); now = now_ns ()) {
        unsigned long long sum = done (burn);
        if (sum == seen)
            continue;
        if (now - last > longest)
            printf ("gap %llu %llu\n", (unsigned long long) last, (unsigned long long) now);
        seen = sum;
        last = now;
    }
    uint64_t end = now_ns ();
    if (end - last > longest)
        printf ("gap %llu %llu\n", (unsigned long long) last, (unsigned long long) end);
    puts ("end");
}

static void samples (const struct burn *burn, double seconds, unsigned long long every)
{
    uint64_t start = now_ns (), end = start + (uint64_t) (seconds * 1e9);
    for (uint64_t next = start; next < end; next += every * 1000) {
        wait_until (next);
        uint64_t now = now_ns ();
        printf ("at %llu %.4f\n", (unsigned long long) now, (double) done (burn) / burn->blocks);
    }
    puts ("end");
}

static void look ()
{
    size_t free, total;
    MUST (cudaMemGetInfo (&free, &total));
    puts ("looked");
}

static bool prepare (struct burn *burn, const char *mode, double milliseconds, int iterations)
{
    int processors, each, cooperative;
    MUST (cudaSetDevice (0));
    MUST (cudaDeviceGetAttribute (&processors, cudaDevAttrMultiProcessorCount, 0));
    MUST (cudaDeviceGetAttribute (&cooperative, cudaDevAttrCooperativeLaunch, 0));
    MUST (cudaOccupancyMaxActiveBlocksPerMultiprocessor (&each, work, THREADS, 0));
    burn->blocks = processors * each;
    size_t bytes = sizeof (unsigned long long) * (size_t) burn->blocks;
    MUST (cudaStreamCreateWithFlags (&burn->stream, cudaStreamNonBlocking));
    MUST (cudaMalloc ((void **) &burn->sink, sizeof (float)));
    MUST (cudaMalloc ((void **) &burn->counts, bytes));
    MUST (cudaMemset (burn->counts, 0, bytes));
    MUST (cudaHostAlloc ((void **) &burn->shown, bytes, cudaHostAllocMapped));
    memset ((void *) burn->shown, 0, bytes);
    MUST (cudaHostGetDevicePointer ((void **) &burn->shown_there, (void *) burn->shown, 0));
    burn->pieces = 1;
    burn->queue = milliseconds > 10 ? 2 : MAX_QUEUE;
    if (strcmp (mode, "long") == 0)
        burn->pieces = (int) milliseconds;
    else if (strcmp (mode, "cooperative") == 0 && cooperative) {
        burn->pieces = COOPERATIVE_PIECES;
        burn->cooperative = true;
    } else if (strcmp (mode, "plain") != 0 && strcmp (mode, "graph") != 0)
        return false;
    burn->iterations = iterations > 0 ? iterations : iterations_for (burn, milliseconds / burn->pieces);
    if (strcmp (mode, "graph") == 0)
        make_graph (burn);
    return true;
}

int main (int argc, char **argv)
{
    struct burn burn = {};
    char line[128];
    pthread_t feeder;
    if (argc < 3 || argc > 4 || !prepare (&burn, argv[1], atof (argv[2]), argc == 4 ? atoi (argv[3]) : 0)) {
        fprintf (stderr, "usage: burn plain|long|graph|cooperative MILLISECONDS [ITERATIONS]\n");
        return 2;
    }
    printf ("ready: iterations %d blocks %d pieces %d\n", burn.iterations, burn.blocks, burn.pieces);
    if (pthread_create (&feeder, NULL, feed, &burn) != 0)
        return 1;
    for (fflush (stdout); fgets (line, sizeof line, stdin) != NULL; fflush (stdout)) {
        double seconds = 0;
        unsigned long long longest = 0;
        if (sscanf (line, "rate %lf", &seconds) == 1)
            rate (&burn, seconds);
        else if (strcmp (line, "look\n") == 0)
            look ();
        else if (strcmp (line, "rest\n") == 0 || strcmp (line, "work\n") == 0) {
            burn.rests = line[0] == 'r';
            printf ("%ss\n", burn.rests ? "rest" : "work");
        }
        else if (sscanf (line, "gaps %lf %llu", &seconds, &longest) == 2)
            gaps (&burn, seconds, longest);
        else if (sscanf (line, "samples %lf %llu", &seconds, &longest) == 2)
            samples (&burn, seconds, longest);
        else
            return 2;
    }
    _exit (0); /* what is queued would take seconds under a small cap */
}
