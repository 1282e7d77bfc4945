/*
 * A library to be preloaded before interpose.c's: it changes which engine the CUDA library's channels are of, and how they begin. ENGINES, words with commas
 * between them:
 *   facts         changes nothing: INTERPOSE_OUT gets the engines of groups, flags of channels, params of copy objects
 *   move=F:T      groups, their channels and copy objects that say engine F (NV2080_ENGINE_TYPE_*) say T
 *   delayed       channels of compute are made with DELAY_CHANNEL_SCHEDULING, of which the CUDA library's are not
 *   unasked       GR_SET_CTXSW_PREEMPTION_MODE is not called: compute keeps the driver's own mode
 *   lone          channels of the graphics engine's groups are made without a group, and started by a call for each
 *   idle          once its first group runs a thread waits for its first channel to be idle (0x41), again and again, 5 s at most each time
 *   reset         once its first group runs a thread resets its channels of compute with RESET_CHANNEL, one after the other, again and again
 * Layouts: nvos.h, alloc_channel.h, clb0b5sw.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ALLOC 0x2bu
#define CONTROL 0x2au
#define IDLE_CHANNELS 0xc0384641ul
#define CONTROL_REQUEST 0xc020462aul
#define GROUP 0xa06cu
#define SET_PREEMPTION 0x20801210u
#define SCHEDULE_GROUP 0xa06c0101u
#define SCHEDULE_CHANNEL 0xa06f0103u
#define RESET_CHANNEL 0x906f0102u
#define GRAPHICS 1u
#define DELAY 0x40u
#define IDLE_TIMES 20
#define IDLE_US 5000000u
#define IDLE_FLAGS (1u << 4 | 4u << 8) /* CHANNEL_SINGLE, IDLE_GRAPHICS; SPIN */
#define RESETS 60
#define RESET_FIRST_US 1000000
#define RESET_PAUSE_US 25000
#define KNOWN 256u

