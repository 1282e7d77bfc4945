/*
 * The driver's scheduling controls, made from outside on a CUDA program's own objects, and what can be seen of its work from outside.
 *
 * usage: levers PID HANDLES [PID HANDLES]     of handles.c. The first process is the one that is watched; the last one is acted on.
 * Lines on stdin, of which each is answered with "NAME VALUE ..." lines and "end". Times are CLOCK_MONOTONIC, in nanoseconds.
 *   slice US | interleave LEVEL | mode PREEMPTION | freeze 0|1 | copies 0|1 | restart    "call NANOSECONDS STATUS"
 *   toggle slice|freeze|scheduling COUNT OFF_US ON_US   "stop BEGIN END START BEGIN END STATUS" so often
 *   facts                                        what the driver says of contexts, groups and switches, and what the calls cost
 *   map                                          maps duplicates of the channels' USERD: "mapped COUNT STATUS STATUS STATUS" (own objects; share
 *                                                << 16 | duplicate; map)
 *   watch SECONDS EVERY_US                       looks at GP_PUT and GP_GET of the mapped channels
 *   react SECONDS EVERY_US IDLE_US SHORT LONG    the same; the other process has slices of SHORT from a new GP_PUT until IDLE_US
 *                                                later; SHORT 0: the watched process's runlist is started anew with each
 */
#define _GNU_SOURCE
#include "levers.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define OBJECTS 512u
#define CHANGES 8192u

struct object {
    char kind[12];
    uint32_t client, parent, handle, engine, userd;
    uint64_t offset;
    int file; /* of the process, then a copy */
    bool is_compute;
    const volatile uint32_t *control;
};
static struct process {
    int pid;
    unsigned count;
    struct object objects[OBJECTS];
} processes[2], *watched = &processes[0], *acted = &processes[0];

static uint64_t now (void)
{
    struct timespec time;

    clock_gettime (CLOCK_MONOTONIC, &time);
    return (uint64_t) time.tv_sec * 1000000000u + (uint64_t) time.tv_nsec;
}

static void wait_until (uint64_t moment)
{
    for (uint64_t is = now (); is < moment; is = now ())
        if (moment - is > 200000)
            usleep ((useconds_t) ((moment - is - 100000) / 1000));
}

static bool is_a (const struct object *object, const char *kind) { return strcmp (object->kind, kind) == 0; }

static struct object *find (struct process *process, uint32_t client, const char *kind, uint32_t handle)
{
    for (unsigned i = 0; i < process->count; i++)
        if (process->objects[i].client == client && is_a (&process->objects[i], kind) &&
            (handle == 0 || process->objects[i].handle == handle))
            return &process->objects[i];
    return NULL;
}

static bool load (struct process *process, const char *pid, const char *path)
{
    FILE *file = fopen (path, "r");
    int pidfd, copies[1024];
    struct object *at, *group;

    process->pid = atoi (pid);
    pidfd = (int) syscall (SYS_pidfd_open, process->pid, 0);
    if (file == NULL || pidfd < 0)
        return false;
    memset (copies, -1, sizeof (copies));
    while (process->count < OBJECTS) {
        at = &process->objects[process->count];
        if (fscanf (file, "%11s %x %x %x %d %x %x %lx", at->kind, &at->client, &at->parent, &at->handle, &at->file, &at->engine,
                    &at->userd, &at->offset) != 8)
            break;
        if (at->file < 0 || at->file >= 1024)
            continue;
        if (copies[at->file] < 0)
            copies[at->file] = (int) syscall (SYS_pidfd_getfd, pidfd, at->file, 0);
        at->file = copies[at->file];
        group = is_a (at, "channel") ? find (process, at->client, "group", at->parent) : at;
        at->is_compute = group != NULL && group->engine == GRAPHICS;
        process->count++;
    }
    fclose (file);
    return process->count != 0;
}

static uint32_t call (const struct object *by, uint32_t handle, uint32_t command, void *params, uint32_t size)
{
    struct control head = { .client = by->client,
                            .object = handle,
                            .command = command,
                            .params = (uint64_t) (uintptr_t) params,
                            .size = size,
                            .status = 0xffff };

    ioctl (by->file, REQUEST (CONTROL, struct control), &head);
    return head.status;
}

