/*
 * nvc-supervisor: one process a tenant, started by its monitor (monitor.c). It answers the tenant's seccomp listeners and
 * makes the tenant's driver calls (native/guard), keeps the tenant's on and off phases, and publishes its counters.
 *
 * Threads: main (this file) reads the plan and publishes; "nvc-guard" (tenant.c) answers notifications; "nvc-phases"
 * (phase_thread.c), one a GPU with a cap; "nvc-guard-close" (held_files.c) closes files of the driver.
 *
 * usage: nvc-supervisor SOCKET       a descriptor: the other end is the monitor's
 */
#include "channel.h"
#include "container.h"
#include "guard/guard.h"
#include "pages.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define MILLISECOND UINT64_C (1000000)
/* Between two publications, which changes of the tenant's status cause. */
#define PUBLISH_NS (20 * MILLISECOND)
/* Events of one kind are counted together for so long. */
#define EVENTS_NS (250 * MILLISECOND)
/* A change of limits waits for the driver's call that is in flight. */
#define RETRY_NS (1 * MILLISECOND)
/* A plan holds until there is another one. */
#define FOREVER_MS UINT32_MAX
/* After SIGKILL: a thread in state D cannot end sooner than what it waits for. */
#define END_NS (5000 * MILLISECOND)

struct supervisor {
    int monitor, plan_file, watch, counters_file;
    uint32_t tenant;
    bool has_listened; /* a tenant whose first listener is still to come is not over */
    bool is_attached; /* without a listener: channels of processes that ran already */
    struct guard *guard;
    struct guard_phases *phases;
    struct container container;
    struct plan plan;     /* in force, but for what is pending */
    struct plan next;     /* as read last */
    bool is_pending;      /* next is not wholly in force */
    uint64_t publish_at, events_at; /* not before these times (CLOCK_MONOTONIC) */
    uint32_t index;       /* of the valid counters */
    uint64_t event_count;
    struct counters counters;
};

