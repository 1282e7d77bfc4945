/*
 * The statuses of random calls of the resource manager, of a simulated driver or of the real one: the simulation shall answer as the
 * driver does. Single-threaded, by clients of this process's own, from a list of harmless calls: at most MOST_CALLS objects of at most
 * 1 MiB at a time. No multicast or fabric request, no managed memory, nothing that changes the GPU's or another process's state.
 *
 *     driver_statuses sim VERSION SEQUENCES SEED   a line for each call: the sequence, the call, its status
 *     driver_statuses real VERSION SEQUENCES SEED  the same of /dev/nvidiactl and /dev/nvidia0; as root or not
 *     driver_statuses compare ONE OTHER            counts calls up to and with the first difference of each sequence; 1 if there is one
 *
 * VERSION: of the driver, as in /proc/driver/nvidia/version: sizes of structs are by it.
 */
#include "manager_bed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FILES 2u
#define CLIENTS 3u
#define HANDLES 10u
#define FIRST 0x5c000000u
#define MOST_CALLS 40u
#define REGISTER_FD _IOWR ('F', 0xC9, int32_t)
#define NO_CALL 0xffffffffu

struct duplicate_call {
    uint32_t client, parent, object, from_client, from, flags, status;
};
struct share_call {
    uint32_t client, object, target, mask;
    uint16_t type;
    uint8_t action, pad;
    uint32_t status;
};
#define DUPLICATE _IOWR ('F', 0x34, struct duplicate_call)
#define SHARE _IOWR ('F', 0x35, struct share_call)

static bool is_real;
static uint64_t state;
static int control[FILES], node[FILES];
static struct manager_file *simulated[FILES];
static uint32_t clients[CLIENTS];
static unsigned file_of[CLIENTS], next_client;

static uint32_t draw (uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (state >> 33) % below;
}

/* 0 or errno. */
static int call (unsigned file, uint32_t request, void *argument)
{
    if (!is_real)
        return -bed_ioctl (simulated[file], request, argument);
    return ioctl (control[file], request, argument) == 0 ? 0 : errno;
}

