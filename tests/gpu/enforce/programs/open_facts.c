/*
 * What is not known of the driver, and rules depend on (docs/internals/guard.md):
 *   open_facts streams    64 streams mark a word each; says how many had within a second ("done 64")
 *   open_facts orphans N  N contexts; at a line, the CUDA library's clients of the resource manager are freed by their handles, while UVM's file
 *                         stays open; at another one the program ends. It says "made" and "freed", with how many there were.
 *   open_facts copies     copies from the host and back without end; "copies 1" after the first round of 512 MiB; at each line: how many rounds by then
 * Layouts: nvos.h.
 */
#define _GNU_SOURCE
#include "check.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of all headers; cuCtxCreate has other arguments from CUDA 13 on. */
CUresult CUDAAPI cuCtxCreate_v2 (CUcontext *context, unsigned flags, CUdevice device);

#define STREAMS 64u
#define CLIENTS 64u

static struct {
    int file;
    uint32_t handle;
} clients[CLIENTS];
static atomic_uint client_count;

/* Before those of preloaded libraries, which are called by it. */
int ioctl (int file, unsigned long request, ...)
{
    static int (*next) (int, unsigned long, ...);
    uint32_t call[12] = { 0 };
    va_list list;
    void *argument;
    int result;

    if (next == NULL)
        *(void **) &next = dlsym (RTLD_NEXT, "ioctl");
    va_start (list, request);
    argument = va_arg (list, void *);
    va_end (list);
    result = next (file, request, argument);
    if ((request & 0xffff) != ('F' << 8 | 0x2b) || (request >> 16 & 0x3fff) != sizeof (call) || result != 0)
        return result;
    memcpy (call, argument, sizeof (call)); /* NVOS64: client, parent, object, class, ..., status */
    if ((call[3] == 0 || call[3] == 1 || call[3] == 0x41) && call[10] == 0) {
        unsigned place = atomic_fetch_add (&client_count, 1);

        if (place < CLIENTS) {
            clients[place].file = dup (file);
            clients[place].handle = call[2];
        }
    }
    return result;
}

static const char mark[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                           ".visible .entry mark (.param .u64 word)\n{\n.reg .u64 %place;\n.reg .u32 %one;\n"
                           "ld.param.u64 %place, [word];\nmov.u32 %one, 1;\nst.global.u32 [%place], %one;\nret;\n}\n";

static int streams (void)
{
    CUstream made[STREAMS];
    CUmodule module;
    CUfunction function;
    CUdeviceptr words;
    unsigned done = 0;
    uint64_t until;

    begin_cuda ();
    MUST (cuModuleLoadData (&module, mark));
    MUST (cuModuleGetFunction (&function, module, "mark"));
    MUST (cuMemAlloc (&words, STREAMS * 4));
    for (unsigned i = 0; i < STREAMS; i++)
        MUST (cuStreamCreate (&made[i], CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < STREAMS; i++) {
        CUdeviceptr word = words + 4 * (CUdeviceptr) i;
        void *params[] = { &word };

        MUST (cuLaunchKernel (function, 1, 1, 1, 1, 1, 1, 0, made[i], params, NULL));
    }
    for (until = now_ns () + 1000000000u; done < STREAMS && now_ns () < until;) {
        done = 0;
        for (unsigned i = 0; i < STREAMS; i++)
            done += cuStreamQuery (made[i]) == CUDA_SUCCESS;
    }
    say ("done", done);
    _exit (0); /* what does not run is not waited for */
}

static int orphans (unsigned count)
{
    unsigned freed = 0, known;

    MUST (cuInit (0));
    for (unsigned i = 0; i < count; i++) {
        CUcontext context;

        MUST (cuCtxCreate_v2 (&context, 0, 0));
    }
    known = atomic_load (&client_count) < CLIENTS ? atomic_load (&client_count) : CLIENTS;
    say ("made", known);
    if (getchar () == EOF)
        _exit (0);
    for (unsigned i = 0; i < known; i++) {
        uint32_t release[4] = { clients[i].handle, clients[i].handle, clients[i].handle, 0xffff };

        freed += syscall (SYS_ioctl, clients[i].file, 0xc0104629ul, release) == 0 && release[3] == 0;
    }
    say ("freed", freed);
    (void) !getchar ();
    _exit (0);
}

/* Copies from the host and back by two streams, without end. */
static int copies (void)
{
    const size_t bytes = 64 * MIB;
    CUstream made[2];
    CUdeviceptr there[2];
    void *here[2];

    begin_cuda ();
    for (unsigned i = 0; i < 2; i++) {
        MUST (cuStreamCreate (&made[i], CU_STREAM_NON_BLOCKING));
        MUST (cuMemAlloc (&there[i], bytes));
        MUST (cuMemAllocHost (&here[i], bytes));
    }
    for (unsigned round = 0;; round++) {
        for (unsigned j = 0; j < 4; j++) {
            MUST (cuMemcpyHtoDAsync (there[0], here[0], bytes, made[0]));
            MUST (cuMemcpyDtoHAsync (here[1], there[1], bytes, made[1]));
        }
        MUST (cuStreamSynchronize (made[0]));
        MUST (cuStreamSynchronize (made[1]));
        if (round == 0)
            say ("copies", 1);
        if (poll (&(struct pollfd) { .fd = STDIN_FILENO, .events = POLLIN }, 1, 0) == 1) {
            if (getchar () == EOF)
                _exit (0);
            say ("copies", round + 1);
        }
    }
}

int main (int argc, char **argv)
{
    if (argc > 1 && strcmp (argv[1], "streams") == 0)
        return streams ();
    if (argc > 2 && strcmp (argv[1], "orphans") == 0)
        return orphans ((unsigned) atoi (argv[2]));
    if (argc > 1 && strcmp (argv[1], "copies") == 0)
        return copies ();
    fprintf (stderr, "usage: open_facts streams | orphans COUNT | copies\n");
    return 2;
}
