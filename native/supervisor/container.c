/* See container.h. cgroups: Documentation/admin-guide/cgroup-v2.rst (cgroup.kill), cgroup-v1/freezer-subsystem.rst. */
#include "container.h"
#include "container_mounts.h"
#include "proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATH_SIZE 8192u
/* cgroup.procs is read and its processes ended that often: a fork bomb may be faster than one reading. */
#define ROUNDS 1000u
/* Of cgroups below a container's that are looked through; each has a list of 64 KiB on the stack. */
#define DEPTH 16u

/* /proc/PID/cgroup. */
static bool read_cgroups (const char *process, char text[PATH_SIZE])
{
    char name[64];

    snprintf (name, sizeof (name), "/proc/%s/cgroup", process);
    return proc_text (name, text, PATH_SIZE);
}

/* The path of a process's cgroup: of version 2 (controller ""), or of a controller of version 1. false: there is none. */
static bool cgroup_in (const char *text, const char *controller, char *path, size_t size)
{
    size_t length = strlen (controller);

    for (const char *line = text, *end; *line != '\0'; line = *end == '\0' ? end : end + 1) {
        const char *one = strchr (line, ':'), *where;
        bool is_found = false;

        end = line + strcspn (line, "\n");
        where = one != NULL ? strchr (++one, ':') : NULL;
        if (where == NULL || where >= end)
            continue;
        for (; one < where && !is_found && length != 0; one += strcspn (one, ",:") + 1)
            is_found = strncmp (one, controller, length) == 0 && (one[length] == ',' || one[length] == ':');
        if (length == 0 ? one == where : is_found)
            return (size_t) snprintf (path, size, "%.*s", (int) (end - where - 1), where + 1) < size;
    }
    return false;
}

/* Whether nothing but this process is in the cgroup. */
static bool is_own (const char *directory, const char *path, const char *caller, pid_t pid)
{
    char name[2 * PATH_SIZE], text[4096], *rest = text, *line;
    size_t length = strlen (path);
    struct stat found;

    /* The caller's own, one above it, or the root. */
    if (length <= 1 || (strncmp (caller, path, length) == 0 && (caller[length] == '/' || caller[length] == '\0')))
        return false;
    /* With a cgroup below it, others may be there: kernfs counts directories as links (kernfs_refresh_inode). */
    snprintf (name, sizeof (name), "%s%s", directory, path);
    if (stat (name, &found) != 0 || found.st_nlink != 2)
        return false;
    snprintf (name, sizeof (name), "%s%s/cgroup.procs", directory, path);
    if (!proc_text (name, text, sizeof (text)) || text[0] == '\0')
        return false;
    while ((line = strsep (&rest, "\n")) != NULL)
        if (*line != '\0' && strtol (line, NULL, 10) != pid)
            return false;
    return true;
}

static int open_of (const char *directory, const char *path, const char *file, int flags)
{
    char name[2 * PATH_SIZE];

    snprintf (name, sizeof (name), "%s%s/%s", directory, path, file);
    return open (name, flags | O_CLOEXEC);
}

static void hold (struct container *container, const char *controller, const char *mount, const char *path)
{
    struct stat found;

    container->directory = open_of (mount, path, ".", O_RDONLY | O_DIRECTORY);
    if (container->directory < 0 || fstat (container->directory, &found) != 0)
        return;
    container->cgroup = strdup (path);
    container->controller = controller;
    container->mount = mount;
    container->inode = found.st_ino;
}

static void open_cgroups (struct container *container)
{
    /* Where controllers are mounted: systemd's places, and those of cgroup v2 alone. */
    static const struct {
        const char *controller, *directory;
    } places[] = { { "", "/sys/fs/cgroup" },
                   { "", "/sys/fs/cgroup/unified" },
                   { "freezer", "/sys/fs/cgroup/freezer" },
                   { "devices", "/sys/fs/cgroup/devices" } };
    char process[16], of_process[PATH_SIZE], of_caller[PATH_SIZE], path[PATH_SIZE], caller[PATH_SIZE];

    snprintf (process, sizeof (process), "%d", (int) container->pid);
    if (!read_cgroups (process, of_process) || !read_cgroups ("self", of_caller))
        return;
    for (unsigned i = 0; i < sizeof (places) / sizeof (places[0]); i++) {
        if (!cgroup_in (of_process, places[i].controller, path, sizeof (path)) ||
            !cgroup_in (of_caller, places[i].controller, caller, sizeof (caller)) ||
            !is_own (places[i].directory, path, caller, container->pid))
            continue;
        if (container->cgroup == NULL)
            hold (container, places[i].controller, places[i].directory, path);
        if (container->kill < 0 && *places[i].controller == '\0')
            container->kill = open_of (places[i].directory, path, "cgroup.kill", O_WRONLY);
        if (container->events < 0 && *places[i].controller == '\0')
            container->events = open_of (places[i].directory, path, "cgroup.events", O_RDONLY);
        if (strcmp (places[i].controller, "freezer") == 0)
            container->freezer = open_of (places[i].directory, path, "freezer.state", O_WRONLY);
    }
}

