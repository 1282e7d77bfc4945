/*
 * nvc-prober: one process a node. It asks the driver twice a second what every process that uses a GPU holds, some at a time,
 * and publishes that, and which tenants called the driver last, in the node's usage page (guard/usage_page.h): one supervisor a tenant that
 * asked about each of its processes would keep the driver's lock the longer the more tenants there are.
 *
 * Once it has asked for a trace of context switches (prober_bind.c), it is confined as a supervisor is (confine.c), with a user of its own, and
 * holds nothing of a tenant but its counters, for reading: when it
 * called the driver, and numbers of processes. The driver itself lists the processes that have a subdevice on a GPU (GET_PIDS), as all CUDA
 * programs do; the counters, and the agent, add processes to that list, and take none away. So a supervisor that its tenant has taken over
 * lowers nothing: a process that was seen to hold memory is asked about until it holds none.
 *
 * Without an agent it goes on, until no tenant has held memory for ten minutes: its client keeps the GPUs awake. One thread.
 *
 * usage: nvc-prober SOCKET PAGE DEVICES USER DIRECTORY
 *        SOCKET: a datagram socket, by which each agent's connection comes; or a connection, with which this process ends. PAGE: the usage
 *        page, for writing. DEVICES: the directory of the driver's nodes. USER: its uid and gid. DIRECTORY: the agent's, or "".
 */
#include "confine.h"
#include "own_cgroup.h"
#include "prober.h"

#include "guard/clock.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define MILLISECOND UINT64_C (1000000)
/* Between two looks at which tenants called the driver, and between two questions about what processes hold. */
#define CALLS_NS (250 * MILLISECOND)
#define USAGE_NS (500 * MILLISECOND)
/* No more than this part of the time (1 / PART) goes into asking, but what is published does not grow old (USAGE_FRESH_NS). */
#define PART 8u
#define USAGE_MOST_NS (3000 * MILLISECOND)
#define UNUSED_NS (600 * UINT64_C (1000000000))
/* An exit status: the driver has no GPU here. */
#define NO_DRIVER 3

static void forget (struct prober *self, uint32_t tenant)
{
    for (unsigned i = self->tenant_count; i-- > 0;)
        if (self->tenants[i]->tenant.tenant == tenant) {
            struct probed *gone = self->tenants[i];

            if (gone->published >= 0) {
                (void) epoll_ctl (self->epoll, EPOLL_CTL_DEL, gone->published, NULL); /* others have it open still */
                close (gone->published);
            }
            close (gone->counters);
            free (gone);
            self->tenants[i] = self->tenants[--self->tenant_count];
        }
}

static bool has_room (struct prober *self)
{
    unsigned room = self->room != 0 ? 2 * self->room : 16;
    struct probed **tenants;

    if (self->tenant_count < self->room)
        return true;
    tenants = realloc (self->tenants, room * sizeof (struct probed *));
    if (tenants == NULL)
        return false;
    self->tenants = tenants;
    self->room = room;
    return true;
}

/* The descriptors are the tenant's then, or closed. */
static void add (struct prober *self, const struct channel_probe *tenant, int counters, int published)
{
    struct epoll_event event = { .events = EPOLLIN | EPOLLET };
    struct probed *made = calloc (1, sizeof (*made));

    forget (self, tenant->tenant);
    if (made == NULL || !has_room (self)) {
        free (made);
        close (counters);
        if (published >= 0)
            close (published);
        return;
    }
    *made = (struct probed) { .tenant = *tenant, .counters = counters, .published = published };
    event.data.ptr = made;
    if (published >= 0 && epoll_ctl (self->epoll, EPOLL_CTL_ADD, published, &event) != 0) {
        close (published);
        made->published = -1;
    }
    self->tenants[self->tenant_count++] = made;
}

static void let_go (struct prober *self)
{
    close (self->connection);
    self->connection = -1;
    self->named.count = 0;
}

/* A message of the agent. false: this process is to end. */
static bool serve (struct prober *self)
{
    static union {
        struct channel_head head;
        struct channel_probe probe;
        struct channel_pids pids;
    } message;
    int files[CHANNEL_DESCRIPTORS];
    unsigned count = CHANNEL_DESCRIPTORS, kept = 0;
    ssize_t size = channel_receive (self->connection, &message, sizeof (message), files, &count);

    if (size <= 0) {
        let_go (self); /* the agent has ended; another one comes */
        return self->socket >= 0;
    }
    if (size == sizeof (message.head) && message.head.operation == CHANNEL_REMOVE)
        return false;
    if (size == sizeof (message.probe) && message.head.operation == CHANNEL_PROBE) {
        if (count != 0)
            add (self, &message.probe, files[0], count > 1 ? files[1] : -1);
        else
            forget (self, message.probe.tenant);
        kept = count < 2 ? count : 2;
    }
    if (size == sizeof (message.pids) && message.head.operation == CHANNEL_PIDS && message.pids.count <= CHANNEL_PIDS_MOST) {
        self->named = message.pids;
        /* Something is not accounted for: the agent waits for the answer, and looks four times a second. */
        if (message.pids.count != 0 && self->usage_at > guard_now () && self->usage_at - guard_now () <= USAGE_NS)
            self->usage_at -= USAGE_NS / 2;
    }
    for (unsigned i = kept; i < count; i++)
        close (files[i]);
    return true;
}