static void begin (void)
{
    memset (clients, 0, sizeof (clients));
    next_client = 0;
    for (unsigned i = 0; i < FILES; i++) {
        if (!is_real) {
            simulated[i] = manager_open (bed, MANAGER_CONTROL, 0);
            continue;
        }
        control[i] = open ("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
        node[i] = open ("/dev/nvidia0", O_RDWR | O_CLOEXEC);
        if (control[i] < 0 || node[i] < 0 || ioctl (node[i], REGISTER_FD, &(int32_t) { control[i] }) != 0) {
            perror ("driver_statuses: /dev/nvidiactl, /dev/nvidia0");
            exit (2);
        }
    }
}

static void end (void)
{
    for (unsigned i = 0; i < FILES; i++) {
        if (!is_real) {
            manager_release (simulated[i]);
            continue;
        }
        close (node[i]);
        close (control[i]);
    }
}

/* Mostly a small number of handles, sometimes one that is never used, or none. */
static uint32_t any_handle (void)
{
    uint32_t choice = draw (40);

    return choice == 0 ? 0 : choice == 1 ? FIRST + 0xfff : FIRST + draw (HANDLES);
}

/* Handles of clients are the manager's choice: not the same in both. */
static const char *named (uint32_t handle, uint32_t client)
{
    static char text[16];

    snprintf (text, sizeof (text), "%#x", handle);
    return handle == client ? "client" : text;
}

static uint32_t any_parent (uint32_t client) { return draw (6) == 0 ? client : any_handle (); }

static uint32_t allocate (unsigned file, uint32_t client, uint32_t parent, uint32_t object, uint32_t class, void *params)
{
    struct alloc head = {
        .client = client, .parent = parent, .object = object, .class_number = class, .params = (uint64_t) (uintptr_t) params
    };
    int error = call (file, ALLOC, &head);

    if (error == 0 && head.status == 0 && class == 0x41) {
        clients[next_client % CLIENTS] = head.object;
        file_of[next_client++ % CLIENTS] = file;
    }
    return error != 0 ? NO_CALL - (uint32_t) error : head.status;
}

static uint32_t allocate_any (unsigned file, uint32_t client, char *what, size_t size)
{
    static const uint32_t classes[] = { 0x80, 0x80, 0x2080, 0x2080, 0x40, 0x40, 0x40, 0x3e, 0x90f1, 0xa06c, 0x9067 };
    static const uint64_t sizes[] = { 65536, 4096, 100000, 1u << 20 };
    uint32_t class = classes[draw (sizeof (classes) / sizeof (classes[0]))], handle = any_handle (), parent = any_parent (client);
    uint8_t params[512] = { 0 };
    uint64_t bytes = sizes[draw (4)];
    bool has_small_pages = draw (4) == 0;
    uint32_t attributes = class == 0x3e ? 0x0a000000u : has_small_pages ? 0x18800000u : 0x18000000u;

    /* libcuda's first handles, so that something comes of it. */
    if (class == 0x80) {
        parent = draw (8) == 0 ? parent : client;
        handle = FIRST + draw (3);
    } else if (draw (3) != 0)
        parent = FIRST + draw (3);
    if (class == 0x40 || class == 0x3e) {
        memcpy (params, "nv", 2); /* owner: any but 0 */
        memcpy (params + 24, &attributes, 4);
        memcpy (params + 64, &bytes, 8);
    } else if (class == 0xa06c)
        params[12] = 1;
    snprintf (what, size, "alloc %#x parent %s handle %#x size %llu", class, named (parent, client), handle,
              (unsigned long long) bytes);
    return allocate (file, client, parent, handle, class, params);
}

/* libcuda's first objects, so that something comes of the rest. */
static uint32_t begin_device (unsigned number, unsigned file, uint32_t client, char *what, size_t size)
{
    uint8_t params[64] = { 0 };

    snprintf (what, size, number == 0 ? "device" : "subdevice");
    return number == 0 ? allocate (file, client, client, FIRST, 0x80, params)
                       : allocate (file, client, FIRST, FIRST + 1, 0x2080, params);
}

static uint32_t control_any (unsigned file, uint32_t client, char *what, size_t size)
{
    static const struct {
        uint32_t number, size;
    } controls[] = { { 0x2080014a, 268 }, { 0xd01, 12 }, { 0xd02, 16 }, { 0xa06c0104, 8 }, { 0x2080014a, 4 } };
    uint8_t params[512] = { 0 };
    uint32_t which = draw (5), object = controls[which].number >> 16 == 0 ? client : any_handle (), other = any_handle ();
    struct control_call head = { .client = client,
                                 .object = object,
                                 .number = controls[which].number,
                                 .params = (uint64_t) (uintptr_t) params,
                                 .params_size = controls[which].size };
    int error;

    if (which == 0)
        params[4] = 2;
    else if (which == 1 || which == 2)
        memcpy (params, &other, 4);
    if (which == 2)
        params[4] = 2;
    snprintf (what, size, "control %#x of %u bytes object %s about %#x", head.number, head.params_size, named (object, client),
              other);
    error = call (file, CONTROL, &head);
    return error != 0 ? NO_CALL - (uint32_t) error : head.status;
}

static uint32_t free_any (unsigned file, uint32_t client, char *what, size_t size)
{
    struct free_call head = { .client = client, .object = draw (25) == 0 ? client : any_handle () };
    int error;

    snprintf (what, size, "free %s", named (head.object, client));
    error = call (file, FREE, &head);
    return error != 0 ? NO_CALL - (uint32_t) error : head.status;
}

static uint32_t duplicate_any (unsigned file, uint32_t client, char *what, size_t size)
{
    unsigned source = draw (CLIENTS);
    struct duplicate_call head = { .client = client,
                                   .parent = draw (3) != 0 ? FIRST + draw (3) : any_parent (client),
                                   .object = any_handle (),
                                   .from_client = clients[source],
                                   .from = any_handle () };
    int error;

    snprintf (what, size, "duplicate parent %s handle %#x from %u %#x", named (head.parent, client), head.object, source,
              head.from);
    error = call (file, DUPLICATE, &head);
    return error != 0 ? NO_CALL - (uint32_t) error : head.status;
}

static uint32_t share_any (unsigned file, uint32_t client, char *what, size_t size)
{
    static const uint16_t types[] = { 0, 1, 3, 4 };
    struct share_call head = {
        .client = client, .object = any_handle (), .target = clients[draw (CLIENTS)], .mask = 1, .type = types[draw (4)]
    };
    int error;

    snprintf (what, size, "share %#x type %u", head.object, head.type);
    error = call (file, SHARE, &head);
    return error != 0 ? NO_CALL - (uint32_t) error : head.status;
}

static void run_sequence (unsigned long number)
{
    for (unsigned i = 0; i < MOST_CALLS; i++) {
        unsigned which = draw (3) != 0 ? 0 : draw (CLIENTS), choice = i < CLIENTS ? 0 : draw (60);
        unsigned file = draw (15) == 0 ? draw (FILES) : file_of[which];
        uint32_t client = clients[which], status;
        char what[160] = "client";

        choice = choice == 1 ? 1 : choice / 3;
        if (i < CLIENTS || choice == 0)
            status = allocate (i < CLIENTS ? i / 2 : file, 0, 0, 0, 0x41, NULL); /* two of the first file, one of the other */
        else if (i < CLIENTS + 2)
            status = begin_device (i - CLIENTS, file, client, what, sizeof (what));
        else if (choice <= 10)
            status = allocate_any (file, client, what, sizeof (what));
        else if (choice <= 12)
            status = control_any (file, client, what, sizeof (what));
        else if (choice <= 14)
            status = free_any (file, client, what, sizeof (what));
        else if (choice <= 17)
            status = duplicate_any (file, client, what, sizeof (what));
        else
            status = share_any (file, client, what, sizeof (what));
        printf ("%lu %u file %u client %u: %s: %#x\n", number, i, file, which, what, (unsigned) status);
    }
}

static int run (const char *version, unsigned long sequences, uint64_t seed)
{
    if (!is_real) {
        bed_start ();
        manager_destroy (bed);
        snprintf (bed_machine.driver, sizeof (bed_machine.driver), "%s", version);
        bed = manager_create (&bed_machine);
    }
    for (unsigned long i = 0; i < sequences; i++) {
        state = (seed + i) * 0x9e3779b97f4a7c15u;
        begin ();
        run_sequence (i);
        end ();
    }
    if (!is_real)
        bed_stop ();
    return 0;
}

static int compare (const char *one_path, const char *other_path)
{
    FILE *one = fopen (one_path, "r"), *other = fopen (other_path, "r");
    char first[256], second[256];
    unsigned long compared = 0, different = 0, skipped = (unsigned long) -1, sequence;

    if (one == NULL || other == NULL) {
        perror ("driver_statuses: compare");
        return 2;
    }
    while (fgets (first, sizeof (first), one) != NULL && fgets (second, sizeof (second), other) != NULL) {
        sequence = strtoul (first, NULL, 10);
        /* What follows a difference is about other objects. */
        if (sequence == skipped)
            continue;
        compared++;
        if (strcmp (first, second) == 0)
            continue;
        different++;
        skipped = sequence;
        printf ("- %s+ %s", first, second);
    }
    printf ("%lu calls compared, %lu different\n", compared, different);
    return different != 0;
}

int main (int argc, char **argv)
{
    if (argc == 4 && strcmp (argv[1], "compare") == 0)
        return compare (argv[2], argv[3]);
    if (argc == 5 && (strcmp (argv[1], "sim") == 0 || strcmp (argv[1], "real") == 0)) {
        is_real = argv[1][0] == 'r';
        return run (argv[2], strtoul (argv[3], NULL, 10), strtoull (argv[4], NULL, 10));
    }
    fprintf (stderr, "usage: driver_statuses sim|real VERSION SEQUENCES SEED | compare ONE OTHER\n");
    return 2;
}
