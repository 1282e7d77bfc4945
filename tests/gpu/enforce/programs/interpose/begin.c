/*
 * A library to be preloaded: how the groups of the graphics engine begin. BEGIN, four lists of words with slashes between them (GROUP/NEXT/START/LATER): what is
 * done when a group was made, before each channel after its first one until "on" succeeded, in place of its GPFIFO_SCHEDULE (nothing: that call), and
 * 1.5 seconds after the first one. (A channel that UVM does not know yet keeps its group from being started: 0x40.)
 *   on off             GPFIFO_SCHEDULE of the group, bEnable 1, 0
 *   each each-off      the same (0xa06f0103) of each of its channels
 *   rest but-last      bEnable 1 of each but the first, the last
 *   slice              SET_TIMESLICE, 8192 us
 *   preempt            PREEMPT, waited for, 100 ms at most
 *   level              SET_INTERLEAVE_LEVEL 1, then 0
 *   stop go stop-last  FIFO_DISABLE_CHANNELS of all channels, bDisable 1, 0; of the last one
 *   cilp cilp-channel  GR_SET_CTXSW_PREEMPTION_MODE of the group, of its first channel: compute stops at any instruction
 *   child groups       GET_CHILD_HANDLE: a channel of the group, a group of its device
 *   channels           GET_ALLOCATED_CHANNELS of the first runlists
 *   clone clone-delayed clone-plain clone-plain-delayed  another channel as the last one, with DELAY_CHANNEL_SCHEDULING, in an address space that is not UVM's
 *   none               nothing
 * INTERPOSE_OUT: a file, to which a line is added for each word: list, word, a number, status. Layouts: nvos.h, ctrl0000client.h, ctrl2080fifo.h, ctrla06c.h.
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

#define KNOWN 1024u
#define SUBDEVICE 0x2080u
#define PREEMPT 0xa06c0105u
#define SET_INTERLEAVE_LEVEL 0xa06c0107u
#define DISABLE_CHANNELS 0x2080110bu
#define CILP_SET 1u
#define CILP 2u
#define GET_ALLOCATED_CHANNELS 0x20801119u
#define GET_CHILD_HANDLE 0xd05u
/* The driver's own numbers of its classes (generated/g_kernel_channel*_nvoc.h, 535 to 595). */
#define OF_CHANNEL 0x5d8d70u
#define OF_GROUP 0x2b5b80u
#define RUNLISTS 4u
#define SLICE_US 8192u
#define PREEMPT_US 100000u
#define LATER_US 1500000u
#define ADDRESS_SPACE 0x90f1u
#define CONTEXT_SHARE 0x9067u
#define SHARE_ASYNC 1u
#define ALLOC_REQUEST 0xc030462bul

struct alloc_call { /* NVOS64 */
    struct alloc made;
    uint64_t rights;
    uint32_t params_size, flags, status, pad;
};
struct disable {
    uint8_t is_off, pad[3];
    uint32_t count;
    uint8_t rest[16];
    uint32_t clients[64], channels[64];
};
struct child {
    uint32_t parent, number, object;
};
struct allocated {
    uint32_t runlist, mask[128];
};
struct preempt {
    uint8_t waits, has_timeout, pad[2];
    uint32_t timeout;
};
struct preemption {
    uint32_t flags, channel, graphics, compute;
    uint64_t route[2];
};
struct known {
    struct alloc made;
    int file;
    bool is_on;
};
enum { AT_GROUP, AT_NEXT, AT_START, LATER };

static struct known groups[KNOWN], channels[KNOWN], subdevices[KNOWN];
static uint32_t channel_params[92]; /* of the last channel */
static unsigned group_count, channel_count, subdevice_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_t later;

