/* What looking at the mappings of a process costs, of a tenant that makes no call, and that it misses none (guard/managed.c). */
#include "bare_tenant.h"
#include "guard/clock.h"
#include "guard/managed.h"
#include "guard/process.h"
#include "privsep_bed.h"
#include "supervisor/proc.h"
#include "tap.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define SECOND UINT64_C (1000000000)
#define PLACE UINT64_C (0x200000000000)

static struct tenant *tenant;
static struct process *process;

/* A program that maps something as the UVM node is mapped, and then executes another, on demand. */
static void play (int told, int done)
{
    char byte;
    int memory = memfd_create ("mapped", MFD_CLOEXEC);

    if (read (told, &byte, 1) != 1 ||
        mmap ((void *) (uintptr_t) PLACE, 4096, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, memory, (off_t) PLACE) == MAP_FAILED ||
        write (done, "", 1) != 1 || read (told, &byte, 1) != 1 || munmap ((void *) (uintptr_t) PLACE, 4096) != 0 ||
        write (done, "", 1) != 1 || read (told, &byte, 1) != 1)
        _exit (1);
    execl ("/bin/sh", "sh", "-c", "echo; read line", (char *) NULL);
    _exit (1);
}

/* It does the next thing. */
static bool go_on (int tell, int heard)
{
    char byte;

    return write (tell, "", 1) == 1 && read (heard, &byte, 1) == 1;
}

/* How often the monitor is asked in so many looks. */
static unsigned looks (unsigned count)
{
    unsigned before = atomic_load (&bed_asked);

    while (count-- > 0) {
        process->look_not_before = 0;
        process->look_at = tenant->look_at = guard_now ();
        managed_refresh (tenant, guard_now ());
    }
    return atomic_load (&bed_asked) - before;
}

int main (void)
{
    static struct guard guard;
    char path[32];
    int tell[2], hear[2];
    pid_t child;

    if (pipe (tell) != 0 || pipe (hear) != 0 || (child = fork ()) < 0)
        return 1;
    if (child == 0) {
        dup2 (tell[0], STDIN_FILENO);
        dup2 (hear[1], STDOUT_FILENO);
        play (STDIN_FILENO, STDOUT_FILENO);
    }
    tenant = bare_tenant (&guard);
    privsep_begin (&guard.privsep, privsep_bed (NULL, 0));
    tenant->limits.gpu_count = 1;
    process = &tenant->processes[0];
    snprintf (path, sizeof (path), "/proc/%d/mem", (int) child);
    *process = (struct process) { .serial = TENANT_PROCESSES,
                                  .pid = child,
                                  .start_time = proc_start_time (child),
                                  .pidfd = (int) syscall (SYS_pidfd_open, child, 0),
                                  .memory = open (path, O_RDWR | O_CLOEXEC),
                                  .look_delay = SECOND,
                                  .has_clients = true };
    pthread_mutex_lock (&tenant->lock);
    atomic_store (&tenant->called_at, guard_now ());
    tap_ok (looks (3) == 3, "each look of a tenant that calls the driver asks the monitor");
    atomic_store (&tenant->called_at, guard_now () - 40 * SECOND);
    tap_ok (looks (8) == 2, "and one of four of a tenant that does not");
    tap_ok (looks (1) == 1 && process->maps_left == 3 && go_on (tell[1], hear[0]) && looks (1) <= 1 && process->maps_left == 2 &&
                process->managed == 4096,
            "a mapping that was made since is seen without it"); /* which is asked for the address space then */
    process->has_mapped = true;
    tap_ok (looks (2) == 2, "of a process that announced a mapping it is asked each time");
    tap_ok (go_on (tell[1], hear[0]) && looks (1) == 1 && process->managed == 0, "and so until nothing is mapped any more");
    process->has_mapped = false;
    tap_ok (looks (2) == 1 && go_on (tell[1], hear[0]) && looks (1) == 1,
            "an address space that the process has left is asked for again");
    pthread_mutex_unlock (&tenant->lock);

    kill (child, SIGKILL);
    waitpid (child, NULL, 0);
    process_forget (tenant, process);
    bare_end (tenant);
    return tap_done ();
}