static uint64_t now_ns (void)
{
    struct timespec now;

    clock_gettime (CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

static void put (const struct supervisor *self, const void *from, size_t size, size_t at)
{
    /* A sealed memfd of fixed size: only memory can be missing, and then the values before stay valid. */
    if (pwrite (self->counters_file, from, size, (off_t) at) != (ssize_t) size)
        return;
}

static void publish_events (struct supervisor *self)
{
    struct guard_event events[64];
    int count = guard_events (self->guard, events, 64);

    for (int i = 0; i < count; i++) {
        put (self, events + i, sizeof (events[0]),
             offsetof (struct counters_file, events) + self->event_count % COUNTERS_EVENTS * sizeof (events[0]));
        self->event_count++;
    }
    if (count > 0)
        put (self, &self->event_count, sizeof (self->event_count), offsetof (struct counters_file, event_count));
}

/* What is not to be had while the driver makes a call for the tenant stays what it was: -EBUSY. */
static int publish (struct supervisor *self)
{
    struct counters *counters = &self->counters;
    size_t used = offsetof (struct counters, processes);
    struct guard_status status;
    uint32_t index = !self->index;
    int count, gone, result;

    guard_take_changes (self->guard);
    result = self->is_attached ? 0 : guard_tenant_status (self->guard, self->tenant, &status);
    if (result == 0 && !self->is_attached)
        counters->status = status;
    count = guard_tenant_processes (self->guard, self->tenant, counters->processes, COUNTERS_PROCESSES);
    if (count >= 0)
        counters->process_count = (uint32_t) count < COUNTERS_PROCESSES ? (uint32_t) count : COUNTERS_PROCESSES;
    gone = guard_tenant_gone (self->guard, self->tenant);
    if (gone >= 0)
        counters->is_gone = gone != 0 && self->has_listened;
    if (self->is_attached) {
        memset (&counters->attached, 0, sizeof (counters->attached));
        (void) guard_attached_status (self->phases, GUARD_ATTACHED | self->tenant, &counters->attached);
        counters->is_gone = counters->attached.processes == 0;
    }
    counters->sees_driver = (uint32_t) guard_sees_driver (self->guard);
    counters->sees_exec = (uint32_t) guard_sees_exec (self->guard);
    counters->published_ns = now_ns ();
    used += counters->process_count * sizeof (counters->processes[0]);
    put (self, counters, used, offsetof (struct counters_file, counters) + index * sizeof (*counters));
    put (self, &index, sizeof (index), offsetof (struct counters_file, index));
    self->index = index;
    self->publish_at = counters->published_ns + PUBLISH_NS;
    return result;
}

/* The tenant's phase on one GPU, and whether it is frozen where it has none. */
static int apply_gpu (struct supervisor *self, uint32_t gpu)
{
    const struct plan_phase *phase = &self->next.phases[gpu], *before = &self->plan.phases[gpu];
    uint32_t number = self->is_attached ? GUARD_ATTACHED | self->tenant : self->tenant;
    struct guard_phase one = { .tenant = number, .gpu = gpu, .since = phase->since, .until = phase->until };
    int error = 0;

    if (memcmp (phase, before, sizeof (*phase)) != 0)
        error = guard_phases_set (self->phases, self->next.limits.gpus[gpu].uuid, phase->period != 0 ? phase->period : 1000, &one,
                                  phase->period != 0, FOREVER_MS);
    if (error != 0)
        return error;
    self->plan.phases[gpu] = *phase;
    if (self->next.slice[gpu] != self->plan.slice[gpu] && !self->is_attached)
        error = guard_tenant_slice (self->guard, self->tenant, gpu, self->next.slice[gpu]);
    self->plan.slice[gpu] = self->next.slice[gpu];
    if (self->next.is_frozen[gpu] != self->plan.is_frozen[gpu] && !self->is_attached)
        (void) guard_tenant_freeze (self->guard, self->tenant, gpu, self->next.is_frozen[gpu]);
    self->plan.is_frozen[gpu] = self->next.is_frozen[gpu];
    return error;
}

/* As much of the plan as can be put into force now. */
static void apply (struct supervisor *self)
{
    bool is_whole = true;

    if (memcmp (&self->next.limits, &self->plan.limits, sizeof (self->plan.limits)) != 0) {
        int error = self->is_attached ? 0 : guard_tenant_update (self->guard, self->tenant, &self->next.limits);

        if (error == 0)
            self->plan.limits = self->next.limits;
        else
            is_whole = error != -EBUSY; /* limits that are refused are never taken: those before stay */
    }
    for (uint32_t gpu = 0; gpu < self->next.limits.gpu_count && gpu < SHARE_MAX_GPUS; gpu++)
        is_whole &= apply_gpu (self, gpu) == 0;
    self->is_pending = !is_whole;
    if (is_whole)
        self->counters.generation = self->plan.generation = self->next.generation;
    (void) publish (self);
}

static void read_plan (struct supervisor *self)
{
    struct plan *plan = malloc (sizeof (*plan));

    /* One that cannot be read changes nothing. */
    if (plan != NULL && plan_read (self->plan_file, plan) == 0 && plan->limits.gpu_count == self->plan.limits.gpu_count) {
        self->next = *plan;
        apply (self);
    }
    free (plan);
}

static int start (struct supervisor *self)
{
    struct channel_start request;
    int files[3], error;
    unsigned count = 3;

    if (channel_receive (self->monitor, &request, sizeof (request), files, &count) != sizeof (request) ||
        request.head.operation != CHANNEL_START || count < 2)
        return -EPROTO;
    request.devices[CHANNEL_PATH - 1] = '\0';
    self->tenant = request.tenant & ~GUARD_ATTACHED;
    self->is_attached = (request.tenant & GUARD_ATTACHED) != 0;
    self->plan_file = files[0];
    self->counters_file = files[1];
    error = container_open (&self->container, request.pid, request.start_time);
    if (error == 0)
        error = plan_read (self->plan_file, &self->next);
    if (error != 0)
        return error;
    self->watch = inotify_init1 (IN_CLOEXEC | IN_NONBLOCK);
    {
        char path[32];

        snprintf (path, sizeof (path), "/proc/self/fd/%d", self->plan_file);
        if (self->watch < 0 || inotify_add_watch (self->watch, path, IN_MODIFY) < 0)
            return -errno;
    }
    /* Every thread that is started from here on has no more. */
    if (!guard_drop_rights ())
        return -EPERM;
    self->guard = guard_create (request.devices);
    if (self->guard == NULL)
        return -errno;
    if (count == 3)
        guard_set_contention (self->guard, files[2]);
    self->phases = guard_phases_create (self->guard);
    if (self->phases == NULL)
        return -ENOMEM;
    error = self->is_attached ? 0 : guard_tenant_add (self->guard, self->tenant, &self->next.limits);
    if (error != 0)
        return error;
    self->plan.limits = self->next.limits;
    /* The watch is there: a plan that was written since it was read is read again. */
    read_plan (self);
    return self->is_pending ? -EBUSY : 0;
}

static int attach (struct supervisor *self, const struct channel_attach *request, const int *files, unsigned count)
{
    struct limits_node node = { .kind = 1, .device = request->device, .inode = request->inode };
    struct guard_channel *channels;
    int result;

    if (count < 1 || request->count > CHANNEL_CHANNELS)
        return -EINVAL;
    channels = calloc (request->count + 1, sizeof (*channels));
    if (channels == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < request->count; i++) {
        if (request->channels[i].place >= count - 1) {
            free (channels);
            return -EINVAL;
        }
        channels[i] = (struct guard_channel) { .client = request->channels[i].client,
                                               .subdevice = request->channels[i].subdevice,
                                               .channel = request->channels[i].channel,
                                               .descriptor = files[1 + request->channels[i].place] };
    }
    result = guard_attach (self->phases, GUARD_ATTACHED | self->tenant, files[0], &node, channels, request->count);
    free (channels);
    return result;
}

/* The container's processes that called the driver, as last published. */
static unsigned known_processes (const struct supervisor *self, struct container_process *known)
{
    for (uint32_t i = 0; i < self->counters.process_count; i++)
        known[i] = (struct container_process) { self->counters.processes[i].pid, self->counters.processes[i].start_time };
    return self->counters.process_count;
}

static void end (struct supervisor *self)
{
    (void) publish (self);
    publish_events (self);
    guard_phases_destroy (self->phases);
    guard_destroy (self->guard);
}

/* The monitor is gone, and its copies of the listeners with it: this process is the last one that can end the container. */
static void end_container (struct supervisor *self)
{
    struct container_process known[COUNTERS_PROCESSES];
    uint64_t until = now_ns () + END_NS;
    unsigned count;

    if (self->is_attached) {
        end (self); /* its processes go on, and their channels with them */
        return;
    }
    (void) publish (self);
    count = known_processes (self, known);
    (void) container_end (&self->container, known, count);
    while (container_is_left (&self->container, known, count) && now_ns () < until)
        nanosleep (&(struct timespec) { .tv_nsec = (long) MILLISECOND }, NULL);
}

/* A request of the monitor. false: this process is to end. */
static bool serve (struct supervisor *self)
{
    static struct channel_attach request;
    int files[CHANNEL_DESCRIPTORS], result = -EPROTO;
    unsigned count = CHANNEL_DESCRIPTORS;
    ssize_t size = channel_receive (self->monitor, &request, sizeof (request), files, &count);
    bool goes_on = true;

    if (size <= 0) {
        end_container (self);
        return false;
    }
    if ((size_t) size >= sizeof (request.head))
        switch (request.head.operation) {
        case CHANNEL_LISTEN:
            result = count == 1 ? guard_tenant_listen (self->guard, self->tenant, files[0]) : -EINVAL;
            self->has_listened |= result == 0;
            break;
        case CHANNEL_ATTACH:
            result = size == sizeof (request) && self->is_attached ? attach (self, &request, files, count) : -EINVAL;
            break;
        case CHANNEL_PUBLISH:
            result = publish (self);
            publish_events (self);
            break;
        case CHANNEL_REMOVE:
            end (self);
            result = 0;
            goes_on = false;
            break;
        default:
            break;
        }
    for (unsigned i = 0; i < count; i++)
        close (files[i]);
    if (goes_on && request.head.operation != CHANNEL_PUBLISH)
        (void) publish (self);
    return channel_reply (self->monitor, result) && goes_on;
}

/* Milliseconds until then; -1: without end. */
static int wait_ms (uint64_t at, uint64_t now)
{
    return at == UINT64_MAX ? -1 : at > now ? (int) ((at - now + MILLISECOND - 1) / MILLISECOND) : 0;
}

static void run (struct supervisor *self)
{
    char discarded[4096];

    for (;;) {
        uint64_t now = now_ns (), at = self->is_pending ? now + RETRY_NS : UINT64_MAX;
        bool may_publish = now >= self->publish_at, may_tell = now >= self->events_at;
        struct pollfd waited[] = {
            { .fd = self->monitor, .events = POLLIN },
            { .fd = self->watch, .events = POLLIN },
            { .fd = may_publish ? guard_changed_descriptor (self->guard) : -1, .events = POLLIN },
            { .fd = may_tell ? guard_event_descriptor (self->guard) : -1, .events = POLLIN },
        };

        if (!may_publish && self->publish_at < at)
            at = self->publish_at;
        if (!may_tell && self->events_at < at)
            at = self->events_at;
        if (poll (waited, 4, wait_ms (at, now)) < 0)
            continue;
        if (waited[3].revents != 0) {
            publish_events (self);
            self->events_at = now_ns () + EVENTS_NS;
        }
        if (waited[1].revents != 0 && read (self->watch, discarded, sizeof (discarded)) > 0)
            read_plan (self);
        else if (self->is_pending)
            apply (self);
        else if (waited[2].revents != 0)
            (void) publish (self);
        if (waited[0].revents != 0 && !serve (self))
            return;
    }
}

int main (int argc, char **argv)
{
    static struct supervisor self;
    struct rlimit none = { 0, 0 };
    int error;

    if (argc != 2)
        return 2;
    self.monitor = atoi (argv[1]);
    prctl (PR_SET_NAME, "nvc-supervisor");
    prctl (PR_SET_DUMPABLE, 0);
    prctl (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    setrlimit (RLIMIT_CORE, &none);
    error = start (&self);
    if (!channel_reply (self.monitor, error) || error != 0)
        return 1;
    run (&self);
    return 0;
}
