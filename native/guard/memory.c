/*
 * The container's memory: copied out once, copied back once. It can be a file's that does not answer (FUSE, NFS), or its
 * process can be forked or executed, which takes seconds when it is large. Runs in the tenant's thread.
 */
#include "clock.h"
#include "memory.h"
#include "process.h"
#include "tenant.h"
#include "wait.h"

#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* While the container's memory kept this thread waiting, the number of the one that called can have come to mean a stranger. */
static bool is_caller (const struct tenant *tenant, pid_t thread)
{
    const struct process *process = tenant->current;

    if (process == NULL || guard_now () - atomic_load_explicit (&tenant->called_at, memory_order_relaxed) < THREAD_SOON_NS)
        return true;
    return syscall (SYS_tgkill, process->pid, thread, 0) == 0 && process_is_there (process);
}

static ssize_t copy (struct tenant *tenant, pid_t thread, bool is_out, const struct iovec *local, const struct iovec *remote,
                     unsigned count)
{
    bool is_right = tenant == NULL || is_caller (tenant, thread);
    struct process *current = tenant != NULL ? wait_begin (tenant, thread) : NULL;
    ssize_t done = !is_right ? -1
                   : is_out ? process_vm_readv (thread, local, count, remote, count, 0)
                            : process_vm_writev (thread, local, count, remote, count, 0);

    if (tenant != NULL)
        wait_end (tenant, current);
    return done;
}

bool memory_read (struct tenant *tenant, pid_t thread, uint64_t address, void *to, size_t size)
{
    struct iovec local = { to, size }, remote = { (void *) (uintptr_t) address, size };

    return size == 0 || copy (tenant, thread, true, &local, &remote, 1) == (ssize_t) size;
}

/* To read more in vain costs more than a second reading. */
#define GUESS_MOST 4096u

/* Programs make a call with the same struct and the same params, on their stack, again and again. */
static struct params_guess *guess_of (struct tenant *tenant, uint64_t address, uint32_t request)
{
    return &tenant->guesses[(address >> 3 ^ address >> 9 ^ request) % TENANT_GUESSES];
}

bool memory_read_head (struct tenant *tenant, pid_t thread, uint64_t address, uint32_t request, size_t size)
{
    struct params_guess guess = *guess_of (tenant, address, request);
    struct iovec local[2] = { { tenant->head, size }, { tenant->params, guess.size } };
    struct iovec remote[2] = { { (void *) (uintptr_t) address, size }, { (void *) (uintptr_t) guess.params, guess.size } };
    bool is_guessed = guess.address == address && guess.request == request && guess.size != 0;
    ssize_t done = copy (tenant, thread, true, local, remote, is_guessed ? 2 : 1);

    tenant->guessed = (struct params_guess) { .address = address, .request = request };
    if (is_guessed && tenant->params_used < guess.size)
        tenant->params_used = guess.size;
    if (done < (ssize_t) size)
        return false;
    tenant->guessed.params = guess.params;
    tenant->guessed.size = (uint32_t) ((size_t) done - size);
    return true;
}

/* The driver reads some params by a size of its own: what is not there must not be an earlier call's, nor a guess. */
static void clear_rest (struct tenant *tenant, uint32_t size)
{
    if (tenant->params_used > size)
        memset (tenant->params + size, 0, tenant->params_used - size);
    tenant->params_used = size;
}

bool memory_read_params (struct tenant *tenant, pid_t thread, uint64_t params, uint32_t size)
{
    const struct params_guess *guessed = &tenant->guessed;
    bool is_guessed = size == 0 || (guessed->params == params && guessed->size >= size);

    if (!is_guessed && size <= GUESS_MOST)
        *guess_of (tenant, guessed->address, guessed->request) =
            (struct params_guess) { guessed->address, params, guessed->request, size };
    if (tenant->params_used < size)
        tenant->params_used = size;
    if (!is_guessed && !memory_read (tenant, thread, params, tenant->params, size))
        return false;
    clear_rest (tenant, size);
    return true;
}

bool memory_write_all (struct tenant *tenant, pid_t thread, const struct memory_piece *pieces, unsigned count)
{
    struct iovec local[8], remote[8];
    unsigned used = 0;
    size_t whole = 0;

    for (unsigned i = 0; i < count && used < 8; i++) {
        if (pieces[i].size == 0)
            continue;
        local[used] = (struct iovec) { (void *) (uintptr_t) pieces[i].from, pieces[i].size };
        remote[used++] = (struct iovec) { (void *) (uintptr_t) pieces[i].address, pieces[i].size };
        whole += pieces[i].size;
    }
    return used == 0 || copy (tenant, thread, false, local, remote, used) == (ssize_t) whole;
}
