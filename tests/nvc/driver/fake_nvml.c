/*
 * An NVML that fails as it is told at compile time; not the product's simulated one, which answers as a driver does.
 *
 * -DHANG_IN=f or -DCRASH_IN=f: the function in which to hang or crash (nvmlInitWithFlags, nvmlDeviceGetName).
 * -DINIT=n: what nvmlInitWithFlags returns. -DPROBE: the GPU's name lists what this process may still do.
 * -DWITHOUT_MIG, -DWITHOUT_CUDA: those symbols are missing, as in old drivers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef INIT
#define INIT 0
#endif
#define STRING_(x) #x
#define STRING(x) STRING_ (x)

static void behave (const char *function)
{
    (void) function;
#ifdef HANG_IN
    if (strcmp (function, STRING (HANG_IN)) == 0) {
        sigset_t all;
        sigfillset (&all);
        pthread_sigmask (SIG_BLOCK, &all, NULL);
        for (;;)
            pause ();
    }
#endif
#ifdef CRASH_IN
    if (strcmp (function, STRING (CRASH_IN)) == 0)
        raise (SIGSEGV);
#endif
}

/* nvmlPciInfo_t of nvml.h; only the three numbers are looked at. */
struct pci {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char id[32];
};

static void *thread (void *argument) { return argument; }

int nvmlInitWithFlags (unsigned flags)
{
    pthread_t id;
    (void) flags;
    behave (__func__);
  /* The real one starts threads; a filter that forbids them would break it. */
    if (pthread_create (&id, NULL, thread, NULL) != 0 || pthread_join (id, NULL) != 0)
        return 999;
    return INIT;
}

const char *nvmlErrorString (int error)
{
    switch (error) {
    case 9:
        return "Driver Not Loaded";
    case 18:
        return "Driver/library version mismatch";
    case 77:
        return "An Error Of The Future";
    default:
        return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion (char *text, unsigned length)
{
    snprintf (text, length, "%s", "535.104.05");
    return 0;
}

#ifndef WITHOUT_CUDA
int nvmlSystemGetCudaDriverVersion (int *version)
{
    *version = 12020;
    return 0;
}
#endif

int nvmlDeviceGetCount_v2 (unsigned *count)
{
    *count = 1;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2 (unsigned index, void **handle)
{
    *handle = &thread;
    return index == 0 ? 0 : 2;
}

#ifdef PROBE
static int probe (char *text, size_t length)
{
    int sum = 0;
    char *nothing[] = { NULL };
  /* Each must fail with EPERM; the letter of one that does not is listed. */
#define MUST_FAIL(letter, call)                                                                                                    \
    do {                                                                                                                           \
        errno = 0;                                                                                                                 \
        if ((call) >= 0 || errno != EPERM)                                                                                         \
            sum += snprintf (text + sum, length - (size_t) sum, "%c%d ", letter, errno);                                           \
    } while (0)
    text[0] = '\0';
    MUST_FAIL ('m', mount ("none", "/", "tmpfs", 0, NULL));
    MUST_FAIL ('u', unshare (CLONE_NEWUSER));
    MUST_FAIL ('n', unshare (CLONE_FILES));
    MUST_FAIL ('c', chroot ("/"));
    MUST_FAIL ('e', execve ("/bin/true", nothing, nothing));
    MUST_FAIL ('v', syscall (SYS_execveat, -1, "", nothing, nothing, 0));
  /* A namespace of its own by clone; a child that is born all the same says so by living on. */
    MUST_FAIL ('s', syscall (SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL));
    if (syscall (SYS_clone3, NULL, 0) >= 0 || errno != ENOSYS)
        sum += snprintf (text + sum, length - (size_t) sum, "3%d ", errno);
    MUST_FAIL ('p', ptrace (PTRACE_TRACEME, 0, 0, 0));
    MUST_FAIL ('4', socket (AF_INET, SOCK_STREAM, 0));
    MUST_FAIL ('6', socket (AF_INET6, SOCK_STREAM, 0));
    MUST_FAIL ('t', ioctl (2, TIOCSTI, "x"));
    MUST_FAIL ('k', mknod ("/x", S_IFCHR | 0600, 0));
    if (close (socket (AF_UNIX, SOCK_STREAM, 0)) < 0)
        sum += snprintf (text + sum, length - (size_t) sum, "no unix socket ");
    if (sum == 0)
        sum = snprintf (text, length, "confined");
    return 0;
}
#endif

int nvmlDeviceGetName (void *handle, char *text, unsigned length)
{
    (void) handle;
    behave (__func__);
#ifdef PROBE
    return probe (text, length);
#else
    snprintf (text, length, "%s", "Fake GPU");
    return 0;
#endif
}

int nvmlDeviceGetUUID (void *handle, char *text, unsigned length)
{
    (void) handle;
    snprintf (text, length, "%s", "GPU-00000000-1111-2222-3333-444444444444");
    return 0;
}

int nvmlDeviceGetPciInfo_v3 (void *handle, struct pci *info)
{
    (void) handle;
    info->domain = 0;
    info->bus = 0x65;
    info->device = 1;
    return 0;
}

int nvmlDeviceGetMinorNumber (void *handle, unsigned *minor)
{
    (void) handle;
    *minor = 3;
    return 0;
}

int nvmlDeviceGetBrand (void *handle, unsigned *brand)
{
    (void) handle;
    *brand = 2;
    return 0;
}

int nvmlDeviceGetCudaComputeCapability (void *handle, int *major, int *minor)
{
    (void) handle;
    *major = 9;
    *minor = 0;
    return 0;
}

#ifndef WITHOUT_MIG
int nvmlDeviceGetMigMode (void *handle, unsigned *current, unsigned *pending)
{
    (void) handle;
    *current = 0;
    *pending = 1;
    return 0;
}
#endif
