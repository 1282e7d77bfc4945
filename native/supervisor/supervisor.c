/*
 * nvc-supervisor: one process a tenant, started by its monitor (monitor.c). It answers the tenant's seccomp listeners and
 * makes the tenant's driver calls (native/guard), keeps the tenant's on and off phases, and publishes its counters.
 *
 * Threads: main (this file; publish.c) reads the plan and publishes; "nvc-guard" (receive.c) answers notifications;
 * "nvc-guard-look" (tenant.c) does what is due, and answers further listeners; "nvc-phases" (phase_thread.c), one a GPU with a cap; "nvc-late" (late.c) ticks; "nvc-guard-close" (held_files.c) closes files of the driver.
 *
 * usage: nvc-supervisor SOCKET PRIVSEP
 *        Descriptors, whose other ends are the monitor's: its requests, and those of this process (guard/privsep.h).
 */
#include "supervisor.h"
#include "channel.h"
#include "confine.h"
#include "guard/clock.h"
#include "guard/guard.h"
#include "pages.h"

#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MILLISECOND UINT64_C (1000000)
/* Events of one kind are counted together for so long. */
#define EVENTS_NS (250 * MILLISECOND)
/* A change of limits waits for the driver's call that is in flight. */
#define RETRY_NS (1 * MILLISECOND)
/* Between looks at the plan where no instance of inotify can be had. */
#define LOOK_NS (5 * MILLISECOND)

/* The monitor is to end the container. A thread in the driver keeps this process's descriptors open, and main may wait for it. */
static void end_late (void *context)
{
    struct supervisor *self = context;

    supervisor_publish_events (self);
    shutdown (self->monitor, SHUT_RDWR);
    _exit (1);
}

/* The tenant's phase on one GPU, and whether it is frozen where it has none. */
static int apply_gpu (struct supervisor *self, uint32_t gpu)
{
    const struct guard_phase *phase = &self->next.phases[gpu];
    int error = 0;

    if (memcmp (phase, &self->plan.phases[gpu], sizeof (*phase)) != 0)
        error = guard_phases_set (self->phases, gpu, phase);
    if (error == -EAGAIN)
        end_late (self); /* no thread keeps the phase: a cap would not come into force */
    if (error != 0)
        return error;
    self->plan.phases[gpu] = *phase;
    if (self->next.slice[gpu] != self->plan.slice[gpu] && !self->is_attached)
        error = guard_tenant_slice (self->guard, gpu, self->next.slice[gpu]);
    self->plan.slice[gpu] = self->next.slice[gpu];
    if (self->next.is_frozen[gpu] != self->plan.is_frozen[gpu] && !self->is_attached)
        (void) guard_tenant_freeze (self->guard, gpu, self->next.is_frozen[gpu]);
    self->plan.is_frozen[gpu] = self->next.is_frozen[gpu];
    return error;
}

