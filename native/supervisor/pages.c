/* See pages.h. counters_create runs in the monitor, the rest in the supervisor. */
#include "pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

/* The writer may change the index between two reads: that often, and the writer writes without end. */
#define ATTEMPTS 100u

static int read_all (int file, void *to, size_t size, off_t at)
{
    ssize_t done = pread (file, to, size, at);

    return done < 0 ? -errno : done != (ssize_t) size ? -EBADMSG : 0;
}

int plan_read (int file, struct plan *plan)
{
    uint32_t head[4], after = 0;
    int error;

    for (unsigned i = 0; i < ATTEMPTS; i++) {
        error = read_all (file, head, sizeof (head), 0);
        if (error == 0 && (head[0] != PLAN_MAGIC || head[1] != PAGES_VERSION || head[2] > 1))
            error = -EBADMSG;
        if (error == 0)
            error = read_all (file, plan, sizeof (*plan), (off_t) (offsetof (struct plan_file, plans) + head[2] * sizeof (*plan)));
        if (error == 0)
            error = read_all (file, &after, sizeof (after), offsetof (struct plan_file, index));
        if (error != 0 || after == head[2])
            return error;
    }
    return -EAGAIN;
}

int counters_create (void)
{
    struct counters_file head = { .magic = COUNTERS_MAGIC, .version = PAGES_VERSION };
    int file = memfd_create ("nvc-counters", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (file < 0)
        return -errno;
    if (ftruncate (file, sizeof (head)) == 0 &&
        pwrite (file, &head, offsetof (struct counters_file, events), 0) == offsetof (struct counters_file, events) &&
        fcntl (file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return file;
    close (file);
    return -EIO;
}

int counters_name_build (int file)
{
    static const char build[COUNTERS_BUILD] = NVC_VERSION;

    _Static_assert (sizeof (NVC_VERSION) <= sizeof (build), "a version and its NUL");
    /* Inside of the file's size; without it the version is unknown, and shown as such. */
    if (pwrite (file, build, sizeof (build), offsetof (struct counters_file, build)) < 0)
        return file;
    return file;
}
