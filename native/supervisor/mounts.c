/* See mounts.h. */
#include "mounts.h"
#include "container_mounts.h"
#include "proc.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* mnt_id of /proc/self/fdinfo: statx(2) tells it since Linux 5.8 only. */
static bool find_mount (int file, uint64_t *mount)
{
    char path[64], text[1024];
    const char *found;

    snprintf (path, sizeof (path), "/proc/self/fdinfo/%d", file);
    found = proc_text (path, text, sizeof (text)) ? strstr (text, "mnt_id:") : NULL;
    if (found != NULL)
        *mount = strtoull (found + strlen ("mnt_id:"), NULL, 10);
    return found != NULL;
}

static bool is_known (const struct mounts *self, uint64_t mount)
{
    unsigned count = self->count < MOUNTS_KNOWN ? self->count : MOUNTS_KNOWN;

    for (unsigned i = 0; i < count; i++)
        if (self->known[i].id == mount)
            return true;
    return false;
}

/* The file keeps the mount until it is held. */
static void hold (struct mounts *self, uint64_t mount, int file)
{
    char path[64];
    int held;

    snprintf (path, sizeof (path), "/proc/self/fd/%d", file);
    held = open (path, O_PATH | O_CLOEXEC);
    if (held < 0)
        return;
    if (self->count >= MOUNTS_KNOWN)
        close (self->known[self->count % MOUNTS_KNOWN].held);
    self->known[self->count % MOUNTS_KNOWN].id = mount;
    self->known[self->count % MOUNTS_KNOWN].held = held;
    self->count++;
}

static bool is_of_host (uint64_t mount)
{
    int mountinfo = open ("/proc/1/mountinfo", O_RDONLY | O_CLOEXEC);
    bool is_found = mountinfo >= 0 && mountinfo_lists (mountinfo, mount);

    if (mountinfo >= 0)
        close (mountinfo);
    return is_found;
}

bool mounts_have (struct mounts *self, bool (*owns) (const void *containers, pid_t pid, pid_t thread, uint64_t mount),
                  const void *containers, int file, pid_t pid, pid_t thread)
{
    uint64_t mount;

    if (!find_mount (file, &mount))
        return false;
    if (is_known (self, mount))
        return true;
    if (!owns (containers, pid, thread, mount) && !is_of_host (mount))
        return false;
    hold (self, mount, file);
    return true;
}

void mounts_close (struct mounts *self)
{
    for (unsigned i = 0; i < self->count && i < MOUNTS_KNOWN; i++)
        close (self->known[i].held);
    self->count = 0;
}
