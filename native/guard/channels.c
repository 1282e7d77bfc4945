/*
 * The list of a tenant's compute channels, for whoever starts them when this process is gone (nvc/agent/thaw.py). A
 * mapped file: its version is odd while it is written. Written before channels are stopped, and when they come and go.
 */
#include "tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHANNELS_MAGIC 0x6c6e6863726d766eu
#define CHANNELS_MOST 8192u

struct channel_row {
    uint64_t start_time;
    int32_t pid, descriptor;
    uint32_t client, subdevice, channel;
    int32_t gpu;
};
struct channel_list {
    uint64_t magic;
    _Atomic uint64_t version;
    uint64_t device, inode; /* of the control node, as in limits */
    uint32_t count, missing; /* missing: channels that found no room */
    uint64_t spare[3];
    struct channel_row rows[];
};
_Static_assert (sizeof (struct channel_row) == 32 && sizeof (struct channel_list) == 64, "thaw.py reads this");
#define LIST_SIZE (sizeof (struct channel_list) + CHANNELS_MOST * sizeof (struct channel_row))

static uint32_t fill (struct tenant *tenant, const struct rm_channel *found, uint32_t count, uint32_t room)
{
    struct channel_list *list = tenant->channels;
    uint32_t used = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct process *process = process_by_serial (tenant, found[i].file);

        if (process == NULL || process->dead)
            continue;
        if (used < room)
            list->rows[used++] = (struct channel_row) {
                .start_time = process->start_time,
                .pid = process->pid,
                .descriptor = process_descriptor_of (process, found[i].client),
                .client = found[i].client,
                .subdevice = found[i].subdevice,
                .channel = found[i].channel,
                .gpu = found[i].gpu,
            };
        else
            list->missing++;
    }
    return used;
}

void channels_write (struct tenant *tenant)
{
    struct channel_list *list = tenant->channels;
    struct rm_channel *found;
    uint32_t count, all;
    off_t end;

    if (list == NULL || !tenant->channels_changed)
        return;
    all = rm_channels (tenant->rm, NULL, 0);
    count = all < CHANNELS_MOST ? all : CHANNELS_MOST;
    found = calloc (count + 1, sizeof (*found));
    if (found == NULL)
        return; /* next time */
    rm_channels (tenant->rm, found, count);
    tenant->channels_changed = false;
    /* Room is taken before it is written: a full /run is told here, and by SIGBUS otherwise. */
    end = (off_t) (sizeof (*list) + count * sizeof (struct channel_row));
    if (end > tenant->channels_end) {
        if (posix_fallocate (tenant->channels_file, 0, end) == 0)
            tenant->channels_end = end;
        else
            count = (uint32_t) (((size_t) tenant->channels_end - sizeof (*list)) / sizeof (struct channel_row));
    }
    atomic_fetch_add (&list->version, 1);
    list->missing = all - count;
    list->count = fill (tenant, found, count, count);
    atomic_fetch_add (&list->version, 1);
    free (found);
}

int channels_open (struct tenant *tenant, int file)
{
    struct channel_list *list;
    int error = posix_fallocate (file, 0, sizeof (*list)), own;

    if (error != 0)
        return -error;
    own = fcntl (file, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return -errno;
    list = mmap (NULL, LIST_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
    if (list == MAP_FAILED) {
        error = errno;
        close (own);
        return -error;
    }
    list->version = 0;
    list->count = list->missing = 0;
    for (uint32_t i = 0; i < tenant->limits.node_count && i < SHARE_MAX_NODES; i++)
        if (tenant->limits.nodes[i].kind == RM_NODE_CONTROL) {
            list->device = tenant->limits.nodes[i].device;
            list->inode = tenant->limits.nodes[i].inode;
            break;
        }
    list->magic = CHANNELS_MAGIC;
    tenant->channels = list;
    tenant->channels_file = own;
    tenant->channels_end = sizeof (*list);
    tenant->channels_changed = true;
    channels_write (tenant);
    return 0;
}

void channels_close (struct tenant *tenant)
{
    if (tenant->channels == NULL)
        return;
    munmap (tenant->channels, LIST_SIZE);
    close (tenant->channels_file);
    tenant->channels = NULL;
}
