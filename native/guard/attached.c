/* See attached.h, and guard.h for what callers promise. */
#include "attached.h"
#include "tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REQUEST_CONTROL 0xc020462au /* _IOWR ('F', 0x2a, 32 bytes) */
#define CONTROL_DISABLE_CHANNELS 0x2080110bu
#define MAX_CHANNELS 1024

struct attached {
    struct attached *next;
    uint32_t id;
    int pidfd;
    struct limits_node node;
    bool frozen;
    uint64_t frozen_since, frozen_ns;
    uint32_t count;
    struct guard_channel channels[];
};

struct attached_list {
    pthread_mutex_t lock;
    struct attached *first;
};

struct control_head { /* NVOS54 */
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};

struct disable_params { /* ctrl2080fifo.h */
    uint8_t disable, spare[3];
    uint32_t count;
    uint8_t more[16];
    uint32_t clients[RM_FREEZE_MAX], channels[RM_FREEZE_MAX];
};
_Static_assert (sizeof (struct disable_params) == 536, "FIFO_DISABLE_CHANNELS");

struct attached_list *attached_create (void)
{
    struct attached_list *list = calloc (1, sizeof (*list));

    if (list != NULL)
        pthread_mutex_init (&list->lock, NULL);
    return list;
}

static bool is_node (const struct limits_node *node, int descriptor)
{
    struct stat status;

    return fstat (descriptor, &status) == 0 &&
           (node->inode == 0 ? S_ISCHR (status.st_mode) && status.st_rdev == node->device
                             : status.st_dev == node->device && status.st_ino == node->inode);
}

/* Channels of one descriptor, client and subdevice, from `first` on, as many as a call takes; where the rest begin. */
static uint32_t switch_some (const struct attached *process, uint32_t first, int copy, bool frozen)
{
    const struct guard_channel *channels = process->channels;
    struct disable_params params = { .disable = frozen };
    struct control_head head = { .client = channels[first].client,
                                 .object = channels[first].subdevice,
                                 .command = CONTROL_DISABLE_CHANNELS,
                                 .params = (uint64_t) (uintptr_t) &params,
                                 .params_size = sizeof (params) };
    uint32_t at = first;

    for (; at < process->count && params.count < RM_FREEZE_MAX && channels[at].descriptor == channels[first].descriptor &&
           channels[at].client == head.client && channels[at].subdevice == head.object;
         at++) {
        params.clients[params.count] = head.client;
        params.channels[params.count++] = channels[at].channel;
    }
    /* A call that fails is about channels that are gone: the process is ending, and nothing is to be done about it. */
    (void) ioctl (copy, REQUEST_CONTROL, &head);
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
    for (uint32_t at = 0; at < process->count;) {
        int number = process->channels[at].descriptor;
        int copy = (int) syscall (SYS_pidfd_getfd, process->pidfd, number, 0);

        if (copy >= 0 && is_node (&process->node, copy))
            for (; at < process->count && process->channels[at].descriptor == number; calls++)
                at = switch_some (process, at, copy, frozen);
        else
            while (at < process->count && process->channels[at].descriptor == number)
                at++;
        if (copy >= 0)
            close (copy);
    }
    if (!frozen)
        process->frozen_ns += now - process->frozen_since;
    process->frozen = frozen;
    process->frozen_since = now;
    return calls;
}

static void end (struct attached *process)
{
    switch_all (process, false);
    close (process->pidfd);
    free (process);
}

void attached_destroy (struct attached_list *list)
{
    while (list->first != NULL) {
        struct attached *process = list->first;

        list->first = process->next;
        end (process);
    }
    pthread_mutex_destroy (&list->lock);
    free (list);
}

int attached_add (struct attached_list *list, uint32_t id, int pidfd, const struct limits_node *node,
                  const struct guard_channel *channels, uint32_t count)
{
    struct attached *process;

    if (count > MAX_CHANNELS || (id & GUARD_ATTACHED) == 0)
        return -EINVAL;
    process = calloc (1, sizeof (*process) + count * sizeof (*channels));
    if (process == NULL)
        return -ENOMEM;
    process->id = id;
    process->node = *node;
    process->count = count;
    if (count > 0)
        memcpy (process->channels, channels, count * sizeof (*channels));
    process->pidfd = fcntl (pidfd, F_DUPFD_CLOEXEC, 0);
    if (process->pidfd < 0) {
        free (process);
        return -errno;
    }
    pthread_mutex_lock (&list->lock);
    process->next = list->first;
    list->first = process;
    pthread_mutex_unlock (&list->lock);
    return 0;
}

int attached_remove (struct attached_list *list, uint32_t id)
{
    int result = -ENOENT;

    pthread_mutex_lock (&list->lock);
    for (struct attached **place = &list->first; *place != NULL;) {
        struct attached *process = *place;

        if (process->id != id) {
            place = &process->next;
            continue;
        }
        *place = process->next;
        end (process);
        result = 0;
    }
    pthread_mutex_unlock (&list->lock);
    return result;
}

static bool alive (const struct attached *process)
{
    return syscall (SYS_pidfd_send_signal, process->pidfd, 0, NULL, 0) == 0 || errno == EPERM;
}

int attached_freeze (struct attached_list *list, uint32_t id, bool frozen)
{
    int result = -ENOENT;

    pthread_mutex_lock (&list->lock);
    for (struct attached *process = list->first; process != NULL; process = process->next)
        if (process->id == id && alive (process)) {
            result = (result > 0 ? result : 0) + switch_all (process, frozen);
        }
    pthread_mutex_unlock (&list->lock);
    return result;
}

int attached_status (struct attached_list *list, uint32_t id, struct guard_attached *status)
{
    int result = -ENOENT;

    *status = (struct guard_attached) { 0 };
    pthread_mutex_lock (&list->lock);
    for (struct attached *process = list->first; process != NULL; process = process->next)
        if (process->id == id && alive (process)) {
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
