/* Plan and counters (supervisor/pages.c): one that is not whole is none, and counters never change their size. */
#include "supervisor/pages.h"
#include "tap.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct plan_file content;
static struct plan plan;

/* What is read of a file with so many bytes of `content`. */
static int read_of (size_t size)
{
    int file = memfd_create ("plan", MFD_CLOEXEC), result = -EIO;

    memset (&plan, 0xff, sizeof (plan));
    if (file >= 0 && write (file, &content, size) == (ssize_t) size)
        result = plan_read (file, &plan);
    close (file);
    return result;
}

static void plans (void)
{
    content = (struct plan_file) { .magic = PLAN_MAGIC, .version = PAGES_VERSION };
    content.plans[0].generation = 7;
    content.plans[1].generation = 8;
    content.plans[1].phases[SHARE_MAX_GPUS - 1].until = 9;
    tap_ok (read_of (sizeof (content)) == 0 && plan.generation == 7, "the plan that the index says, the first");
    content.index = 1;
    tap_ok (read_of (sizeof (content)) == 0 && plan.generation == 8 && plan.phases[SHARE_MAX_GPUS - 1].until == 9, "the second");
    tap_ok (read_of (sizeof (content) - 1) == -EBADMSG, "not one that is too short");
    tap_ok (read_of (0) == -EBADMSG && read_of (offsetof (struct plan_file, plans)) == -EBADMSG,
            "nor an empty one, or a head alone");
    content.index = 2;
    tap_ok (read_of (sizeof (content)) == -EBADMSG, "there is no third");
    content.index = 0;
    content.version++;
    tap_ok (read_of (sizeof (content)) == -EBADMSG, "not of another version");
    content.version--;
    content.magic++;
    tap_ok (read_of (sizeof (content)) == -EBADMSG, "not of another file");
    tap_ok (plan_read (-1, &plan) == -EBADF, "what cannot be read");
}

static void counters (void)
{
    int file = counters_create ();
    struct counters_file found;

    tap_ok (file >= 0 && pread (file, &found, sizeof (found), 0) == sizeof (found), "counters are as long as their structure");
    tap_ok (found.magic == COUNTERS_MAGIC && found.version == PAGES_VERSION && found.index == 0 && found.event_count == 0,
            "with a head, and nothing counted");
    tap_ok (ftruncate (file, 0) != 0 && errno == EPERM && ftruncate (file, 1 << 20) != 0 && errno == EPERM, "no other size");
    tap_ok (pwrite (file, "x", 1, sizeof (found)) < 0 && errno == EPERM, "nothing is written behind");
    tap_ok (pwrite (file, &found, sizeof (found), 0) == sizeof (found), "what is inside is written");
    tap_ok (counters_name_build (file) == file && pread (file, &found, sizeof (found), 0) == sizeof (found) &&
                strchr (found.build, '.') != NULL && found.build[sizeof (found.build) - 1] == '\0',
            "and the version of the program");
    close (file);
}

int main (void)
{
    plans ();
    counters ();
    return tap_done ();
}