static uint32_t on_groups (struct process *process, uint32_t command, const void *params, uint32_t size)
{
    uint32_t status = 0xfffe, one;
    uint64_t copy[4];

    for (unsigned i = 0; i < process->count; i++) {
        if (!is_a (&process->objects[i], "group") || !process->objects[i].is_compute)
            continue;
        memcpy (copy, params, size);
        one = call (&process->objects[i], process->objects[i].handle, command, copy, size);
        status = status == 0xfffe || one != 0 ? one : status;
    }
    return status;
}

static uint32_t slice (struct process *process, uint64_t microseconds)
{
    return on_groups (process, SET_TIMESLICE, &microseconds, sizeof (microseconds));
}

static uint32_t freeze (struct process *process, bool is_off, bool only_scheduling, bool copies)
{
    struct disable params = { .is_off = is_off, .only_scheduling = only_scheduling };
    const struct object *subdevice = NULL;

    for (unsigned i = 0; i < process->count && params.count < 64; i++) {
        const struct object *at = &process->objects[i];

        if (!is_a (at, "channel") || at->is_compute == copies)
            continue;
        subdevice = subdevice != NULL ? subdevice : find (process, at->client, "subdevice", 0);
        params.clients[params.count] = at->client;
        params.channels[params.count++] = at->handle;
    }
    return subdevice != NULL ? call (subdevice, subdevice->handle, DISABLE_CHANNELS, &params, sizeof (params)) : 0xfffe;
}

static uint32_t mode (struct process *process, uint32_t compute)
{
    uint32_t status = 0xfffe;

    for (unsigned i = 0; i < process->count; i++) {
        const struct object *at = &process->objects[i], *subdevice = find (process, at->client, "subdevice", 0);
        struct {
            uint32_t flags, channel, graphics, compute;
            uint64_t route[2];
        } params = { .flags = 1, .channel = at->handle, .compute = compute };

        if (is_a (at, "group") && at->is_compute && subdevice != NULL)
            status = call (subdevice, subdevice->handle, SET_PREEMPTION_MODE, &params, sizeof (params));
    }
    return status;
}

static uint32_t restart (struct process *process)
{
    struct {
        uint8_t is_forced, is_waited_for;
    } params = { 1, 1 };

    for (unsigned i = 0; i < process->count; i++)
        if (is_a (&process->objects[i], "channel") && process->objects[i].is_compute)
            return call (&process->objects[i], process->objects[i].handle, RESTART_RUNLIST, &params, sizeof (params));
    return 0xfffe;
}

static void toggle (const char *kind, unsigned count, unsigned off_us, unsigned on_us)
{
    for (unsigned i = 0; i < count; i++) {
        uint64_t times[4];
        uint32_t first, second;
        bool slices = strcmp (kind, "slice") == 0, scheduling = strcmp (kind, "scheduling") == 0;

        times[0] = now ();
        first = slices ? slice (acted, 0) : freeze (acted, true, scheduling, false);
        times[1] = now ();
        wait_until (times[1] + off_us * 1000ull);
        times[2] = now ();
        second = slices ? slice (acted, 2048) : freeze (acted, false, scheduling, false);
        times[3] = now ();
        printf ("stop %lu %lu %lu %lu %u\n", times[0], times[1], times[2], times[3], first | second);
        wait_until (times[3] + on_us * 1000ull);
    }
}

/* Prints the shortest of five, and the words of the answer. */
static void fact (const char *name, const struct object *by, uint32_t handle, uint32_t command, void *params, uint32_t size,
                  unsigned words, uint32_t *answer)
{
    uint64_t shortest = UINT64_MAX, took;
    uint32_t status = 0;

    for (int i = 0; i < 5; i++) {
        took = now ();
        status = call (by, handle, command, params, size);
        took = now () - took;
        shortest = took < shortest ? took : shortest;
    }
    printf ("%s %lu %u", name, shortest, status);
    for (unsigned i = 0; i < words; i++)
        printf (" %u", answer[i]);
    printf ("\n");
}

