/* Channel groups that are started while nothing tells what a continued call made. */
#include "attack.h"

#include <time.h>

#define DEVICES_MAX 32u

static uint32_t group_of (struct bed *bed)
{
    uint32_t params[8] = { 0, 0, 0, 1 }, handle = bed->next++;

    return bed_alloc (bed, bed->device, handle, 0xa06c, params) == 0 ? handle : 0;
}

static uint32_t start (const struct bed *bed, uint32_t group)
{
    uint8_t params[3] = { 1 };

    return bed_control (bed, group, 0xa06c0101, params, sizeof (params));
}

/* group-race: a device that the driver does not make, after a group: the call may have made a channel in it. */
void attack_group_race (int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint32_t device[14] = { DEVICES_MAX - 1 }, first = group_of (&bed), before = start (&bed, first);

    (void) argc, (void) argv;
    say ("made", bed_alloc (&bed, bed.client, bed.next++, 0x80, device) == 0);
    say ("known", start (&bed, first));
    say ("later", start (&bed, group_of (&bed)) == before);
    hold ();
}

#define COMPUTES_MS 80

/* rests: the last call is one that the guard continues, and nothing shows what it made. The thread is seen outside of it when it has computed. */
void attack_rests (int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint32_t device[14] = { 0 };

    (void) argc, (void) argv;
    say ("made", bed_alloc (&bed, bed.client, bed.next++, 0x80, device));
    for (clock_t until = clock () + COMPUTES_MS * CLOCKS_PER_SEC / 1000; clock () < until;)
        continue;
    hold ();
}

/* starts ROUNDS: clients with a device and a group that is started, one after the other, each on a file of its own. */
void attack_starts (int argc, char **argv)
{
    unsigned rounds = argc > 0 ? (unsigned) atoi (argv[0]) : 50, bad = 0;

    say ("begun", 1);
    hold ();
    for (unsigned i = 0; i < rounds; i++) {
        struct bed bed = bed_open ();
        uint32_t channel[92] = { 0 }, group = group_of (&bed);

        bad += bed_alloc (&bed, group, bed.next++, 0xc86f, channel) != 0;
        bad += start (&bed, group) != 0;
        close (bed.node);
        close (bed.file);
    }
    say ("bad", bad);
    hold ();
}

/* resets: a channel that computes is reset with each line of stdin. */
void attack_resets (int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint32_t channel[92] = { 0 }, group = group_of (&bed), handle = bed.next++;

    (void) argc, (void) argv;
    say ("bad", (bed_alloc (&bed, group, handle, 0xc86f, channel) != 0) + (start (&bed, group) != 0));
    for (;;) {
        uint32_t params[4] = { 1 }; /* the graphics engine */

        hold ();
        say ("status", bed_control (&bed, handle, 0x906f0102, params, sizeof (params)));
    }
}

#define WAITS_US 5000000u
#define LONG_MS 1000

/* waits: the driver is to wait until a channel that may compute has nothing to do, with the locks that every program's calls need. */
void attack_waits (int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint32_t params[92] = { 0 }, group = group_of (&bed), channel = bed.next++;
    struct {
        uint32_t client, device, channel, count;
        uint64_t clients, devices, channels;
        uint32_t flags, timeout, status, pad;
    } call = { .client = bed.client, .device = bed.device, .channel = channel, .flags = 1u << 4, .timeout = WAITS_US };
    struct timespec from, to;

    (void) argc, (void) argv;
    bed_alloc (&bed, group, channel, 0xc86f, params);
    start (&bed, group);
    clock_gettime (CLOCK_MONOTONIC, &from);
    if (ioctl (bed.file, REQUEST (0x41, sizeof (call)), &call) < 0)
        call.timeout = 0;
    clock_gettime (CLOCK_MONOTONIC, &to);
    say ("long", (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1000000 >= LONG_MS);
    say ("kept", call.timeout == WAITS_US);
    say ("status", call.status);
    hold ();
}
