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
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CHANNELS 1024u
#define ALLOC 0x2bu
#define CONTROL 0x2au
#define SET_PREEMPTION 0x20801210u
#define SCHEDULE_GROUP 0xa06c0101u
#define SCHEDULE_CHANNEL 0xa06f0103u
#define SET_TIMESLICE 0xa06c0103u
#define TIMESLICE_US 2048u
#define GROUP 0xa06cu
#define GRAPHICS 1u

struct alloc { /* NVOS64 as far as it is NVOS21 */
    uint32_t client, parent, object, number;
};
struct control {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
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

static int make (int file, unsigned long request, void *argument) { return (int) syscall (SYS_ioctl, file, request, argument); }

static uint32_t control_group (int file, uint32_t client, uint32_t group, uint32_t command, void *params, uint32_t size)
{
    struct control call = { client, group, command, 0, (uintptr_t) params, size, 0xffff };

    return make (file, 0xc020462aul, &call) == 0 ? call.status : 0xffff;
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

/* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS: 12 engine; NVOS21, NVOS64: 16 params. */
static uint32_t engine_of (const struct alloc *call)
{
    uint64_t params;
    uint32_t engine = 0;

    memcpy (&params, (const char *) call + 16, sizeof (params));
    if (params != 0)
        memcpy (&engine, (const char *) (uintptr_t) params + 12, sizeof (engine));
    return engine;
}

static void note_object (const struct alloc *call, uint32_t status)
{
    pthread_mutex_lock (&lock);
    if ((call->number & 0xff) == 0x6f && status == 0 && channel_count < CHANNELS)
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
        result = make (file, request, &one);
        call->status = one.status;
    }
    pthread_mutex_unlock (&lock);
    note ("schedule", count, call->status);
    return count != 0 ? result : make (file, request, call);
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
        (void) make (file, request, &one);
    }
    pthread_mutex_unlock (&lock);
    one.object = call->object;
    one.command = SCHEDULE_GROUP;
    note ("ended", (unsigned) make (file, request, &one), one.status);
}

int ioctl (int file, unsigned long request, ...)
{
    uint32_t number = (uint32_t) request & 0xff, size = (uint32_t) request >> 16 & 0x3fff, status = 0;
    struct control *control;
    va_list list;
    void *argument;
    int result;

    va_start (list, request);
    argument = va_arg (list, void *);
    va_end (list);
    control = argument;
    if (((request >> 8) & 0xff) != 'F' || (number != ALLOC && (number != CONTROL || size != sizeof (*control))))
        return make (file, request, argument);
    if (number == CONTROL && control->command == SCHEDULE_GROUP && (is_mode ("each") || is_mode ("all-but-one")))
        return schedule_channels (file, request, control, is_mode ("all-but-one"));
    if (number == CONTROL && control->command == SCHEDULE_GROUP && is_mode ("first")) {
        uint64_t slice = TIMESLICE_US;

        control->status = 0;
        note ("not started", 0, control_group (file, control->client, control->object, SET_TIMESLICE, &slice, sizeof (slice)));
        return 0;
    }
    if (number == CONTROL && control->command == SET_PREEMPTION && is_mode ("wfi") && control->params != 0) {
        struct preemption *params = (void *) (uintptr_t) control->params;

        params->flags |= 1;
        params->compute = 0;
    }
    result = make (file, request, argument);
    if (number == CONTROL && control->command == SCHEDULE_GROUP && is_mode ("ended") && is_graphics (control))
        end_all (file, request, control);
    if (number == CONTROL && control->command == SET_PREEMPTION)
        note ("preemption", 0, control->status);
    if (number == ALLOC && result == 0) {
        memcpy (&status, (char *) argument + (size == 48 ? 40 : 28), sizeof (status)); /* NVOS64, NVOS21 */
        note_object (argument, status);
        if (is_mode ("first") && (((struct alloc *) argument)->number & 0xff) == 0x6f && status == 0 && is_first (argument)) {
            const struct alloc *made = argument;
            uint8_t on[3] = { 1 };

            note ("started", 1, control_group (file, made->client, made->parent, SCHEDULE_GROUP, on, sizeof (on)));
        }
    }
    return result;
}