static void facts (struct process *process)
{
    for (unsigned i = 0; i < process->count; i++) {
        const struct object *at = &process->objects[i], *subdevice = find (process, at->client, "subdevice", 0);
        uint32_t stats[8] = { at->handle }, resident[6] = { 0 };
        struct {
            uint32_t channel, pad;
            uint64_t size;
        } buffer = { .channel = at->handle };
        struct {
            uint32_t count, rows[512], engine;
        } info = { .count = 3, .rows = { 5, 0, 6, 0, 9, 0 }, .engine = GRAPHICS };

        if (!is_a (at, "group") || !at->is_compute || subdevice == NULL)
            continue;
        fact ("saves_restores_wfi_cta_cilp_gfxp", subdevice, subdevice->handle, GET_CTXSW_STATS, stats, sizeof (stats), 6,
              stats + 2);
        fact ("context_bytes", subdevice, subdevice->handle, GET_CTX_BUFFER_SIZE, &buffer, sizeof (buffer), 1,
              (uint32_t *) &buffer.size);
        fact ("resident_channel", subdevice, subdevice->handle, GET_RESIDENT_CHANNEL, resident, sizeof (resident), 1, resident);
        fact ("slice_groups_groups_of_the_engine", subdevice, subdevice->handle, FIFO_GET_INFO, &info, sizeof (info), 6, info.rows);
    }
}

static uint32_t make (int file, uint32_t client, uint32_t parent, uint32_t handle, uint32_t class, uint32_t *made)
{
    uint64_t params[7] = { 0 }; /* the first device, its first subdevice */
    struct alloc head = { client, parent, handle, class, class == CLIENT ? 0 : (uint64_t) (uintptr_t) params, 0, 0xffff };

    ioctl (file, REQUEST (ALLOC, struct alloc), &head);
    *made = head.object;
    return head.status;
}

/* The manager maps memory for the process that made the client (rm_create_mmap_context), so this one makes duplicates of its own. */
static void map (struct process *process)
{
    enum { DEVICE_HANDLE = 1, SUBDEVICE_HANDLE, FIRST_HANDLE };
    uint32_t own = 0, ignored, count = 0, statuses[3] = { 0xfffe, 0xfffe, 0xfffe };
    int file = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC), node = open ("/dev/nvidia0", O_RDWR | O_CLOEXEC);

    ioctl (node, REQUEST (REGISTER_FD, int32_t), &file);
    statuses[0] = make (file, 0, 0, 0, CLIENT, &own) | make (file, own, own, DEVICE_HANDLE, DEVICE, &ignored) |
                  make (file, own, DEVICE_HANDLE, SUBDEVICE_HANDLE, SUBDEVICE, &ignored);
    for (unsigned i = 0; i < process->count; i++) {
        struct object *at = &process->objects[i];
        struct share share = { .client = at->client, .object = at->userd, .target = own, .mask = 1, .type = 3, .status = 0xffff };
        struct duplicate copy = { own, DEVICE_HANDLE, FIRST_HANDLE + i, at->client, at->userd, 0, 0xffff };
        struct map params = { own, DEVICE_HANDLE, FIRST_HANDLE + i, 0, at->offset & ~4095ull, 4096, 0, 0xffff, 0, -1, 0 };
        char *place;

        if (!is_a (at, "channel") || !at->is_compute || at->userd == 0)
            continue;
        ioctl (at->file, REQUEST (SHARE, struct share), &share);
        ioctl (file, REQUEST (DUPLICATE, struct duplicate), &copy);
        statuses[1] = share.status << 16 | copy.status;
        for (int is_video = 1; is_video >= 0 && params.status != 0; is_video--) {
            params.fd = open (is_video ? "/dev/nvidia0" : "/dev/nvidiactl", O_RDWR | O_CLOEXEC);
            if (is_video)
                ioctl (params.fd, REQUEST (REGISTER_FD, int32_t), &file);
            ioctl (file, REQUEST (MAP_MEMORY, struct map), &params);
        }
        statuses[2] = params.status;
        place = params.status == 0 ? mmap (NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, params.fd, 0) : MAP_FAILED;
        count += place != MAP_FAILED;
        at->control = place != MAP_FAILED ? (const volatile uint32_t *) (place + (at->offset & 4095)) : NULL;
    }
    printf ("mapped %u %u %u %u\n", count, statuses[0], statuses[1], statuses[2]);
}