/* An agent's connection, instead of the one before; it names all of its tenants. */
static void take_connection (struct prober *self)
{
    struct channel_head head;
    int files[CHANNEL_DESCRIPTORS];
    unsigned count = CHANNEL_DESCRIPTORS;

    if (channel_receive (self->socket, &head, sizeof (head), files, &count) < 0)
        return;
    for (unsigned i = 1; i < count; i++)
        close (files[i]);
    if (count == 0)
        return;
    if (self->connection >= 0)
        let_go (self);
    while (self->tenant_count != 0)
        forget (self, self->tenants[0]->tenant.tenant);
    self->connection = files[0];
}

static void run (struct prober *self)
{
    uint64_t calls_at = 0;
    bool had_agent = false;

    self->used_at = guard_now ();
    for (;;) {
        struct pollfd waited[] = { { .fd = self->socket, .events = POLLIN }, { .fd = self->connection, .events = POLLIN } };
        uint64_t now = guard_now (), begun;

        if (now >= self->usage_at) {
            begun = now;
            prober_publish_usage (self);
            now = guard_now ();
            self->usage_at = now + PART * (now - begun);
            self->usage_at = self->usage_at > begun + USAGE_NS ? self->usage_at : begun + USAGE_NS;
            self->usage_at = self->usage_at < now + USAGE_MOST_NS ? self->usage_at : now + USAGE_MOST_NS;
        }
        if (now >= calls_at) {
            prober_publish_calls (self);
            calls_at = now + CALLS_NS;
            /* The agent that was there has ended, and so have its tenants. */
            if (had_agent && self->connection < 0 && prober_is_over (self))
                return;
        }
        if (self->used_at + UNUSED_NS < now)
            return;
        had_agent |= self->connection >= 0;
        begun = calls_at < self->usage_at ? calls_at : self->usage_at;
        if (poll (waited, 2, begun > now ? (int) ((begun - now + MILLISECOND - 1) / MILLISECOND) : 0) <= 0)
            continue;
        if (waited[1].revents != 0 && !serve (self))
            return;
        if (waited[0].revents != 0)
            take_connection (self);
    }
}

static bool open_driver (struct prober *self, const char *devices)
{
    char path[CHANNEL_PATH + 32];

    self->client = (struct driver_client) DRIVER_CLIENT_NONE;
    snprintf (path, sizeof (path), "%s/nvidiactl", devices);
    self->client.control = open (path, O_RDWR | O_CLOEXEC);
    for (unsigned minor = 0; self->client.control >= 0 && minor < RM_MAX_GPUS; minor++) {
        int node;

        snprintf (path, sizeof (path), "%s/nvidia%u", devices, minor);
        node = open (path, O_RDWR | O_CLOEXEC);
        if (node >= 0)
            driver_client_add_node (&self->client, node);
    }
    return self->client.node_count != 0;
}

int main (int argc, char **argv)
{
    static struct prober self = { .connection = -1 };
    struct rlimit none = { 0, 0 }, page = { sizeof (struct usage_page), sizeof (struct usage_page) };
    struct {
        uint32_t magic, version, index, prober;
    } head = { USAGE_MAGIC, USAGE_VERSION, 0, (uint32_t) getpid () };
    char problem[OWN_CGROUP_MESSAGE];
    int kind = SOCK_DGRAM;
    socklen_t size = sizeof (kind);

    if (argc != 6) {
        fprintf (stderr, "usage: nvc-prober SOCKET PAGE DEVICES USER DIRECTORY\n(started by nvc-agent)\n");
        return 2;
    }
    self.socket = atoi (argv[1]);
    self.page = atoi (argv[2]);
    prctl (PR_SET_NAME, "nvc-prober");
    prctl (PR_SET_DUMPABLE, 0);
    setrlimit (RLIMIT_CORE, &none);
    setrlimit (RLIMIT_FSIZE, &page);
    signal (SIGXFSZ, SIG_IGN);
    signal (SIGPIPE, SIG_IGN);
    own_cgroup_enter (argv[5], problem); /* where it has none, no monitor has, and says so */
    if (getsockopt (self.socket, SOL_SOCKET, SO_TYPE, &kind, &size) != 0)
        return 2;
    if (kind != SOCK_DGRAM) {
        self.connection = self.socket;
        self.socket = -1;
    }
    self.epoll = epoll_create1 (EPOLL_CLOEXEC);
    if (!open_driver (&self, argv[3]))
        return NO_DRIVER;
    prober_bind_traces (&self, argv[3]);
    if (confine ((uid_t) strtoul (argv[4], NULL, 10)) != 0)
        return 1;
    if (driver_client_make (&self.client))
        driver_client_make_devices (&self.client);
    if (self.client.gpu_count == 0)
        return NO_DRIVER;
    if (pwrite (self.page, &head, sizeof (head), offsetof (struct usage_page, magic)) != sizeof (head))
        return 1;
    run (&self);
    return 0;
}
