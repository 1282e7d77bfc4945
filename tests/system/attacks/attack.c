/* attack NAME [ARGUMENT...] */
#include "attack.h"

#include <stddef.h>

static const struct {
    const char *name;
    attack *function;
} attacks[] = {
    { "type", attack_type },
    { "wrapped", attack_wrapped },
    { "heap", attack_heap },
    { "classes", attack_classes },
    { "duplicate", attack_duplicate },
    { "sizes", attack_sizes },
    { "pointers", attack_pointers },
    { "scheduling", attack_scheduling },
    { "foreign", attack_foreign },
    { "size-race", attack_size_race },
    { "command-race", attack_command_race },
    { "class-race", attack_class_race },
    { "storm", attack_storm },
    { "flood", attack_flood },
    { "child", attack_child },
    { "passed", attack_passed },
    { "queued", attack_queued },
    { "exec", attack_exec },
    { "bomb", attack_bomb },
    { "traced", attack_traced },
    { "victim", attack_victim },
    { "entries", attack_entries },
    { "uring", attack_uring },
    { "uvm", attack_uvm },
    { "churn", attack_churn },
    { "uvm-tree", attack_uvm_tree },
    { "uvm-heir", attack_uvm_heir },
    { "uvm-refused", attack_uvm_refused },
    { "unseen", attack_unseen },
    { "uvm-child", attack_uvm_child },
    { "event-race", attack_event_race },
    { "uvm-busy", attack_uvm_busy },
    { "heir-race", attack_heir_race },
    { "orphan-race", attack_orphan_race },
    { "keep-race", attack_keep_race },
    { "keep-uvm", attack_keep_uvm },
    { "uvm-thread", attack_uvm_thread },
    { "uvm-slow", attack_uvm_slow },
    { "reused", attack_reused },
    { "uvm-heap", attack_uvm_heap },
    { "stalled", attack_stalled },
    { "uvm-clone", attack_uvm_clone },
    { "uvm-exec", attack_uvm_exec },
    { "uvm-exec-thread", attack_uvm_exec_thread },
    { "idle", attack_idle },
    { "uvm-tables", attack_uvm_tables },
    { "unchanged", attack_unchanged },
    { "uvm-path", attack_uvm_path },
    { "uvm-zombies", attack_uvm_zombies },
    { "params", attack_params },
    { "batch", attack_batch },
    { "contexts", attack_contexts },
    { "fuse", attack_fuse },
    { "phantom", attack_phantom },
    { "race-free", attack_race_free },
    { "uvm-batch", attack_uvm_batch },
    { "requests", attack_requests },
    { "controls", attack_controls },
    { "pids", attack_pids },
    { "lend", attack_lend },
    { "borrow", attack_borrow },
    { "group-race", attack_group_race },
    { "rests", attack_rests },
    { "starts", attack_starts },
    { "resets", attack_resets },
    { "waits", attack_waits },
    { "shared", attack_shared },
    { "give", attack_give },
    { "take", attack_take },
    { "receive", attack_receive },
};

static uint32_t failure (void) { return 0x10000u + (uint32_t) errno; }

uint32_t bed_alloc (struct bed *bed, uint32_t parent, uint32_t handle, uint32_t number, void *params)
{
    struct alloc call = { bed->client, parent, handle, number, (uintptr_t) params, 0, 0, 0, 0xffff, 0 };

    return ioctl (bed->file, REQUEST (0x2b, sizeof (call)), &call) < 0 ? failure () : call.status;
}

struct memory memory_of (uint64_t size) { return (struct memory) { .owner = 0x6e76, .attributes = 0x18000000, .size = size }; }

uint32_t bed_memory (struct bed *bed, uint32_t *handle, uint64_t size)
{
    struct memory params = memory_of (size);

    *handle = bed->next++;
    return bed_alloc (bed, bed->device, *handle, 0x40, &params);
}

unsigned bed_fill (struct bed *bed)
{
    unsigned pieces = 0;
    uint32_t handle;

    while (pieces < 100 && bed_memory (bed, &handle, GIB) == 0)
        pieces++;
    return pieces;
}

uint32_t bed_control (const struct bed *bed, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    struct control call = { bed->client, object, command, 0, (uintptr_t) params, size, 0xffff };

    return ioctl (bed->file, REQUEST (0x2a, sizeof (call)), &call) < 0 ? failure () : call.status;
}

uint32_t bed_free (const struct bed *bed, uint32_t handle)
{
    struct release call = { bed->client, bed->device, handle, 0xffff };

    return ioctl (bed->file, REQUEST (0x29, sizeof (call)), &call) < 0 ? failure () : call.status;
}

uint32_t bed_begin (struct bed *bed)
{
    struct alloc root = { .status = 0xffff };
    uint32_t device[14] = { 0 }, zero = 0, status; /* word 1: hClientShare, whose address space the device has */

    if (ioctl (bed->file, REQUEST (0x2b, sizeof (root)), &root) < 0)
        return failure ();
    bed->client = device[1] = root.object;
    status = root.status ? root.status : bed_alloc (bed, bed->client, bed->device, 0x80, device);
    return status ? status : bed_alloc (bed, bed->device, bed->subdevice, 0x2080, &zero);
}

struct bed bed_open (void)
{
    struct bed bed = { .device = 0x5c000001, .subdevice = 0x5c000002, .next = 0x5d000000 };
    uint32_t status;

    bed.file = open ("/dev/nvidiactl", O_RDWR);
    bed.node = open ("/dev/nvidia0", O_RDWR);
    if (bed.node >= 0)
        ioctl (bed.node, REQUEST (0xc9, 4), &bed.file);
    status = bed_begin (&bed);
    if (status != 0) {
        printf ("client=%x\n", status);
        exit (3);
    }
    return bed;
}

void say (const char *key, uint64_t value)
{
    printf ("%s=%llu\n", key, (unsigned long long) value);
    fflush (stdout);
}

void hold (void)
{
    char line[16];

    if (fgets (line, sizeof (line), stdin) == NULL)
        exit (0);
}

void let_it_be_seen (void)
{
    usleep (300000);
    hold ();
}

int send_descriptor (int socket, int descriptor)
{
    char control[CMSG_SPACE (sizeof (int))] = { 0 }, byte = 'x';
    struct iovec data = { &byte, 1 };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof (control) };
    struct cmsghdr *header = CMSG_FIRSTHDR (&message);

    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN (sizeof (int));
    memcpy (CMSG_DATA (header), &descriptor, sizeof (int));
    return sendmsg (socket, &message, 0) == 1 ? 0 : -1;
}

int receive_descriptor (int socket)
{
    char control[CMSG_SPACE (sizeof (int))] = { 0 }, byte;
    struct iovec data = { &byte, 1 };
    struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof (control) };
    int descriptor = -1;

    if (recvmsg (socket, &message, 0) == 1 && CMSG_FIRSTHDR (&message) != NULL)
        memcpy (&descriptor, CMSG_DATA (CMSG_FIRSTHDR (&message)), sizeof (int));
    return descriptor;
}

int main (int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof (attacks) / sizeof (attacks[0]); i++)
        if (strcmp (argv[1], attacks[i].name) == 0) {
            attacks[i].function (argc - 2, argv + 2);
            return 0;
        }
    return 2;
}
