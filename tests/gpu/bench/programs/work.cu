/*
 * A service of known length, and a neighbour of a known shape.
 *
 * usage: work serve MILLISECONDS KERNELS        requests of that length in all, each a graph of KERNELS kernels that fill the GPU
 *        work busy MILLISECONDS THREADS PER_SM  kernels without end, PER_SM blocks of THREADS threads for each multiprocessor
 * Then lines on stdin:
 *        open RATE SECONDS SEED     (serve) requests arrive by a Poisson process, the same with the same seed. A latency is from the
 *                                   arrival to the answer's end; a request that this program itself began late (it did not run, and
 *                                   no request was before it) is left out.
 *                                   "COUNT P50 P95 P99 MAX LEFT_OUT" (microseconds), from requests that arrived in the time
 *        launches RATE SECONDS SEED likewise; "at NANOSECONDS" (CLOCK_MONOTONIC) of each launch, then "end"
 *        rate SECONDS               (busy) kernels a second
 */
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <unistd.h>
#include <vector>

#define MUST(call) must ((call), #call, __LINE__)

static void must (cudaError_t result, const char *call, int line)
{
    if (result == cudaSuccess)
        return;
    fprintf (stderr, "work.cu:%d: %s: %s\n", line, call, cudaGetErrorString (result));
    _exit (1);
}

