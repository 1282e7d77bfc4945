/* Single calls that a guard must refuse, or charge. */
#include "attack.h"

#include <stddef.h>

/* The driver looks at the low byte and the size of a request only. */
void attack_type (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct memory params = memory_of (20 * GIB);
    struct alloc call = { bed.client, bed.device, bed.next, 0x40, (uintptr_t) &params, 0, 0, 0, 0xffff, 0 };
    int wrong = 0;

    (void) argc, (void) argv;
    for (uint32_t type = 0; type < 256; type += 15) {
        uint32_t request = 0xc0000000u | 48u << 16 | type << 8 | 0x2b;

        call.status = 0xffff;
        if (type != 'F' && (ioctl (bed.file, request, &call) == 0 || call.status == 0))
            wrong++;
        /* other directions */
        if (type != 'F' && ioctl (bed.file, (request & 0x3fffffff) | 0x40000000u, &call) == 0)
            wrong++;
    }
    say ("done", (uint64_t) wrong);
}

void attack_wrapped (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct memory params = memory_of (20 * GIB);
    struct alloc call = { bed.client, bed.device, bed.next, 0x40, (uintptr_t) &params, 0, 0, 0, 0xffff, 0 };
    struct {
        uint32_t command, size;
        uint64_t argument;
    } wrapped = { 0x2b, sizeof (call), (uintptr_t) &call };

    (void) argc, (void) argv;
    say ("result", ioctl (bed.file, REQUEST (0xd3, sizeof (wrapped)), &wrapped) < 0 ? (uint64_t) errno : 0);
    say ("status", call.status);
}

static uint32_t heap (struct bed *bed, uint32_t function, uint64_t size)
{
    uint8_t head[184] = { 0 };
    uint32_t words[6] = { bed->client, bed->device, function, 0, 0, 0xffff }, handle = bed->next++, attributes = 0x18000000;
    uint32_t owner = 0x6e76, flags = 0x4000; /* NVOS32_ALLOC_FLAGS_MEMORY_HANDLE_PROVIDED */
    uint32_t width = 1u << 16, height = (uint32_t) (size >> 16), status;

    memcpy (head, words, sizeof (words));
    memcpy (head + 40, &owner, 4);
    memcpy (head + 44, &handle, 4);
    memcpy (head + 52, &flags, 4);
    memcpy (head + (function == 6 ? 64 : 56), &attributes, 4);
    if (function == 6) {
        memcpy (head + 56, &width, 4);
        memcpy (head + 60, &height, 4);
    } else
        memcpy (head + (function == 14 ? 80 : 88), &size, 8);
    if (ioctl (bed->file, REQUEST (0x4a, sizeof (head)), head) < 0)
        return 0x10000u + (uint32_t) errno;
    memcpy (&status, head + 20, 4);
    return status;
}

void attack_heap (int argc, char **argv)
{
    static const uint32_t functions[] = { 2, 6, 14, 18, 27, 16 };
    struct bed bed = bed_open ();
    unsigned wrong = 0, pieces = 0;

    (void) argc, (void) argv;
    for (unsigned i = 0; i < 6; i++)
        wrong += heap (&bed, functions[i], 20 * GIB) == 0;
    uint32_t status;
    while ((status = heap (&bed, pieces % 2 ? 2 : 14, GIB)) == 0 && pieces < 100)
        pieces++;
    say ("wrong", wrong);
    say ("pieces", pieces);
    if (pieces == 0)
        say ("refused", status);
    hold ();
}

