/* Mount and unmount. Runs in nvc-sim-manager, on the main thread. */
#include "fuse.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

int server_mount (struct server *server)
{
    char options[160];

    server->device = open ("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (server->device < 0) {
        int error = errno;
        fprintf (stderr, "nvc-sim-manager: /dev/fuse: %s (needs the kernel's module fuse, and root)\n", strerror (error));
        return -error;
    }
    snprintf (options, sizeof (options), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions",
              server->device);
    if (mount ("nvc-sim-manager", server->mountpoint, "fuse.nvc-sim-manager", MS_NOSUID | MS_NODEV | MS_NOEXEC, options) < 0) {
        int error = errno;
        fprintf (stderr, "nvc-sim-manager: mounting on %s: %s\n", server->mountpoint, strerror (error));
        close (server->device);
        return -error;
    }
    return 0;
}

void server_unmount (struct server *server)
{
    if (umount2 (server->mountpoint, UMOUNT_NOFOLLOW) < 0 && errno == EBUSY)
        umount2 (server->mountpoint, UMOUNT_NOFOLLOW | MNT_DETACH);
}