/* As much of the plan as can be put into force now. */
static void apply (struct supervisor *self)
{
    bool is_whole = true;

    if (memcmp (&self->next.limits, &self->plan.limits, sizeof (self->plan.limits)) != 0) {
        int error = self->is_attached ? 0 : guard_tenant_update (self->guard, &self->next.limits);

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
    (void) supervisor_publish (self);
}

/* Whether one was written. */
static bool read_plan (struct supervisor *self)
{
    struct plan *plan = malloc (sizeof (*plan));
    bool is_new;

    if (plan == NULL)
        end_late (self); /* a cap or a pause would not come into force */
    /* One that cannot be read changes nothing. */
    is_new = plan_read (self->plan_file, plan) == 0 && plan->limits.gpu_count == self->plan.limits.gpu_count &&
             (self->watch >= 0 || plan->generation != self->plan.generation);
    if (is_new) {
        self->next = *plan;
        apply (self);
    }
    free (plan);
    return is_new;
}

/*
 * Instances and watches of inotify count for the user that makes them, 128 instances by default: of root's, containers' programs have some, and so
 * they may of this user's. The plan is looked at from time to time then. A watch takes the right to read the plan.
 */
static int watch_plan (struct supervisor *self, uid_t user)
{
    char path[32];

    snprintf (path, sizeof (path), "/proc/self/fd/%d", self->plan_file);
    if (seteuid (user) != 0)
        return -errno;
    self->watch = inotify_init1 (IN_CLOEXEC | IN_NONBLOCK);
    if (seteuid (0) != 0)
        return -errno;
    if (self->watch >= 0 && inotify_add_watch (self->watch, path, IN_MODIFY) < 0) {
        close (self->watch);
        self->watch = -1;
    }
    return 0;
}

static void add_kill (struct supervisor *self, pid_t pid, int file)
{
    if (self->kill_count < CONTAINERS_MOST) {
        self->kills[self->kill_count].pid = pid;
        self->kills[self->kill_count++].file = file;
    } else
        close (file); /* its monitor has as many */
}

static void drop_kill (struct supervisor *self, pid_t pid)
{
    for (unsigned i = self->kill_count; i-- > 0;)
        if (self->kills[i].pid == pid) {
            close (self->kills[i].file);
            self->kills[i] = self->kills[--self->kill_count];
        }
}

static int start (struct supervisor *self, int privsep)
{
    struct channel_start request;
    int files[5], error;
    unsigned count = 5;

    if (channel_receive (self->monitor, &request, sizeof (request), files, &count) != sizeof (request) ||
        request.head.operation != CHANNEL_START || count < 4)
        return -EPROTO;
    self->tenant = request.tenant & ~GUARD_ATTACHED;
    self->is_attached = (request.tenant & GUARD_ATTACHED) != 0;
    self->plan_file = files[0];
    self->counters_file = counters_name_build (files[1]);
    self->published_file = files[3];
    if (count == 5)
        add_kill (self, request.pid, files[4]);
    error = plan_read (self->plan_file, &self->next);
    if (error == 0)
        error = watch_plan (self, request.user);
    if (error == 0)
        error = confine (request.user);
    if (error != 0)
        return error;
    self->guard = guard_create (privsep);
    if (self->guard == NULL)
        return -errno;
    guard_on_failure (self->guard, end_late, self);
    guard_set_contention (self->guard, files[2]);
    self->phases = guard_phases_create (self->guard, self->is_attached);
    if (self->phases == NULL)
        return -ENOMEM;
    error = self->is_attached ? 0 : guard_tenant_add (self->guard, self->tenant, &self->next.limits);
    if (error != 0)
        return error;
    self->plan.limits = self->next.limits;
    /* A plan that was written since it was read is read again. */
    (void) read_plan (self);
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
    result = guard_attach (self->phases, files[0], &node, channels, request->count);
    free (channels);
    return result;
}

static void end (struct supervisor *self)
{
    (void) supervisor_publish (self);
    supervisor_publish_events (self);
    guard_phases_destroy (self->phases);
    guard_destroy (self->guard);
}

/* The monitor is gone. Its watchdog ends the containers, or the agent. Until then its channels are off, and its calls wait: this process has
 * the last copies of the listeners, without which the kernel would answer ENOSYS. */
static void end_container (struct supervisor *self)
{
    if (self->is_attached) {
        end (self); /* its processes go on, and their channels with them */
        return;
    }
    for (unsigned i = 0; i < self->kill_count; i++)
        if (write (self->kills[i].file, "1", 1) != 1)
            continue; /* it has ended by now */
    guard_abandon (self->guard);
    self->has_listened = true; /* there will be no first one */
    (void) supervisor_publish (self);
    while (!self->counters.is_gone) {
        nanosleep (&(struct timespec) { .tv_nsec = (long) PUBLISH_NS }, NULL);
        (void) supervisor_publish (self);
    }
}

/* A request of the monitor. false: this process is to end. */
static bool serve (struct supervisor *self)
{
    static struct channel_attach request;
    struct channel_container of;
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
            result = count == 1 ? guard_tenant_listen (self->guard, files[0]) : -EINVAL;
            self->has_listened |= result == 0;
            break;
        case CHANNEL_JOIN:
        case CHANNEL_LEAVE:
            if (size != sizeof (of))
                break;
            memcpy (&of, &request, sizeof (of));
            drop_kill (self, of.pid);
            if (count == 1 && of.head.operation == CHANNEL_JOIN)
                add_kill (self, of.pid, files[--count]);
            result = 0;
            break;
        case CHANNEL_ATTACH:
            result = size == sizeof (request) && self->is_attached ? attach (self, &request, files, count) : -EINVAL;
            break;
        case CHANNEL_PUBLISH:
            result = supervisor_publish (self);
            supervisor_publish_events (self);
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
        (void) supervisor_publish (self);
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
        uint64_t now = guard_now (), at = self->is_pending ? now + RETRY_NS : UINT64_MAX;
        bool may_publish = now >= self->publish_at, may_tell = now >= self->events_at, is_waiting, is_written;
        struct pollfd waited[] = {
            { .fd = self->monitor, .events = POLLIN },
            { .fd = self->watch, .events = POLLIN },
            { .fd = may_publish ? guard_changed_descriptor (self->guard) : -1, .events = POLLIN },
            { .fd = may_tell ? guard_event_descriptor (self->guard) : -1, .events = POLLIN },
            { .fd = guard_waits_descriptor (self->guard), .events = POLLIN },
        };

        if (!may_publish && self->publish_at < at)
            at = self->publish_at;
        if (!may_tell && self->events_at < at)
            at = self->events_at;
        if (self->waits_at != 0 && self->waits_at < at)
            at = self->waits_at;
        if (self->watch < 0 && now + LOOK_NS < at)
            at = now + LOOK_NS;
        if (poll (waited, sizeof (waited) / sizeof (waited[0]), wait_ms (at, now)) < 0)
            continue;
        is_waiting = waited[4].revents != 0 && read (waited[4].fd, discarded, sizeof (discarded)) > 0;
        is_waiting |= self->waits_at != 0 && guard_now () >= self->waits_at;
        if (waited[3].revents != 0) {
            supervisor_publish_events (self);
            self->events_at = guard_now () + EVENTS_NS;
        }
        is_written = self->watch < 0 || (waited[1].revents != 0 && read (self->watch, discarded, sizeof (discarded)) > 0);
        if (!is_written || !read_plan (self)) {
            if (self->is_pending)
                apply (self);
            else if (waited[2].revents != 0 || is_waiting)
                (void) supervisor_publish (self);
        }
        if (waited[0].revents != 0 && !serve (self))
            return;
    }
}

int main (int argc, char **argv)
{
    static struct supervisor self = { .events_lock = PTHREAD_MUTEX_INITIALIZER };
    struct rlimit none = { 0, 0 };
    int error;

    if (argc != 3)
        return 2;
    self.monitor = atoi (argv[1]);
    prctl (PR_SET_NAME, "nvc-supervisor");
    prctl (PR_SET_DUMPABLE, 0);
#ifdef M_ARENA_MAX
    mallopt (M_ARENA_MAX, 1); /* a node has hundreds of supervisors, and a heap of each thread's own takes 24 KB */
#endif
    setrlimit (RLIMIT_CORE, &none);
    error = start (&self, atoi (argv[2]));
    if (!channel_reply (self.monitor, error) || error != 0)
        return 1;
    run (&self);
    return 0;
}