void attack_classes (int argc, char **argv)
{
    static const uint32_t bad[] = { 0x50, 0x76, 0x81, 0x82, 0x83, 0x92, 0xc2, 0x2082, 0x1234, 0xffffffff };
    struct bed bed = bed_open ();
    struct memory params[2];
    unsigned wrong = 0;

    (void) argc, (void) argv;
    for (unsigned i = 0; i < sizeof (bad) / sizeof (bad[0]); i++) {
        params[0] = memory_of (GIB);
        wrong += bed_alloc (&bed, bed.device, bed.next++, bad[i], params) == 0;
        wrong += bed_alloc (&bed, bed.subdevice, bed.next++, bad[i], NULL) == 0;
    }
    params[0] = memory_of (64 * MIB);
    params[0].attributes = 0x2a000000; /* system memory: charged to no quota */
    say ("wrong", wrong);
    say ("system", bed_alloc (&bed, bed.device, bed.next++, 0x3e, params));
    params[0] = memory_of (20 * GIB);
    say ("video-as-system", bed_alloc (&bed, bed.device, bed.next++, 0x3e, params) == 0);
    hold ();
}

void attack_duplicate (int argc, char **argv)
{
    struct bed bed = bed_open (), other = bed_open ();
    uint32_t handle, copies = 0;

    (void) argc, (void) argv;
    say ("memory", bed_memory (&bed, &handle, GIB));
    for (unsigned i = 0; i < 50; i++) {
        struct duplicate call = { other.client, other.device, other.next++, bed.client, handle, 0, 0xffff };

        copies += ioctl (other.file, REQUEST (0x34, sizeof (call)), &call) == 0 && call.status == 0;
    }
    say ("copies", copies);
    hold ();
    say ("freed", bed_free (&bed, handle));
    hold ();
    close (other.file);
    close (other.node);
    for (unsigned i = 0; i < 50; i++)
        bed_free (&other, 0x5d000000 + i);
    hold ();
}

void attack_sizes (int argc, char **argv)
{
    static const uint64_t sizes[] = {
        UINT64_MAX,           UINT64_MAX - 4095, (uint64_t) 1 << 63, (uint64_t) 1 << 62, ((uint64_t) 1 << 60) + 1,
        ((uint64_t) 1 << 48), 20 * GIB
    };
    static const uint32_t lies[] = { 1, 8, 127, 0xffff, 0xffffffff };
    struct bed bed = bed_open ();
    unsigned wrong = 0, small = 0;
    uint32_t handle;

    (void) argc, (void) argv;
    for (unsigned i = 0; i < sizeof (sizes) / sizeof (sizes[0]); i++)
        wrong += bed_memory (&bed, &handle, sizes[i]) == 0;
    for (unsigned i = 0; i < sizeof (lies) / sizeof (lies[0]); i++)
        for (unsigned large = 0; large < 2; large++) {
            struct memory params = memory_of (large ? 20 * GIB : 2 * MIB);
            struct alloc call = { bed.client, bed.device, bed.next++, 0x40, (uintptr_t) &params, 0, lies[i], 0, 0xffff, 0 };

            if (ioctl (bed.file, REQUEST (0x2b, sizeof (call)), &call) == 0 && call.status == 0) {
                wrong += large;
                small += !large;
            }
        }
    say ("wrong", wrong);
    say ("small", small);
    hold ();
}