/* Whether GP_PUT changed since the last look; busy: it is not GP_GET. */
static bool look (struct process *process, uint32_t *puts, bool *busy)
{
    bool changed = false;
    unsigned channel = 0;

    *busy = false;
    for (unsigned i = 0; i < process->count; i++) {
        const volatile uint32_t *control = process->objects[i].control;
        uint32_t put;

        if (control == NULL)
            continue;
        put = control[GP_PUT / 4];
        changed |= put != puts[channel];
        puts[channel++] = put;
        *busy |= put != control[GP_GET / 4];
    }
    return changed;
}

static void watch (double seconds, unsigned every_us, unsigned idle_us, unsigned brief, unsigned lasting)
{
    static uint64_t changes[CHANGES];
    uint32_t puts[OBJECTS] = { 0 };
    uint64_t begin = now (), end = begin + (uint64_t) (seconds * 1e9), spent = 0, acting = 0, last = 0;
    unsigned count = 0, looks = 0, busy_looks = 0, acts = 0;
    bool is_short = false, busy;

    look (watched, puts, &busy);
    for (uint64_t next = begin; next < end; next += every_us * 1000ull) {
        uint64_t at;
        bool changed;

        wait_until (next);
        at = now ();
        changed = look (watched, puts, &busy);
        spent += now () - at;
        looks++;
        busy_looks += busy;
        last = changed || busy ? at : last;
        if (changed && count < CHANGES)
            changes[count++] = at;
        if (lasting == 0)
            continue;
        if (changed && brief == 0) {
            restart (watched);
            acts++;
        } else if (brief != 0 && is_short != (last + idle_us * 1000ull > at)) {
            is_short = !is_short;
            slice (acted, is_short ? brief : lasting);
            acts++;
        }
        acting += now () - at;
        if (now () > next + every_us * 2000ull) /* an act is longer than a look */
            next = now ();
    }
    printf ("looks %u\nbusy %u\nlook_ns %lu\nchanges %u\nacts %u\nact_ns %lu\n", looks, busy_looks, spent / looks, count, acts,
            acting / looks);
    for (unsigned i = 0; i < count && lasting == 0; i++)
        printf ("put %lu\n", changes[i]);
}

int main (int argc, char **argv)
{
    char line[128], kind[16];
    unsigned a, b, c, d;
    double seconds;

    if ((argc != 3 && argc != 5) || !load (watched, argv[1], argv[2]))
        return 2;
    if (argc == 5) {
        acted = &processes[1];
        if (!load (acted, argv[3], argv[4]))
            return 2;
    }
    printf ("ready\n");
    for (fflush (stdout); fgets (line, sizeof (line), stdin) != NULL; fflush (stdout)) {
        uint64_t begin = now ();
        uint32_t status = 0xfffc;

        if (sscanf (line, "slice %u", &a) == 1)
            status = slice (acted, a);
        else if (sscanf (line, "interleave %u", &a) == 1)
            status = on_groups (watched, SET_INTERLEAVE, &a, sizeof (a));
        else if (sscanf (line, "mode %u", &a) == 1)
            status = mode (acted, a);
        else if (sscanf (line, "freeze %u", &a) == 1)
            status = freeze (acted, a, false, false);
        else if (sscanf (line, "copies %u", &a) == 1)
            status = freeze (acted, a, false, true);
        else if (strcmp (line, "restart\n") == 0)
            status = restart (watched);
        else if (sscanf (line, "toggle %15s %u %u %u", kind, &a, &b, &c) == 4)
            toggle (kind, a, b, c);
        else if (strcmp (line, "facts\n") == 0)
            facts (acted);
        else if (strcmp (line, "map\n") == 0)
            map (watched);
        else if (sscanf (line, "watch %lf %u", &seconds, &a) == 2)
            watch (seconds, a, 0, 0, 0);
        else if (sscanf (line, "react %lf %u %u %u %u", &seconds, &a, &b, &c, &d) == 5)
            watch (seconds, a, b, c, d);
        else
            return 2;
        if (status != 0xfffc)
            printf ("call %lu %u\n", now () - begin, status);
        printf ("end\n");
    }
    return 0;
}