struct alloc { /* NVOS64 as far as it is NVOS21 */
    uint32_t client, parent, object, number;
    uint64_t params;
};
struct control {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
struct idle {
    uint32_t client, device, channel, count;
    uint64_t clients, devices, channels;
    uint32_t flags, timeout, status, pad;
};
struct known { /* a group, or a channel */
    uint32_t client, object, parent, space;
    int file;
};

static struct known groups[KNOWN], channels[KNOWN];
static unsigned group_count, channel_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t waiting;

static const char *word (const char *name)
{
    const char *words = getenv ("ENGINES"), *at = words != NULL ? strstr (words, name) : NULL;

    return at;
}

static void note (const char *what, uint32_t first, uint32_t second, uint32_t third)
{
    const char *path = getenv ("INTERPOSE_OUT");
    int file = path != NULL ? open (path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;

    if (file < 0)
        return;
    dprintf (file, "%s %#x %#x %#x\n", what, (unsigned) first, (unsigned) second, (unsigned) third);
    close (file);
}

static int make (int file, unsigned long request, void *argument)
{
    static int (*next) (int, unsigned long, ...);

    if (next == NULL)
        *(void **) &next = dlsym (RTLD_NEXT, "ioctl");
    return next (file, request, argument);
}

static uint32_t moved (uint32_t engine)
{
    const char *move = word ("move=");
    unsigned from, to;

    return move != NULL && sscanf (move, "move=%u:%u", &from, &to) == 2 && engine == from ? to : engine;
}

static struct known *find (struct known *list, unsigned count, uint32_t client, uint32_t object)
{
    for (unsigned i = 0; i < count; i++)
        if (list[i].client == client && list[i].object == object)
            return &list[i];
    return NULL;
}

static uint32_t status_of (const void *argument, uint32_t size)
{
    uint32_t status;

    memcpy (&status, (const char *) argument + (size == 48 ? 40 : 28), sizeof (status));
    return status;
}

/* What a channel or group was, so that the caller's struct says what it said. */
static int allocate (int file, unsigned long request, struct alloc *call, uint32_t size)
{
    uint32_t *params = (void *) (uintptr_t) call->params, parent = call->parent, kept[33] = { 0 };
    bool is_channel = (call->number & 0xff) == 0x6f, is_group = call->number == GROUP, is_copy = (call->number & 0xff) == 0xb5;
    struct known *group = is_channel ? find (groups, group_count, call->client, parent) : NULL;
    int result;

    if (params == NULL || !(is_channel || is_group || is_copy))
        return make (file, request, call);
    memcpy (kept, params, is_channel ? 132 : is_group ? 20 : 8);
    if (is_group)
        params[3] = moved (params[3]);
    else if (is_copy && params[0] == 1)
        params[1] = moved (params[1]);
    else if (is_channel) {
        params[32] = moved (params[32]);
        params[5] = word ("delayed") != NULL && group != NULL ? params[5] | DELAY : params[5];
        if (word ("lone") != NULL && group != NULL) {
            call->parent = group->parent;
            params[6] = 0;
            params[7] = group->space;
            params[32] = GRAPHICS;
        }
    }
    result = make (file, request, call);
    note (is_group     ? "group"
          : is_channel ? "channel"
                       : "copy",
          is_channel ? params[5]
          : is_group ? params[3]
                     : params[0],
          is_channel ? params[32]
          : is_group ? 0
                     : params[1],
          status_of (call, size));
    pthread_mutex_lock (&lock);
    if (result == 0 && status_of (call, size) == 0 && is_group && kept[3] == GRAPHICS && group_count < KNOWN)
        groups[group_count++] = (struct known) { call->client, call->object, parent, kept[2], file };
    if (result == 0 && status_of (call, size) == 0 && group != NULL && channel_count < KNOWN)
        channels[channel_count++] = (struct known) { call->client, call->object, parent, 0, file };
    pthread_mutex_unlock (&lock);
    call->parent = parent;
    params[is_group ? 3 : is_channel ? 32 : 1] = kept[is_group ? 3 : is_channel ? 32 : 1];
    if (is_channel)
        memcpy (params + 5, kept + 5, 12);
    return result;
}

static int start_each (int file, unsigned long request, struct control *call)
{
    int result = 0;

    for (unsigned i = 0; i < channel_count && result == 0; i++) {
        struct control one = *call;

        if (channels[i].client != call->client || channels[i].parent != call->object)
            continue;
        one.object = channels[i].object;
        one.command = SCHEDULE_CHANNEL;
        result = make (file, request, &one);
        call->status = one.status;
        note ("started alone", one.object, 0, one.status);
    }
    return result;
}

static void *wait_idle (void *nothing)
{
    for (int i = 0; i < IDLE_TIMES; i++) {
        /* One of them has the kernels that are running. */
        const struct known *group = &groups[0], *channel = &channels[(unsigned) i % channel_count];
        struct idle call = { .client = channel->client,
                             .device = group->parent,
                             .channel = channel->object,
                             .count = 1,
                             .flags = IDLE_FLAGS,
                             .timeout = IDLE_US };
        struct timespec from, to;
        int result;

        usleep (200000);
        clock_gettime (CLOCK_MONOTONIC, &from);
        call.status = 0xffff;
        result = make (group->file, IDLE_CHANNELS, &call);
        clock_gettime (CLOCK_MONOTONIC, &to);
        note ("idle: ms, status, result", (uint32_t) ((to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000),
              call.status, (uint32_t) result);
    }
    return nothing;
}

/* As libcuda does after a trap: the graphics engine, the reason DEFAULT. */
static void *reset_channels (void *nothing)
{
    usleep (RESET_FIRST_US);
    for (unsigned i = 0; i < RESETS; i++) {
        const struct known *channel = &channels[i % channel_count];
        uint32_t params[4] = { GRAPHICS };
        struct control call = { .client = channel->client,
                                .object = channel->object,
                                .command = RESET_CHANNEL,
                                .params = (uintptr_t) params,
                                .params_size = sizeof (params),
                                .status = 0xffff };
        int result;

        usleep (RESET_PAUSE_US);
        result = make (channel->file, CONTROL_REQUEST, &call);
        note ("reset by itself: result, status", (uint32_t) result, call.status, 0);
    }
    note ("resets done", RESETS, 0, 0);
    return nothing;
}

int ioctl (int file, unsigned long request, ...)
{
    uint32_t number = (uint32_t) request & 0xff, size = (uint32_t) request >> 16 & 0x3fff;
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
    if (number == ALLOC)
        return allocate (file, request, argument, size);
    if (control->command == SET_PREEMPTION && control->params != 0) {
        const uint32_t *mode = (void *) (uintptr_t) control->params; /* flags, channel, graphics, compute */

        note ("mode: flags, of a group, compute", mode[0], find (groups, group_count, control->client, mode[1]) != NULL, mode[3]);
    }
    if (control->command == RESET_CHANNEL && control->params != 0) {
        const uint32_t *reset = (void *) (uintptr_t) control->params; /* engine, subdevice, reason */

        note ("reset: engine, reason, of a channel of compute", reset[0], reset[2],
              find (channels, channel_count, control->client, control->object) != NULL);
    }
    if (control->command == SET_PREEMPTION && word ("unasked") != NULL) {
        note ("not asked", control->command, 0, 0);
        control->status = 0;
        return 0;
    }
    if (control->command == SCHEDULE_GROUP && word ("lone") != NULL &&
        find (groups, group_count, control->client, control->object) != NULL)
        return start_each (file, request, control);
    result = make (file, request, argument);
    if (control->command == SCHEDULE_GROUP)
        note ("start, of a group of compute", find (groups, group_count, control->client, control->object) != NULL, 0,
              control->status);
    if (control->command == SCHEDULE_GROUP && word ("idle") != NULL && channel_count != 0 && waiting == 0)
        (void) pthread_create (&waiting, NULL, wait_idle, NULL);
    if (control->command == SCHEDULE_GROUP && word ("reset") != NULL && channel_count != 0 && waiting == 0)
        (void) pthread_create (&waiting, NULL, reset_channels, NULL);
    return result;
}
