/* The container's memory, by /proc/PID/mem (guard/memory.c), and what lies behind a call's params. */
#include "bare_tenant.h"
#include "guard/memory.h"
#include "guard/tenant.h"
#include "tap.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PARAMS 64u
#define PAGE 4096u

static struct tenant *tenant; /* its lock is held, as in a call */

static bool read_params (const uint8_t *params, uint32_t size)
{
    return memory_read_params (tenant, getpid (), (uintptr_t) params, size);
}

static bool is_right (const uint8_t *params, uint32_t size)
{
    return read_params (params, size) && memcmp (tenant->params, params, size) == 0;
}

int main (void)
{
    static struct guard guard;
    static const uint8_t zeros[PAGE];
    uint8_t *pages = mmap (NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *other = pages + PAGE;
    uint8_t *shared = mmap (NULL, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    tenant = bare_tenant (&guard);
    guard.privsep.socket = -1;
    tenant->current = &tenant->processes[0];
    *tenant->current = (struct process) { .serial = TENANT_PROCESSES,
                                          .pid = getpid (),
                                          .pidfd = (int) syscall (SYS_pidfd_open, getpid (), 0),
                                          .memory = open ("/proc/self/mem", O_RDWR | O_CLOEXEC) };
    pthread_mutex_lock (&tenant->lock);
    for (size_t i = 0; i < 3 * PAGE; i++)
        pages[i] = (uint8_t) (1 + i * 7);

    tap_ok (is_right (pages, PARAMS), "params are read");
    tap_ok (is_right (other, 2 * PARAMS), "longer ones are");
    tap_ok (is_right (pages, 8) && memcmp (tenant->params + 8, zeros, PAGE) == 0, "and nothing of them lies behind shorter ones");
    tap_ok (read_params (NULL, 0) && memcmp (tenant->params, zeros, PAGE) == 0, "nor where there are none");
    tap_ok (!read_params ((const uint8_t *) 8, 8), "an address where nothing lies");
    tap_ok (!memory_read (tenant, getpid (), UINT64_MAX - 7, tenant->head, 8), "an address of the kernel's");
    tap_ok (!memory_read (tenant, getpid (), UINT64_C (1) << 63, tenant->head, 8), "or of no process's");
    munmap (other, PAGE);
    tap_ok (!read_params (other - 8, PARAMS), "half of them is gone: that is not the whole");
    tap_ok (is_right (other - 8, 8), "the half that is there is enough where the call says so");
    tap_ok (memory_write (tenant, getpid (), (uintptr_t) pages, zeros, 16) && memcmp (pages, zeros, 16) == 0,
            "what is written is there");
    tap_ok (!memory_write (tenant, getpid (), (uintptr_t) (other - 8), zeros, 16), "not beyond the end of a mapping");
    /* What the kernel's own copy would refuse; said in memory.c. */
    mprotect (pages, PAGE, PROT_READ);
    tap_ok (memory_write (tenant, getpid (), (uintptr_t) pages, "x", 1) && pages[0] == 'x',
            "private memory that is read-only takes an answer");
    tap_ok (!memory_write (tenant, getpid (), (uintptr_t) shared, "x", 1) && shared[0] == 0,
            "shared memory that is read-only does not");

    pthread_mutex_unlock (&tenant->lock);
    close (tenant->current->memory);
    close (tenant->current->pidfd);
    bare_end (tenant);
    return tap_done ();
}