/* Inode of its namespace; 0: the caller's, or the process has ended. */
static uint64_t namespace_of (pid_t pid, const char *name)
{
    char path[64], own_path[64];
    struct stat own, other;

    snprintf (path, sizeof (path), "/proc/%d/ns/%s", (int) pid, name);
    snprintf (own_path, sizeof (own_path), "/proc/self/ns/%s", name);
    return stat (path, &other) == 0 && stat (own_path, &own) == 0 && own.st_ino != other.st_ino ? other.st_ino : 0;
}

/* As long as it is open its number means no other one. */
static int open_namespace (pid_t pid, const char *name)
{
    char path[64];

    snprintf (path, sizeof (path), "/proc/%d/ns/%s", (int) pid, name);
    return open (path, O_RDONLY | O_CLOEXEC);
}

/* Whether its pid namespace is this one, or below it (NS_GET_PARENT, ioctl_ns(2)). */
static bool is_below (pid_t pid, uint64_t pid_namespace)
{
    char path[64];
    struct stat found;
    bool is_found = false;
    int file, parent;

    snprintf (path, sizeof (path), "/proc/%d/ns/pid", (int) pid);
    file = open (path, O_RDONLY | O_CLOEXEC);
    while (file >= 0 && fstat (file, &found) == 0 && !(is_found = found.st_ino == pid_namespace)) {
        parent = ioctl (file, NS_GET_PARENT);
        close (file);
        file = parent;
    }
    if (file >= 0)
        close (file);
    return is_found;
}

/* Whether it is pid 1 of a pid namespace that is not the caller's. */
static bool is_init (pid_t pid)
{
    char value[1024];
    const char *last;

    if (namespace_of (pid, "pid") == 0 || !proc_status (pid, "NSpid", value, sizeof (value)))
        return false;
    last = strrchr (value, '\t');
    return strtol (last != NULL ? last + 1 : value, NULL, 10) == 1;
}

int container_open (struct container *container, pid_t pid, uint64_t start_time)
{
    *container = (struct container) CONTAINER_NONE;
    container->pid = pid;
    container->start_time = start_time;
    container->pidfd = (int) syscall (SYS_pidfd_open, pid, 0);
    if (container->pidfd < 0 || proc_start_time (pid) != start_time) {
        container_close (container);
        return -ESRCH;
    }
    container->is_namespace_init = is_init (pid);
    container->pid_namespace = namespace_of (pid, "pid");
    container->mount_namespace = namespace_of (pid, "mnt");
    container->mounts = open_namespace (pid, "mnt");
    container_open_mounts (container);
    open_cgroups (container);
    return 0;
}

/* SECCOMP_MODE_FILTER (linux/seccomp.h). */
static bool has_filter (pid_t pid) { return proc_status_number (pid, "Seccomp") == 2; }

/* A first thread that has ended says nothing of cgroups (version 1) and namespaces: another one does. */
static pid_t living_thread (pid_t pid)
{
    char path[64];
    struct dirent *entry;
    struct stat found;
    DIR *directory;
    pid_t thread = pid;

    snprintf (path, sizeof (path), "/proc/%d/ns/mnt", (int) pid);
    if (stat (path, &found) == 0)
        return pid;
    snprintf (path, sizeof (path), "/proc/%d/task", (int) pid);
    directory = opendir (path);
    while (directory != NULL && thread == pid && (entry = readdir (directory)) != NULL) {
        snprintf (path, sizeof (path), "/proc/%d/ns/mnt", atoi (entry->d_name));
        if (atoi (entry->d_name) > 0 && stat (path, &found) == 0)
            thread = atoi (entry->d_name);
    }
    if (directory != NULL)
        closedir (directory);
    return thread;
}

static bool is_in_cgroup (const struct container *container, pid_t pid)
{
    size_t length = strlen (container->cgroup);
    char process[16], text[PATH_SIZE], path[PATH_SIZE], name[2 * PATH_SIZE];
    struct stat found;

    snprintf (process, sizeof (process), "%d", (int) pid);
    snprintf (name, sizeof (name), "%s%s", container->mount, container->cgroup);
    return read_cgroups (process, text) && cgroup_in (text, container->controller, path, sizeof (path)) &&
           strncmp (path, container->cgroup, length) == 0 && (path[length] == '/' || path[length] == '\0') &&
           stat (name, &found) == 0 && found.st_ino == container->inode;
}

/* A pod's pid namespace, which its first process did not begin, is that of several containers. A process of the host that joins the
 * cgroup or the pid namespace (nsenter(1), a runtime's exec on its way) is in one of them and not in the other, or still in the host's mounts. */