static void note (unsigned list, const char *word, uint32_t number, uint32_t status)
{
    const char *path = getenv ("INTERPOSE_OUT");
    int file = path != NULL ? open (path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;

    if (file < 0)
        return;
    dprintf (file, "%u %s %u %#x\n", list, word, (unsigned) number, (unsigned) status);
    close (file);
}

static uint32_t of_group (const struct known *group, uint32_t command, void *params, uint32_t size)
{
    return control (group->file, group->made.client, group->made.object, command, params, size);
}

static uint32_t of_subdevice (const struct known *group, uint32_t command, void *params, uint32_t size)
{
    for (unsigned i = 0; i < subdevice_count; i++)
        if (subdevices[i].made.client == group->made.client && subdevices[i].made.parent == group->made.parent)
            return control (group->file, group->made.client, subdevices[i].made.object, command, params, size);
    return NO_STATUS;
}

static bool is_in (const struct known *channel, const struct known *group)
{
    return channel->made.client == group->made.client && channel->made.parent == group->made.object;
}

/* Of its channels without the first, the last: how many, and the last status that is not 0. */
static uint32_t schedule (const struct known *group, bool is_on, unsigned first, unsigned last, uint32_t *count)
{
    uint32_t status = 0, all = 0, at = 0, got;

    for (unsigned i = 0; i < channel_count; i++)
        all += is_in (&channels[i], group);
    for (unsigned i = 0; i < channel_count; i++) {
        uint8_t params[3] = { is_on };

        if (!is_in (&channels[i], group) || ++at <= first || at > all - last)
            continue;
        got = control (group->file, group->made.client, channels[i].made.object, SCHEDULE_CHANNEL, params, sizeof (params));
        status = got != 0 ? got : status;
        ++*count;
    }
    return status;
}

static uint32_t disable (const struct known *group, bool is_off, bool is_last, uint32_t *count)
{
    struct disable params = { .is_off = is_off };

    for (unsigned i = 0; i < channel_count; i++)
        if (is_in (&channels[i], group) && params.count < 64) {
            params.count = is_last ? 0 : params.count;
            params.clients[params.count] = group->made.client;
            params.channels[params.count++] = channels[i].made.object;
        }
    *count = params.count;
    return of_subdevice (group, DISABLE_CHANNELS, &params, sizeof (params));
}

static uint32_t set_cilp (const struct known *group, bool is_of_channel)
{
    struct preemption params = { .flags = CILP_SET, .channel = group->made.object, .compute = CILP };

    for (unsigned i = channel_count; i-- > 0;)
        if (is_of_channel && is_in (&channels[i], group))
            params.channel = channels[i].made.object;
    return of_subdevice (group, SET_PREEMPTION, &params, sizeof (params));
}

static uint32_t child_of (const struct known *group, uint32_t parent, uint32_t number, uint32_t *found)
{
    struct child params = { parent, number, 0 };
    uint32_t status = control (group->file, group->made.client, group->made.client, GET_CHILD_HANDLE, &params, sizeof (params));

    *found = params.object != 0;
    return status;
}

static void count_channels (const struct known *group, unsigned list)
{
    for (uint32_t runlist = 0; runlist < RUNLISTS; runlist++) {
        struct allocated params = { .runlist = runlist };
        uint32_t status = of_subdevice (group, GET_ALLOCATED_CHANNELS, &params, sizeof (params)), count = 0;

        for (unsigned i = 0; i < 128; i++)
            count += (uint32_t) __builtin_popcount (params.mask[i]);
        note (list, "channels", count, status);
    }
}

static uint32_t allocate (const struct known *group, uint32_t parent, uint32_t number, void *params, uint32_t *handle)
{
    static uint32_t next = 0x7e000000;
    struct alloc_call call = { .made = { group->made.client, parent, ++next, number, (uintptr_t) params }, .status = NO_STATUS };

    *handle = next;
    return call_driver (group->file, ALLOC_REQUEST, &call) == 0 ? call.status : NO_STATUS;
}

static uint32_t make_again (const struct known *group, bool is_plain, bool is_delayed, unsigned list)
{
    uint32_t params[92], space[12] = { 0 }, share[3] = { 0, SHARE_ASYNC, 0 }, handle, parent = group->made.object;
    uint32_t number = channels[channel_count - 1].made.number;

    memcpy (params, channel_params, sizeof (params));
    params[5] = is_delayed ? params[5] | DELAY : params[5] & ~DELAY;
    if (is_plain) {
        note (list, "space", 0, allocate (group, group->made.parent, ADDRESS_SPACE, space, &share[0]));
        note (list, "share", 0, allocate (group, parent, CONTEXT_SHARE, share, &handle));
        params[6] = handle;
        params[7] = 0;
    }
    return allocate (group, parent, number, params, &handle);
}

static void act (struct known *group, unsigned list, const char *word)
{
    uint8_t on[3] = { strcmp (word, "on") == 0 };
    uint64_t slice = SLICE_US;
    struct preempt preempt = { 1, 1, { 0 }, PREEMPT_US };
    uint32_t number = 0, status = 0;

    if (strcmp (word, "channels") == 0)
        count_channels (group, list);
    if (strcmp (word, "on") == 0 || strcmp (word, "off") == 0)
        status = of_group (group, SCHEDULE_GROUP, on, sizeof (on));
    else if (strcmp (word, "each") == 0 || strcmp (word, "each-off") == 0)
        status = schedule (group, word[4] == '\0', 0, 0, &number);
    else if (strcmp (word, "rest") == 0 || strcmp (word, "but-last") == 0)
        status = schedule (group, true, word[0] == 'r', word[0] == 'b', &number);
    else if (strcmp (word, "slice") == 0)
        status = of_group (group, SET_TIMESLICE, &slice, sizeof (slice));
    else if (strcmp (word, "preempt") == 0)
        status = of_group (group, PREEMPT, &preempt, sizeof (preempt));
    else if (strcmp (word, "level") == 0)
        for (uint32_t level = 2; level-- != 0 && status == 0;)
            status = of_group (group, SET_INTERLEAVE_LEVEL, &level, sizeof (level));
    else if (strcmp (word, "stop") == 0 || strcmp (word, "go") == 0 || strcmp (word, "stop-last") == 0)
        status = disable (group, word[0] == 's', strcmp (word, "stop-last") == 0, &number);
    else if (strcmp (word, "cilp") == 0 || strcmp (word, "cilp-channel") == 0)
        status = set_cilp (group, word[4] != '\0');
    else if (strncmp (word, "clone", 5) == 0 && channel_count != 0)
        status = make_again (group, strstr (word, "plain") != NULL, strstr (word, "delayed") != NULL, list);
    else if (strcmp (word, "child") == 0)
        status = child_of (group, group->made.object, OF_CHANNEL, &number);
    else if (strcmp (word, "groups") == 0)
        status = child_of (group, group->made.parent, OF_GROUP, &number);
    group->is_on |= strcmp (word, "on") == 0 && status == 0;
    note (list, word, number, status);
}

/* Whether there was a word. */
static bool act_all (struct known *group, unsigned list)
{
    char words[256], *rest = words, *word = words, *next;

    snprintf (words, sizeof (words), "%s", getenv ("BEGIN") != NULL ? getenv ("BEGIN") : "");
    for (unsigned i = 0; i <= list; i++)
        word = strsep (&rest, "/");
    if (word == NULL || *word == '\0')
        return false;
    while ((next = strsep (&word, ",")) != NULL)
        act (group, list, next);
    return true;
}

static void *act_later (void *nothing)
{
    bool has_words = false;

    usleep (LATER_US);
    pthread_mutex_lock (&lock);
    for (unsigned i = 0; i < group_count; i++)
        has_words |= act_all (&groups[i], LATER);
    pthread_mutex_unlock (&lock);
    note (LATER, "done", has_words, 0);
    return nothing;
}

static void add (struct known *list, unsigned *count, const struct alloc *made, int file)
{
    if (*count < KNOWN)
        list[(*count)++] = (struct known) { *made, file, false };
}

static struct known *group_of (uint32_t client, uint32_t object)
{
    for (unsigned i = 0; i < group_count; i++)
        if (groups[i].made.client == client && groups[i].made.object == object)
            return &groups[i];
    return NULL;
}

static void was_made (const struct alloc *call, int file)
{
    if (call->number == SUBDEVICE)
        add (subdevices, &subdevice_count, call, file);
    if (call->number == GROUP && engine_of (call) == GRAPHICS) {
        add (groups, &group_count, call, file);
        (void) act_all (&groups[group_count - 1], AT_GROUP);
    }
    if (is_channel (call) && group_of (call->client, call->parent) != NULL) {
        if (call->params != 0)
            memcpy (channel_params, (const void *) (uintptr_t) call->params, sizeof (channel_params));
        add (channels, &channel_count, call, file);
    }
}

static void is_to_be_made (const struct alloc *call)
{
    struct known *group = is_channel (call) ? group_of (call->client, call->parent) : NULL;
    bool has_channels = false;

    for (unsigned i = 0; i < channel_count && group != NULL; i++)
        has_channels |= is_in (&channels[i], group);
    if (has_channels && !group->is_on)
        (void) act_all (group, AT_NEXT);
}

int ioctl (int file, unsigned long request, ...)
{
    uint32_t number = (uint32_t) request & 0xff;
    struct control *call;
    struct known *group;
    bool is_done = false;
    va_list list;
    void *argument;
    int result;

    va_start (list, request);
    argument = va_arg (list, void *);
    va_end (list);
    call = argument;
    if (!is_followed (request))
        return call_driver (file, request, argument);
    if (number == CONTROL && call->command == SCHEDULE_GROUP) {
        pthread_mutex_lock (&lock);
        group = group_of (call->client, call->object);
        is_done = group != NULL && act_all (group, AT_START);
        if (group != NULL && later == 0)
            (void) pthread_create (&later, NULL, act_later, NULL);
        pthread_mutex_unlock (&lock);
    }
    if (is_done) {
        call->status = 0;
        return 0;
    }
    if (number == ALLOC) {
        pthread_mutex_lock (&lock);
        is_to_be_made (argument);
        pthread_mutex_unlock (&lock);
    }
    result = call_driver (file, request, argument);
    if (number != ALLOC || result != 0)
        return result;
    pthread_mutex_lock (&lock);
    if (status_of (argument, request) == 0)
        was_made (argument, file);
    pthread_mutex_unlock (&lock);
    return result;
}
