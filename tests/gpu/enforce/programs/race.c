/*
 * Processes that race to the limit, then take and give in turn.
 *
 * usage: race PROCESSES BYTES SECONDS
 * First each takes pieces of BYTES until refused: at the end less than one piece may be free, or a refusal came too
 * early. Then for SECONDS each takes and gives pieces of random sizes: what all of them were granted at
 * any moment, counted after a grant and before a return (so never too much), is the "most" that is printed.
 */
#include "check.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PIECES 4096

struct common {
    atomic_uint arrived[4];
    atomic_ullong sum, most;
    atomic_ullong grants, refusals, others; /* others: refusals that are not CUDA_ERROR_OUT_OF_MEMORY */
};

static struct common *common;
static unsigned processes;

static void meet (unsigned where)
{
    atomic_fetch_add (&common->arrived[where], 1);
    while (atomic_load (&common->arrived[where]) < processes)
        usleep (100);
}

static bool take (CUdeviceptr *address, size_t bytes)
{
    CUresult result = cuMemAlloc (address, bytes);
    if (result != CUDA_SUCCESS) {
        atomic_fetch_add (result == CUDA_ERROR_OUT_OF_MEMORY ? &common->refusals : &common->others, 1);
        return false;
    }
    unsigned long long now = atomic_fetch_add (&common->sum, bytes) + bytes;
    unsigned long long most = atomic_load (&common->most);
    while (most < now && !atomic_compare_exchange_weak (&common->most, &most, now))
        ;
    atomic_fetch_add (&common->grants, 1);
    return true;
}

static void give (CUdeviceptr address, size_t bytes)
{
    atomic_fetch_sub (&common->sum, bytes);
    MUST (cuMemFree (address));
}

static void churn (unsigned seed, double seconds)
{
    static CUdeviceptr addresses[MAX_PIECES];
    static size_t sizes[MAX_PIECES];
    unsigned count = 0;
    uint64_t end = now_ns () + (uint64_t) (seconds * 1e9);
    while (now_ns () < end) {
        bool more = count == 0 || (count < MAX_PIECES && rand_r (&seed) % 100 < 60);
        if (more) {
            sizes[count] = (size_t) (1 + rand_r (&seed) % 64) * 2 * MIB;
            count += take (&addresses[count], sizes[count]);
            continue;
        }
        unsigned victim = (unsigned) rand_r (&seed) % count;
        give (addresses[victim], sizes[victim]);
        count--;
        addresses[victim] = addresses[count];
        sizes[victim] = sizes[count];
    }
    while (count > 0) {
        count--;
        give (addresses[count], sizes[count]);
    }
}

static void process (unsigned number, size_t bytes, double seconds)
{
    static CUdeviceptr addresses[MAX_PIECES];
    unsigned count = 0;
    begin_cuda ();
    CUdeviceptr warm;
    MUST (cuMemAlloc (&warm, bytes));
    MUST (cuMemFree (warm));
    meet (0);
    if (number == 0) {
        say ("total", memory_total ());
        say ("free_start", memory_free ());
    }
    meet (1);
    while (count < MAX_PIECES && take (&addresses[count], bytes))
        count++;
    meet (2);
    if (number == 0) {
        say ("free_full", memory_free ());
        say ("taken", atomic_load (&common->sum));
        wait_for_line ("full");
    }
    meet (3);
    for (unsigned i = 0; i < count; i++)
        give (addresses[i], bytes);
    churn (number + 1, seconds);
}

int main (int argc, char **argv)
{
    if (argc != 4)
        return 2;
    processes = (unsigned) atoi (argv[1]);
    size_t bytes = strtoull (argv[2], NULL, 10);
    common = mmap (NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (common == MAP_FAILED)
        return 1;
    for (unsigned number = 0; number < processes; number++) {
        pid_t child = fork ();
        if (child == -1)
            return 1;
        if (child == 0) {
            process (number, bytes, atof (argv[3]));
            exit (0);
        }
    }
    int status, failed = 0;
    while (wait (&status) != -1) {
        failed |= status != 0;
        /* Without it the others would wait for ever where processes meet. */
        for (unsigned where = 0; status != 0 && where < 4; where++)
            atomic_fetch_add (&common->arrived[where], processes);
    }
    say ("most", atomic_load (&common->most));
    say ("grants", atomic_load (&common->grants));
    say ("refusals", atomic_load (&common->refusals));
    say ("others", atomic_load (&common->others));
    return failed;
}