bool container_has (const void *of, pid_t pid)
{
    const struct container *container = of;
    pid_t thread = living_thread (pid);
    uint64_t mounts = namespace_of (thread, "mnt");

    if (container->mount_namespace != 0 && mounts == 0)
        return false;
    if (container->cgroup != NULL && !is_in_cgroup (container, thread))
        return false;
    if (container->is_namespace_init && !is_below (thread, container->pid_namespace))
        return false;
    if (container->mount_namespace == 0)
        return has_filter (pid);
    return container->cgroup != NULL || container->is_namespace_init || mounts == container->mount_namespace;
}

/* container: of which the process must be; NULL: it is listed in the container's cgroup. */
static void end_one (const struct container *container, pid_t pid, uint64_t start_time)
{
    int pidfd = (int) syscall (SYS_pidfd_open, pid, 0);

    if (pidfd < 0)
        return;
    if ((start_time == 0 || proc_start_time (pid) == start_time) && (container == NULL || container_has (container, pid)))
        syscall (SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
    close (pidfd);
}

/* How many processes there are in cgroup.procs; ends: SIGKILL to each. */
static unsigned listed (int procs, bool ends)
{
    char text[65536], *rest = text, *line;
    ssize_t size = pread (procs, text, sizeof (text) - 1, 0);
    unsigned count = 0;

    text[size > 0 ? size : 0] = '\0';
    while ((line = strsep (&rest, "\n")) != NULL && rest != NULL)
        if (*line != '\0') {
            if (ends)
                end_one (NULL, (pid_t) strtol (line, NULL, 10), 0);
            count++;
        }
    return count;
}

/* The same of a cgroup and of those below it, which a container may have made. Those that lie deeper than `depth` count as one process. */
static unsigned listed_below (int directory, bool ends, unsigned depth)
{
    int procs = openat (directory, "cgroup.procs", O_RDONLY | O_CLOEXEC),
        copy = openat (directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    unsigned count = procs >= 0 ? listed (procs, ends) : 0;
    DIR *entries = copy >= 0 ? fdopendir (copy) : NULL;
    struct dirent *entry;

    if (procs >= 0)
        close (procs);
    while (entries != NULL && (entry = readdir (entries)) != NULL) {
        int below;

        if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
            continue;
        below = depth != 0 ? openat (directory, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        count += below >= 0 ? listed_below (below, ends, depth - 1) : depth == 0;
        if (below >= 0)
            close (below);
    }
    if (entries != NULL)
        closedir (entries);
    else if (copy >= 0)
        close (copy);
    return count;
}

const char *container_end (const struct container *container, const struct container_process *known, unsigned count)
{
    const char *used = "its processes";

    if (container->kill >= 0 && write (container->kill, "1", 1) == 1)
        used = "cgroup.kill";
    else if (container->is_namespace_init && syscall (SYS_pidfd_send_signal, container->pidfd, SIGKILL, NULL, 0) == 0)
        used = "pid namespace";
    else if (container->freezer >= 0) {
        used = "freezer";
        if (write (container->freezer, "FROZEN", 6) != 6)
            used = "cgroup.procs";
        (void) listed_below (container->directory, true, DEPTH);
        if (write (container->freezer, "THAWED", 6) != 6)
            used = "cgroup.procs";
    }
    if (container->pidfd >= 0)
        syscall (SYS_pidfd_send_signal, container->pidfd, SIGKILL, NULL, 0);
    for (unsigned i = 0;
         container->kill < 0 && container->directory >= 0 && i < ROUNDS && listed_below (container->directory, true, DEPTH) != 0;
         i++)
        nanosleep (&(struct timespec) { .tv_nsec = 100000 }, NULL);
    for (unsigned i = 0; i < count; i++)
        if (known[i].pid != 0 && known[i].start_time != 0)
            end_one (container, (pid_t) known[i].pid, known[i].start_time);
    return used;
}

bool container_is_left (const struct container *container, const struct container_process *known, unsigned count)
{
    char text[256];
    ssize_t size = container->events >= 0 ? pread (container->events, text, sizeof (text) - 1, 0) : 0;

    text[size > 0 ? size : 0] = '\0';
    if (strstr (text, "populated 1") != NULL)
        return true;
    if (container->events < 0 && container->directory >= 0 && listed_below (container->directory, false, DEPTH) != 0)
        return true;
    if (container->pidfd >= 0 && syscall (SYS_pidfd_send_signal, container->pidfd, 0, NULL, 0) == 0 &&
        proc_start_time (container->pid) == container->start_time)
        return true;
    for (unsigned i = 0; i < count; i++)
        if (known[i].pid != 0 && known[i].start_time != 0 && container_has (container, (pid_t) known[i].pid) &&
            proc_start_time ((pid_t) known[i].pid) == known[i].start_time)
            return true;
    return false;
}

void container_close (struct container *container)
{
    int *files[] = { &container->pidfd,   &container->kill,   &container->events,   &container->directory,
                     &container->freezer, &container->mounts, &container->mountinfo };

    for (unsigned i = 0; i < sizeof (files) / sizeof (files[0]); i++) {
        if (*files[i] >= 0)
            close (*files[i]);
        *files[i] = -1;
    }
    free (container->cgroup);
    container->cgroup = NULL;
    container->pid = 0;
}
