/*
 * See attached.h, and guard.h for what callers promise. The phase thread makes nothing but calls of the driver here: descriptors were
 * copied, and checked, when the process was attached, in the supervisor's main thread. What is closed is closed by the guard's thread
 * for that, for the driver takes up to a tenth of a second to give back what its clients have.
 */
#include "attached.h"
#include "clock.h"
#include "guard.h"
#include "guard_private.h"
#include "held_files.h"
#include "tenant.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_CHANNELS 1024

struct attached {
    struct attached *next;
    int pidfd;
    struct limits_node node;
    bool frozen;
    uint64_t frozen_since, frozen_ns;
    uint32_t count;
    struct guard_channel channels[]; /* descriptors are ours, the same ones side by side; those of one that ended are closed */
};

struct attached_list {
    struct guard *guard;
    pthread_mutex_t lock;
    struct attached *first;
};

struct attached_list *attached_create (struct guard *guard)
{
    struct attached_list *list = calloc (1, sizeof (*list));

    if (list == NULL)
        return NULL;
    pthread_mutex_init (&list->lock, NULL);
    list->guard = guard;
    return list;
}

/* fstat(2) itself: the library's takes a path, which a supervisor's list of system calls has none of (supervisor/confine.c). */
static bool is_node (const struct limits_node *node, int descriptor)
{
    struct stat found;

    return syscall (SYS_fstat, descriptor, &found) == 0 &&
           (node->inode == 0 ? S_ISCHR (found.st_mode) && found.st_rdev == node->device
                             : found.st_dev == node->device && found.st_ino == node->inode);
}

/* Channels of one descriptor, client and subdevice, from `first` on, as many as a call takes; where the rest begin. */
static uint32_t switch_some (const struct attached *process, uint32_t first, bool frozen)
{
    const struct guard_channel *channels = process->channels;
    NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params = { .bDisable = frozen };
    NVOS54_PARAMETERS head = { .hClient = channels[first].client,
                               .hObject = channels[first].subdevice,
                               .cmd = NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
                               .params = (NvP64) (uintptr_t) &params,
                               .paramsSize = sizeof (params) };
    uint32_t at = first;

    for (; at < process->count && params.numChannels < RM_FREEZE_MAX && channels[at].descriptor == channels[first].descriptor &&
           channels[at].client == head.hClient && channels[at].subdevice == head.hObject;
         at++) {
        params.hClientList[params.numChannels] = head.hClient;
        params.hChannelList[params.numChannels++] = channels[at].channel;
    }
    /* A call that fails is about channels that are gone: the process is ending, and nothing is to be done about it. */
    (void) ioctl (channels[first].descriptor, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (head)), &head);
    return at;
}

/* How many calls it took. */
static int switch_all (struct attached *process, bool frozen)
{
    uint64_t now = guard_now ();
    int calls = 0;

    /* The driver counts stops: each is undone by one start. */
    if (process->frozen == frozen)
        return 0;
    for (uint32_t at = 0; at < process->count; calls++)
        at = switch_some (process, at, frozen);
    if (!frozen)
        process->frozen_ns += now - process->frozen_since;
    process->frozen = frozen;
    process->frozen_since = now;
    return calls;
}

/* Its memory on the GPU goes with the last copy of its descriptors. */
static void let_go (struct attached_list *list, struct attached *process)
{
    for (uint32_t i = 0; i < process->count; i++)
        if (i == 0 || process->channels[i].descriptor != process->channels[i - 1].descriptor)
            closer_add (list->guard, process->channels[i].descriptor);
    process->count = 0;
}

static void end (struct attached_list *list, struct attached *process)
{
    switch_all (process, false);
    let_go (list, process);
    close (process->pidfd);
    free (process);
}

/* Copies of the descriptors in the place of the caller's. false: one is not what it should be, or there are none left. */
static bool take_copies (struct attached *process, const struct guard_channel *channels, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        int copy = i > 0 && channels[i].descriptor == channels[i - 1].descriptor ? process->channels[i - 1].descriptor
                   : is_node (&process->node, channels[i].descriptor) ? fcntl (channels[i].descriptor, F_DUPFD_CLOEXEC, 0)
                                                                      : -1;

        if (copy < 0)
            return false;
        process->channels[process->count] = channels[i];
        process->channels[process->count++].descriptor = copy;
    }
    return true;
}

void attached_destroy (struct attached_list *list)
{
    while (list->first != NULL) {
        struct attached *process = list->first;

        list->first = process->next;
        end (list, process);
    }
    pthread_mutex_destroy (&list->lock);
    free (list);
}

int attached_add (struct attached_list *list, int pidfd, const struct limits_node *node, const struct guard_channel *channels,
                  uint32_t count)
{
    struct attached *process;

    if (count > MAX_CHANNELS)
        return -EINVAL;
    process = calloc (1, sizeof (*process) + count * sizeof (*channels));
    if (process == NULL)
        return -ENOMEM;
    process->node = *node;
    process->pidfd = fcntl (pidfd, F_DUPFD_CLOEXEC, 0);
    if (process->pidfd < 0 || !take_copies (process, channels, count)) {
        int error = process->pidfd < 0 ? errno : EBADF;

        let_go (list, process);
        if (process->pidfd >= 0)
            close (process->pidfd);
        free (process);
        return -error;
    }
    pthread_mutex_lock (&list->lock);
    process->next = list->first;
    list->first = process;
    pthread_mutex_unlock (&list->lock);
    return 0;
}

static bool alive (const struct attached *process)
{
    return syscall (SYS_pidfd_send_signal, process->pidfd, 0, NULL, 0) == 0 || errno == EPERM;
}

int attached_freeze (struct attached_list *list, bool frozen)
{
    int result = -ENOENT;

    pthread_mutex_lock (&list->lock);
    for (struct attached *process = list->first; process != NULL; process = process->next)
        if (alive (process))
            result = (result > 0 ? result : 0) + switch_all (process, frozen);
    pthread_mutex_unlock (&list->lock);
    guard_changed (list->guard);
    return result;
}

int attached_status (struct attached_list *list, struct guard_attached *status)
{
    int result = -ENOENT;

    *status = (struct guard_attached) { 0 };
    pthread_mutex_lock (&list->lock);
    for (struct attached *process = list->first; process != NULL; process = process->next)
        if (!alive (process)) {
            let_go (list, process);
        } else {
            uint64_t frozen_ns = process->frozen_ns + (process->frozen ? guard_now () - process->frozen_since : 0);

            status->processes++;
            status->frozen |= process->frozen;
            if (frozen_ns > status->frozen_ns)
                status->frozen_ns = frozen_ns;
            result = 0;
        }
    pthread_mutex_unlock (&list->lock);
    return result;
}
