/* A guard that ends while files of ended processes wait to be closed, and a tenant that does not begin (guard/guard.c, retained.c,
 * held_files.c). */
#include "guard/guard.h"
#include "guard/guard_private.h"
#include "guard/tenant.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FILES 200
#define SIZE ((size_t) 4 << 20)

/* What held_files.c writes into guard->closing. */
struct closing {
    int file;
    uint32_t client;
    bool is_counted;
};

/* Closing it takes more time than is for nothing. */
static int large_file (void)
{
    int file = memfd_create ("large", MFD_CLOEXEC);
    void *memory = ftruncate (file, SIZE) == 0 ? mmap (NULL, SIZE, PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;

    if (memory == MAP_FAILED)
        return -1;
    memset (memory, 1, SIZE);
    munmap (memory, SIZE);
    return file;
}

int main (void)
{
    struct limits limits = { .magic = LIMITS_MAGIC, .version = LIMITS_VERSION, .driver = "1.2" };
    struct guard *guard = guard_create (-1);
    struct closing closing[FILES];
    bool is_written = true;

    tap_ok (guard != NULL && guard_tenant_add (guard, 1, &limits) == -EOPNOTSUPP, "a tenant that cannot be");
    memcpy (limits.driver, "580.159.04", sizeof ("580.159.04"));
    tap_ok (guard_tenant_add (guard, 1, &limits) == 0, "is none, and another one can be");
    tap_ok (guard_tenant_add (guard, 2, &limits) == -EEXIST, "beside which there is no other");
    for (unsigned i = 0; i < FILES; i++) {
        closing[i] = (struct closing) { large_file (), 0, true };
        is_written &= closing[i].file >= 0;
    }
    is_written &= write (guard->closing[1], closing, sizeof (closing)) == sizeof (closing);
    tap_ok (is_written, "files that wait to be closed");
    guard_destroy (guard);
    tap_ok (fcntl (3, F_GETFD) < 0, "all are closed, and a tenant that is gone is not looked for");
    return tap_done ();
}