static uint64_t now_ns ()
{
    struct timespec time;
    clock_gettime (CLOCK_MONOTONIC, &time);
    return (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec;
}

__global__ void work (float *sink, int iterations)
{
    float a = threadIdx.x * 1e-3f, b = 1.0001f, c = 0.5f, d = 0.25f;
    for (int i = 0; i < iterations; i++) {
        a = fmaf (a, b, 1e-7f);
        c = fmaf (c, b, a);
        d = fmaf (d, b, c);
    }
    if (a + c + d == 12345.f)
        sink[0] = a;
}

static float *sink;
static cudaStream_t stream;
static int blocks, threads, iterations;
static cudaGraphExec_t graph;

static float length_of (int count)
{
    cudaEvent_t begin, end;
    float shortest = 1e9f;
    MUST (cudaEventCreate (&begin));
    MUST (cudaEventCreate (&end));
    for (int i = 0; i < 5; i++) {
        float length;
        MUST (cudaEventRecord (begin, stream));
        work<<<blocks, threads, 0, stream>>> (sink, count);
        MUST (cudaEventRecord (end, stream));
        MUST (cudaEventSynchronize (end));
        MUST (cudaEventElapsedTime (&length, begin, end));
        shortest = length < shortest ? length : shortest;
    }
    return shortest;
}

static int iterations_for (double milliseconds)
{
    int low = 5000, high = 50000;
    length_of (high); /* clocks up */
    double each = (length_of (high) - length_of (low)) / (high - low);
    double wanted = (milliseconds - (length_of (low) - each * low)) / each;
    return wanted < 1 ? 1 : (int) wanted;
}

/* Sleeps, and waits the last bit awake. */
static void wait_until (uint64_t moment)
{
    for (uint64_t now = now_ns (); now < moment; now = now_ns ())
        if (moment - now > 300000)
            usleep ((useconds_t) ((moment - now - 200000) / 1000));
}

/* Awake: a blocking wait would add the processor's own time to wake up. */
static void serve ()
{
    MUST (cudaGraphLaunch (graph, stream));
    MUST (cudaStreamSynchronize (stream));
}

static double at (const std::vector<double> &ordered, double part)
{
    size_t index = (size_t) std::ceil (part * (double) ordered.size ());
    return ordered.empty () ? 0 : ordered[index == 0 ? 0 : index - 1];
}

static void offered (double rate, double seconds, unsigned seed, bool tells)
{
    const uint64_t late_ns = 50000;
    std::mt19937_64 draw (seed);
    std::vector<double> took;
    std::vector<uint64_t> launches;
    uint64_t begin = now_ns (), free = begin;
    unsigned left_out = 0;
    for (double moment = 0;;) {
        double unit = (double) (draw () >> 11) / 9007199254740992.0;
        moment -= std::log (1 - unit) / rate;
        if (moment >= seconds)
            break;
        uint64_t due = begin + (uint64_t) (moment * 1e9);
        wait_until (due);
        uint64_t start = now_ns ();
        serve ();
        uint64_t end = now_ns ();
        launches.push_back (start);
        if (start > std::max (due, free) + late_ns)
            left_out++;
        else
            took.push_back ((double) (end - due) / 1000);
        free = end;
    }
    std::sort (took.begin (), took.end ());
    if (tells) {
        for (uint64_t launch : launches)
            printf ("at %llu\n", (unsigned long long) launch);
        puts ("end");
        return;
    }
    printf ("%zu %.1f %.1f %.1f %.1f %u\n", took.size (), at (took, 0.5), at (took, 0.95), at (took, 0.99), at (took, 1), left_out);
}

static void make_graph (int kernels)
{
    cudaGraph_t made;
    MUST (cudaStreamBeginCapture (stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kernels; i++)
        work<<<blocks, threads, 0, stream>>> (sink, iterations);
    MUST (cudaStreamEndCapture (stream, &made));
    MUST (cudaGraphInstantiate (&graph, made, 0));
}

/* Two kernels lie ready; the window is from an end to an end, its last part by time. */
static void rate (double seconds)
{
    const int ahead = 3;
    cudaEvent_t events[ahead];
    uint64_t begin = 0, last = 0, end = 0;
    double count = 0;
    for (int i = 0; i < ahead; i++)
        MUST (cudaEventCreateWithFlags (&events[i], cudaEventDisableTiming));
    for (unsigned turn = 0;; turn++) {
        if (turn >= (unsigned) ahead) {
            MUST (cudaEventSynchronize (events[turn % ahead]));
            uint64_t now = now_ns ();
            if (begin == 0) {
                begin = last = now;
                end = begin + (uint64_t) (seconds * 1e9);
            } else if (now >= end) {
                count += (double) (end - last) / (double) (now - last);
                break;
            } else {
                count++;
                last = now;
            }
        }
        work<<<blocks, threads, 0, stream>>> (sink, iterations);
        MUST (cudaEventRecord (events[turn % ahead], stream));
    }
    printf ("%.6f\n", count / seconds);
}

int main (int count, char **words)
{
    char line[128];
    int processors, each;
    bool serves = count == 4 && strcmp (words[1], "serve") == 0, busy = count == 5 && strcmp (words[1], "busy") == 0;
    if (!serves && !busy) {
        fprintf (stderr, "usage: work serve MILLISECONDS KERNELS | busy MILLISECONDS THREADS PER_SM\n");
        return 2;
    }
    MUST (cudaSetDeviceFlags (cudaDeviceScheduleSpin));
    MUST (cudaSetDevice (0));
    MUST (cudaDeviceGetAttribute (&processors, cudaDevAttrMultiProcessorCount, 0));
    threads = serves ? 1024 : atoi (words[3]);
    MUST (cudaOccupancyMaxActiveBlocksPerMultiprocessor (&each, work, threads, 0));
    blocks = processors * (serves ? each : std::min (each, atoi (words[4])));
    MUST (cudaStreamCreateWithFlags (&stream, cudaStreamNonBlocking));
    MUST (cudaMalloc ((void **) &sink, sizeof (float)));
    int kernels = serves ? atoi (words[3]) : 1;
    iterations = iterations_for (atof (words[2]) / kernels);
    if (serves) {
        make_graph (kernels);
        for (int i = 0; i < 20; i++)
            serve ();
    }
    printf ("ready\n");
    for (fflush (stdout); fgets (line, sizeof line, stdin) != NULL; fflush (stdout)) {
        double first, seconds;
        unsigned seed;
        if (serves && sscanf (line, "open %lf %lf %u", &first, &seconds, &seed) == 3)
            offered (first, seconds, seed, false);
        else if (serves && sscanf (line, "launches %lf %lf %u", &first, &seconds, &seed) == 3)
            offered (first, seconds, seed, true);
        else if (busy && sscanf (line, "rate %lf", &seconds) == 1)
            rate (seconds);
        else
            return 2;
    }
    _exit (0);
}
