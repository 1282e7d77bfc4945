/* See copies.h. Runs in the monitor. */
#include "copies.h"

#include "rm/nv_numbers.h"
#include "rm/nv_params.h"
#include "rm/nvos.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The driver counts stops: the supervisor makes one at a time, and one that failed may have counted. */
#define STARTS 3u

struct copies_process {
    int files[CHANNEL_DESCRIPTORS]; /* -1: none */
    struct channel_attach request;
};

static void release (struct copies_process *process)
{
    for (unsigned i = 0; i < CHANNEL_DESCRIPTORS; i++)
        if (process->files[i] >= 0)
            close (process->files[i]);
    free (process);
}

int copies_add (struct copies *copies, const struct channel_attach *request, const int *files, unsigned count)
{
    struct copies_process *process;
    int pidfd;

    if (copies->count == COPIES_PROCESSES)
        return -E2BIG;
    process = malloc (sizeof (*process));
    if (process == NULL)
        return -ENOMEM;
    memset (process->files, 0xff, sizeof (process->files));
    process->request = *request;
    pidfd = count != 0 ? fcntl (files[0], F_DUPFD_CLOEXEC, 0) : -1;
    for (unsigned i = 1; pidfd >= 0 && i < count; i++)
        if ((process->files[i - 1] = fcntl (files[i], F_DUPFD_CLOEXEC, 0)) < 0) {
            close (pidfd);
            pidfd = -1;
        }
    if (pidfd < 0) {
        release (process);
        return -EMFILE;
    }
    copies->pidfds[copies->count] = pidfd;
    copies->processes[copies->count++] = process;
    return 0;
}

void copies_forget (struct copies *copies, unsigned place)
{
    release (copies->processes[place]);
    close (copies->pidfds[place]);
    copies->processes[place] = copies->processes[--copies->count];
    copies->pidfds[place] = copies->pidfds[copies->count];
}

static void start_one (int file, uint32_t client, uint32_t subdevice, uint32_t channel)
{
    NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS params = { .numChannels = 1, .hClientList = { client }, .hChannelList = { channel } };
    NVOS54_PARAMETERS control = { .hClient = client,
                                  .hObject = subdevice,
                                  .cmd = NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
                                  .params = (uint64_t) (uintptr_t) &params,
                                  .paramsSize = sizeof (params) };

    /* One that fails is of a channel that is gone. */
    (void) ioctl (file, NV_REQUEST (NV_ESC_RM_CONTROL, sizeof (control)), &control);
}

void copies_start (const struct copies *copies)
{
    for (unsigned i = 0; i < copies->count; i++) {
        const struct copies_process *process = copies->processes[i];

        for (unsigned k = 0; k < STARTS * process->request.count; k++) {
            unsigned at = k % process->request.count, place = process->request.channels[at].place;

            if (place < CHANNEL_DESCRIPTORS && process->files[place] >= 0)
                start_one (process->files[place], process->request.channels[at].client, process->request.channels[at].subdevice,
                           process->request.channels[at].channel);
        }
    }
}
