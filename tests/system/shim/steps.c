/*
 * steps: what cuMemAlloc and cuMemFree of 4 MiB take, and managed memory of that size, in instructions and system calls of the
 * calling thread: counted with the processor's trap flag, so by no tool that must be there and alike on every machine. A line
 * each: "alloc STEPS NUMBER:COUNT ..." and "managed ...", with the numbers of the system calls. x86-64.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#define SIZE ((size_t) 4 << 20)
#define NUMBERS 512
#define SYSCALL 0x050f
/* Not on the stack just below, which the compiler may use. */
#define TRAP(change)                                                                                                               \
    __asm__ volatile ("lea -128(%%rsp), %%rsp\n pushfq\n " change ", (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::: "cc", "memory")

typedef int (*allocate_t) (unsigned long long *, size_t, unsigned);

static unsigned steps, calls[NUMBERS];
static int (*take_plain) (unsigned long long *, size_t), (*give) (unsigned long long);
static allocate_t take_managed;

/* After an instruction: the next one may be a system call. */
static void trapped (int number, siginfo_t *information, void *context)
{
    const greg_t *registers = ((ucontext_t *) context)->uc_mcontext.gregs;

    (void) number;
    (void) information;
    steps++;
    if (*(const unsigned short *) registers[REG_RIP] == SYSCALL && registers[REG_RAX] >= 0 && registers[REG_RAX] < NUMBERS)
        calls[registers[REG_RAX]]++;
}

static void must (int result, const char *what)
{
    if (result == 0)
        return;
    fprintf (stderr, "%s: %d\n", what, result);
    exit (1);
}

static void pair (int managed)
{
    unsigned long long piece;

    must (managed ? take_managed (&piece, SIZE, 1) : take_plain (&piece, SIZE), "allocate");
    must (give (piece), "free");
}

static void count (const char *name, int managed)
{
    for (int i = 0; i < 5; i++)
        pair (managed);
    steps = 0;
    for (int i = 0; i < NUMBERS; i++)
        calls[i] = 0;
    TRAP ("orq $0x100");
    pair (managed);
    TRAP ("andq $-0x101");
    printf ("%s %u", name, steps);
    for (int i = 0; i < NUMBERS; i++)
        if (calls[i])
            printf (" %d:%u", i, calls[i]);
    printf ("\n");
}

int main (void)
{
    struct sigaction action = { .sa_sigaction = trapped, .sa_flags = SA_SIGINFO };
    void *library = dlopen ("libcuda.so.1", RTLD_NOW), *context;
    int device;

    if (!library)
        return 1;
    take_plain = (int (*) (unsigned long long *, size_t)) dlsym (library, "cuMemAlloc_v2");
    take_managed = (allocate_t) dlsym (library, "cuMemAllocManaged");
    give = (int (*) (unsigned long long)) dlsym (library, "cuMemFree_v2");
    must (((int (*) (unsigned)) dlsym (library, "cuInit")) (0), "cuInit");
    must (((int (*) (int *, int)) dlsym (library, "cuDeviceGet")) (&device, 0), "cuDeviceGet");
    must (((int (*) (void **, unsigned, int)) dlsym (library, "cuCtxCreate_v2")) (&context, 0, device), "cuCtxCreate");
    sigaction (SIGTRAP, &action, NULL);
    count ("alloc", 0);
    count ("managed", 1);
    return 0;
}
