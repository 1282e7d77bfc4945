/* See usage_page.h. Runs in the tenant's thread. */
#include "usage_page.h"
#include "guard_private.h"
#include "tenant.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#define CHUNK 128u

static bool get (int file, void *to, size_t size, size_t at) { return pread (file, to, size, (off_t) at) == (ssize_t) size; }

/* The row among those of a GPU. */
static int find_row (int file, size_t rows, const struct usage_gpu *gpu, pid_t pid, struct process_usage *found)
{
    struct usage_row chunk[CHUNK];

    if (gpu->first > USAGE_ROWS || gpu->count > USAGE_ROWS - gpu->first)
        return -ESTALE;
    for (uint32_t done = 0; done < gpu->count; done += CHUNK) {
        uint32_t count = gpu->count - done < CHUNK ? gpu->count - done : CHUNK;

        if (!get (file, chunk, count * sizeof (chunk[0]), rows + (gpu->first + done) * sizeof (chunk[0])))
            return -ESTALE;
        for (uint32_t i = 0; i < count; i++)
            if (chunk[i].pid == (uint32_t) pid) {
                *found = (struct process_usage) { .own = chunk[i].own, .duplicated = chunk[i].duplicated };
                return 0;
            }
    }
    return -ENOENT;
}

/* What the driver reported of the process on the GPU, and when. 0; -ENOENT: it has no row; -ESTALE: there is no answer that counts now. */
static int find (int file, const uint8_t uuid[16], pid_t pid, uint64_t now, struct process_usage *found, uint64_t *asked_ns)
{
    struct {
        uint32_t magic, version, index, prober;
    } head;
    struct usage_head copy;
    uint64_t sequence;
    size_t at;
    int result = -ESTALE;

    if (file < 0 || !get (file, &head, sizeof (head), offsetof (struct usage_page, magic)) || head.magic != USAGE_MAGIC ||
        head.version != USAGE_VERSION || head.index > 1)
        return -ESTALE;
    at = offsetof (struct usage_page, copies) + head.index * sizeof (struct usage);
    if (!get (file, &copy, sizeof (copy), at))
        return -ESTALE;
    for (uint32_t i = 0; i < copy.gpu_count && i < SHARE_MAX_GPUS && result == -ESTALE; i++) {
        const struct usage_gpu *gpu = &copy.gpus[i];

        if (memcmp (gpu->uuid, uuid, sizeof (gpu->uuid)) != 0)
            continue;
        if (gpu->asked_ns == 0 || gpu->asked_ns > now || now - gpu->asked_ns > USAGE_FRESH_NS)
            return -ESTALE;
        *asked_ns = gpu->asked_ns;
        result = find_row (file, at + offsetof (struct usage, rows), gpu, pid, found);
    }
    /* Written twice more meanwhile: this thread was held up. */
    return get (file, &sequence, sizeof (sequence), at) && sequence == copy.sequence ? result : -ESTALE;
}

bool usage_page_take (struct tenant *tenant, struct process *process, uint64_t now)
{
    uint64_t since = process->asked_at > process->entered_at ? process->asked_at : process->entered_at;
    uint64_t asked_at[SHARE_MAX_GPUS], first = UINT64_MAX;
    struct process_usage usage[SHARE_MAX_GPUS];

    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        if (find (tenant->guard->contention, tenant->limits.gpus[gpu].uuid, process->pid, now, &usage[gpu], &asked_at[gpu]) != 0)
            return false;
        first = asked_at[gpu] < first ? asked_at[gpu] : first;
    }
    /* Before this process was there, its number may have been another one's. */
    if (first <= since)
        return process->asked_at != 0;
    for (uint32_t gpu = 0; gpu < tenant->limits.gpu_count; gpu++) {
        process->driver_usage[gpu] = usage[gpu].own;
        process->driver_duplicated[gpu] = usage[gpu].duplicated;
    }
    process->asked_at = first;
    process->asked_falls = rm_reported_falls (tenant->rm) - 1; /* memory may have been freed since */
    return true;
}
