/* See container.h. /proc/PID/mountinfo: proc_pid_mountinfo(5); owners of namespaces: ioctl_ns(2). */
#include "container_mounts.h"
#include "container.h"

#include <fcntl.h>
#include <linux/nsfs.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int open_of (pid_t pid, pid_t thread, const char *name)
{
    char path[64];

    snprintf (path, sizeof (path), "/proc/%d/task/%d/%s", (int) pid, (int) thread, name);
    return open (path, O_RDONLY | O_CLOEXEC);
}

static uint64_t inode_of (int file)
{
    struct stat found;

    return file >= 0 && fstat (file, &found) == 0 ? found.st_ino : 0;
}

static uint64_t owner_of (int namespace)
{
    int owner = namespace >= 0 ? ioctl (namespace, NS_GET_USERNS) : -1;
    uint64_t inode = inode_of (owner);

    if (owner >= 0)
        close (owner);
    return inode;
}

void container_open_mounts (struct container *container)
{
    container->mountinfo = open_of (container->pid, container->pid, "mountinfo");
    container->owner = owner_of (container->mounts);
}

bool mountinfo_lists (int mountinfo, uint64_t mount)
{
    char text[4096];
    uint64_t number = 0;
    bool is_number = true;
    off_t at = 0;
    ssize_t size;

    while ((size = pread (mountinfo, text, sizeof (text), at)) > 0) {
        at += size;
        for (const char *next = text; next < text + size; next++)
            if (*next == '\n') {
                number = 0;
                is_number = true;
            } else if (is_number && *next >= '0' && *next <= '9')
                number = number * 10 + (uint64_t) (*next - '0');
            else {
                if (is_number && number == mount)
                    return true;
                is_number = false;
            }
    }
    return false;
}

static bool is_namespace (const struct container *container, int namespace)
{
    return namespace >= 0 && (inode_of (namespace) == inode_of (container->mounts) ||
                              (container->owner != 0 && owner_of (namespace) == container->owner));
}

/* Its mounts first, then its namespace: without rights in the container's user namespace a process leaves a namespace of that one's and never
 * comes back, so one that is in it at the second look was so at the first. */
static bool is_listed_of (const struct container *container, pid_t pid, pid_t thread, uint64_t mount)
{
    int mountinfo = open_of (pid, thread, "mountinfo"), namespace = open_of (pid, thread, "ns/mnt");
    bool is_found = mountinfo >= 0 && is_namespace (container, namespace) && syscall (SYS_tgkill, pid, thread, 0) == 0 &&
                    mountinfo_lists (mountinfo, mount);

    if (mountinfo >= 0)
        close (mountinfo);
    if (namespace >= 0)
        close (namespace);
    return is_found;
}

bool container_owns (const void *of, pid_t pid, pid_t thread, uint64_t mount)
{
    const struct container *container = of;

    return (container->mountinfo >= 0 && mountinfo_lists (container->mountinfo, mount)) ||
           is_listed_of (container, pid, thread, mount);
}
