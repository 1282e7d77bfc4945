/*
 * A library to be preloaded: it changes what the CUDA library asks of the driver. INTERPOSE says how:
 *   wfi           SET_CTXSW_PREEMPTION_MODE (0x20801210): compute is to stop between kernels alone
 *   each          GPFIFO_SCHEDULE of a group (0xa06c0101) becomes one call (0xa06f0103) for each of its channels
 *   ended         then each channel, and the group, is to end: bEnable 0; groups of the graphics engine alone
 *   all-but-one   the same, without the channel that was made last, in groups of several
 *   first         a group is started when its first channel was made, and not for those that are made later; it gets a timeslice in its place
 * INTERPOSE_OUT: a file, to which a line is added for each such call: what was done, channels, status. Layouts: nvos.h.
 */
#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHANNELS 1024u
#define TIMESLICE_US 2048u

struct preemption {
    uint32_t flags, channel, graphics, compute;
};

static struct alloc channels[CHANNELS], groups[CHANNELS]; /* groups: of the graphics engine */
static unsigned channel_count, group_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_mode (const char *word)
{
    const char *mode = getenv ("INTERPOSE");

    return mode != NULL && strcmp (mode, word) == 0;
}

static void note (const char *what, unsigned count, uint32_t status)
{
    const char *path = getenv ("INTERPOSE_OUT");
    int file = path != NULL ? open (path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;

    if (file < 0)
        return;
    dprintf (file, "%s %u %#x\n", what, count, (unsigned) status);
    close (file);
}

static bool is_first (const struct alloc *call)
{
    unsigned count = 0;

    pthread_mutex_lock (&lock);
    for (unsigned i = 0; i < channel_count; i++)
        count += channels[i].client == call->client && channels[i].parent == call->parent;
    pthread_mutex_unlock (&lock);
    return count == 1;
}

static void note_object (const struct alloc *call, uint32_t status)
{
    pthread_mutex_lock (&lock);
    if (is_channel (call) && status == 0 && channel_count < CHANNELS)
        channels[channel_count++] = *call;
    if (call->number == GROUP && status == 0 && engine_of (call) == GRAPHICS && group_count < CHANNELS)
        groups[group_count++] = *call;
    pthread_mutex_unlock (&lock);
}

static bool is_graphics (const struct control *call)
{
    bool found = false;

    pthread_mutex_lock (&lock);
    for (unsigned i = 0; i < group_count; i++)
        found |= groups[i].client == call->client && groups[i].object == call->object;
    pthread_mutex_unlock (&lock);
    return found;
}

/* Of the last one the group's own call is left out, if one is to be. */
static int schedule_channels (int file, unsigned long request, struct control *call, bool leaves_one)
{
    unsigned last = CHANNELS, count = 0;
    int result = 0;

    pthread_mutex_lock (&lock);
    for (unsigned i = 0; i < channel_count; i++)
        if (channels[i].client == call->client && channels[i].parent == call->object) {
            last = i;
            count++;
        }
    call->status = 0;
    for (unsigned i = 0; i < channel_count && call->status == 0 && result == 0; i++) {
        struct control one = *call;

        if (channels[i].client != call->client || channels[i].parent != call->object || (leaves_one && count > 1 && i == last))
            continue;
        one.object = channels[i].object;
        one.command = SCHEDULE_CHANNEL;
        result = call_driver (file, request, &one);
        call->status = one.status;
    }
    pthread_mutex_unlock (&lock);
    note ("schedule", count, call->status);
    return count != 0 ? result : call_driver (file, request, call);
}

/* Of a group that was started. */
static void end_all (int file, unsigned long request, const struct control *call)
{
    uint8_t off[3] = { 0 };
    struct control one = *call;

    one.params = (uintptr_t) off;
    pthread_mutex_lock (&lock);
    for (unsigned i = 0; i < channel_count; i++) {
        if (channels[i].client != call->client || channels[i].parent != call->object)
            continue;
        one.object = channels[i].object;
        one.command = SCHEDULE_CHANNEL;
        (void) call_driver (file, request, &one);
    }
    pthread_mutex_unlock (&lock);
    one.object = call->object;
    one.command = SCHEDULE_GROUP;
    note ("ended", (unsigned) call_driver (file, request, &one), one.status);
}

int ioctl (int file, unsigned long request, ...)
{
    uint32_t number = (uint32_t) request & 0xff, status;
    struct control *call;
    va_list list;
    void *argument;
    int result;

    va_start (list, request);
    argument = va_arg (list, void *);
    va_end (list);
    call = argument;
    if (!is_followed (request))
        return call_driver (file, request, argument);
    if (number == CONTROL && call->command == SCHEDULE_GROUP && (is_mode ("each") || is_mode ("all-but-one")))
        return schedule_channels (file, request, call, is_mode ("all-but-one"));
    if (number == CONTROL && call->command == SCHEDULE_GROUP && is_mode ("first")) {
        uint64_t slice = TIMESLICE_US;

        call->status = 0;
        note ("not started", 0, control (file, call->client, call->object, SET_TIMESLICE, &slice, sizeof (slice)));
        return 0;
    }
    if (number == CONTROL && call->command == SET_PREEMPTION && is_mode ("wfi") && call->params != 0) {
        struct preemption *params = (void *) (uintptr_t) call->params;

        params->flags |= 1;
        params->compute = 0;
    }
    result = call_driver (file, request, argument);
    if (number == CONTROL && call->command == SCHEDULE_GROUP && is_mode ("ended") && is_graphics (call))
        end_all (file, request, call);
    if (number == CONTROL && call->command == SET_PREEMPTION)
        note ("preemption", 0, call->status);
    if (number == ALLOC && result == 0) {
        status = status_of (argument, request);
        note_object (argument, status);
        if (is_mode ("first") && is_channel (argument) && status == 0 && is_first (argument)) {
            const struct alloc *made = argument;
            uint8_t on[3] = { 1 };

            note ("started", 1, control (file, made->client, made->parent, SCHEDULE_GROUP, on, sizeof (on)));
        }
    }
    return result;
}