void attack_pointers (int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint8_t *pages = mmap (NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const uint64_t bad[] = { 8, 0xffff800000000000u, (uintptr_t) pages + 4096, (uintptr_t) pages + 4096 - 24, UINT64_MAX - 8 };
    struct memory params = memory_of (2 * MIB);
    unsigned wrong = 0;

    (void) argc, (void) argv;
    munmap (pages + 4096, 4096);
    for (unsigned i = 0; i < 5; i++) {
        uint64_t build[5] = { 64, bad[i], bad[i], bad[i], 0 }, list[2] = { 4, bad[i] };

        wrong += bed_alloc (&bed, bed.device, bed.next++, 0x40, (void *) (uintptr_t) bad[i]) == 0;
        wrong += bed_control (&bed, bed.subdevice, 0x2080014a, (void *) (uintptr_t) bad[i], 268) == 0;
        wrong += bed_control (&bed, bed.client, 0x101, build, 40) == 0;
        wrong += bed_control (&bed, bed.subdevice, 0x20801301, list, 16) == 0;
        wrong += ioctl (bed.file, REQUEST (0x2b, 48), (void *) (uintptr_t) bad[i]) == 0;
        /* a class whose params are not read: where they are said to be must not be looked at, in whatever process */
        bed_alloc (&bed, bed.subdevice, bed.next++, 0x90e6, (void *) (uintptr_t) bad[i]);
    }
    uint64_t endless[2] = { 0xffffffff, (uintptr_t) pages };
    wrong += bed_control (&bed, bed.subdevice, 0x20801301, endless, 16) == 0;
    memcpy (pages, &params, sizeof (params));
    mprotect (pages, 4096, PROT_READ);
    say ("read-only", bed_alloc (&bed, bed.device, bed.next++, 0x40, pages));
    say ("wrong", wrong);
    hold ();
}

void attack_scheduling (int argc, char **argv)
{
    static const uint32_t controls[][2] = { { 0x2080110b, 536 }, { 0xa06c0103, 8 },  { 0xa06c0107, 4 },  { 0xa06f0109, 4 },
                                            { 0xa06c0110, 8 },   { 0x20800194, 64 }, { 0x20801115, 16 }, { 0x20801121, 16 },
                                            { 0x0080170f, 16 },  { 0x20801110, 8 },  { 0x00801711, 8 },  { 0x00801712, 8 } };
    static uint8_t params[1024];
    struct bed bed = bed_open ();
    unsigned answered = 0, refused = 0, made = 0;

    (void) argc, (void) argv;
    for (unsigned i = 0; i < sizeof (controls) / sizeof (controls[0]); i++) {
        uint32_t object = controls[i][0] >> 16 == 0x0080 ? bed.device : bed.subdevice;
        uint32_t status = bed_control (&bed, object, controls[i][0], params, controls[i][1]);

        answered += status == 0;
        refused += status != 0;
    }
    /* flags that are the kernel's */
    struct control call = { bed.client, bed.subdevice, 0x2080014a, 4, (uintptr_t) params, 268, 0xffff };
    made += ioctl (bed.file, REQUEST (0x2a, sizeof (call)), &call) == 0 && call.status == 0;
    say ("answered", answered);
    say ("refused", refused);
    say ("made", made);
}

/* foreign CLIENT HANDLE: what another tenant has. */
void attack_foreign (int argc, char **argv)
{
    struct bed bed = bed_open ();
    uint32_t client = argc > 0 ? (uint32_t) strtoul (argv[0], NULL, 0) : 0;
    uint32_t handle = argc > 1 ? (uint32_t) strtoul (argv[1], NULL, 0) : 0;
    struct release call = { client, 0x5c000001, handle, 0xffff }, whole = { client, client, client, 0xffff };
    struct duplicate copy = { bed.client, bed.device, bed.next++, client, handle, 0, 0xffff };
    struct bed other = bed;
    uint32_t device[14] = { [1] = client }, event[6] = { client, 0, 0x79 }, made;
    unsigned wrong = 0;

    wrong += ioctl (bed.file, REQUEST (0x29, sizeof (call)), &call) == 0 && call.status == 0;
    wrong += ioctl (bed.file, REQUEST (0x34, sizeof (copy)), &copy) == 0 && copy.status == 0;
    wrong += ioctl (bed.file, REQUEST (0x29, sizeof (whole)), &whole) == 0 && whole.status == 0;
    /* its address space, by a device with it and without one of its own by default; its events */
    for (device[12] = 0; device[12] <= 2; device[12] += 2)
        wrong += bed_alloc (&bed, bed.client, bed.next++, 0x80, device) == 0;
    wrong += bed_alloc (&bed, bed.subdevice, bed.next++, 0x79, event) == 0;
    other.client = client;
    other.next = 0x5e000000;
    wrong += bed_memory (&other, &made, MIB) == 0;
    say ("wrong", wrong);
}
